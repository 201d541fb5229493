"""Trackers have every step of metrics.jsonl once, also after a run was killed and resumed."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import CardError, Config
from scope_jax.errors import UserError
from scope_jax.games import parse_config
from scope_jax.run.files import read_records
from scope_jax.run.folder import RunFolder

TABLE: dict[str, Any] = {
    "system": "ssp",
    "model": {"checkpoint": "base"},
    "retrieval": {"corpus": "corpus.jsonl"},
    "data": {"answers": "answers.jsonl"},
    "train": {"steps": 5},
    "ssp": {"grader": "exact-match"},
}
EXPECTED = [(0, {"eval/a/accuracy": 0.25})] + [
    (step, {"solver/reward": step / 8, "solver/entropy": 2.0}) for step in (1, 2, 3, 4)
]


def card(*trackers: str, **log: Any) -> Config:
    return parse_config(TABLE | {"log": {"trackers": list(trackers), **log}}, "test card")


def interrupted(run: Path, cfg: Config) -> None:
    """A run that is killed after step 3, and resumed from its checkpoint of step 2."""
    for first, last in ((0, 3), (3, 4)):
        log = RunFolder(run, cfg)
        log.rewind(2 if first else None)
        if not first:
            log.metrics(0, {"eval/a/accuracy": 0.25})
        for step in range(max(first, 1), last + 1):
            log.metrics(step, {"solver/reward": step / 8, "solver/entropy": 2.0, "solver/loss": float("nan")})
        log.close()
    assert [line["step"] for line in list(read_records(run / "metrics.jsonl"))] == [0, 1, 2, 3, 4]


def test_tensorboard_has_every_step_once(tmp_path: Path) -> None:
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    interrupted(tmp_path / "run", card("tensorboard"))
    found: dict[int, dict[str, float]] = {}
    for path in (tmp_path / "run" / "tensorboard").iterdir():
        data, at = path.read_bytes(), 0
        while at < len(data):  # records: length, its checksum, an event, its checksum
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                assert value.tag not in found.setdefault(event.step, {})
                found[event.step][value.tag] = value.simple_value
    assert sorted(found.items()) == EXPECTED


def leveldb(data: bytes, first: int) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, as W&B writes it; first: place of `data` in the file."""
    at, parts = 0, b""
    while at < len(data):
        left = 32768 - (at + first) % 32768
        if left < 7:  # the rest of a block is padding
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)  # after a checksum
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""


def test_wandb_offline_has_every_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    wandb_internal_pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    interrupted(tmp_path / "run", card("wandb", project="p", name="n"))
    wandb.teardown()  # as at the end of a process: the process that writes the file has ended
    (path,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    found = []
    for data in leveldb(path.read_bytes()[7:], first=7):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "run":
            assert (record.run.project, record.run.display_name) == ("p", "n")
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            found.append((items["_step"], {key: value for key, value in items.items() if not key.startswith("_")}))
    assert found == EXPECTED


class Server:
    """W&B's server: the steps of its runs, by id."""

    def __init__(self) -> None:
        self.runs: dict[str, list[int]] = {}

    def Settings(self, **_: Any) -> None:
        pass

    def init(self, *, id: str, **_: Any) -> Any:
        steps = self.runs.setdefault(id, [])

        class Run:
            step = steps[-1] + 1 if steps else 0

            def log(self, metrics: dict[str, float], *, step: int, commit: bool) -> None:
                steps.append(step)

            def finish(self) -> None:
                pass

        return Run()


def test_wandb_online_continues_a_run_but_not_that_of_another_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    monkeypatch.setitem(sys.modules, "wandb", server)
    interrupted(tmp_path / "run", card("wandb", wandb_mode="online"))
    assert list(server.runs.values()) == [[0, 1, 2, 3, 4]]
    shutil.rmtree(tmp_path / "run")  # to start anew, with another seed
    interrupted(tmp_path / "run", card("wandb", wandb_mode="online").model_copy(update={"seed": 1}))
    assert list(server.runs.values()) == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_trackio_has_every_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    interrupted(tmp_path / "other" / "run", card("trackio", project="p"))
    interrupted(tmp_path / "run", card("trackio", project="p"))
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    runs = list(trackio.Api().runs("p"))
    assert [run.name for run in runs] == ["run", "run"]  # two folders of one name are two runs
    for run in runs:
        lines = storage.get_logs("p", run.name, run_id=run.id)
        found = [(line["step"], {k: v for k, v in line.items() if k not in ("step", "timestamp")}) for line in lines]
        assert sorted(found) == EXPECTED


def test_a_missing_library_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match='names "trackio", but the Python package trackio is not installed; run pip'):
        RunFolder(tmp_path / "run", card("trackio"))
    assert not (tmp_path / "run").exists()
    with pytest.raises(CardError, match=r"`log.trackers.0`.* must be 'tensorboard', 'wandb' or 'trackio'"):
        card("mlflow")
