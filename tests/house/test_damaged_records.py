"""A damaged record of a run ends its report in one sentence with file and line, in bounded memory and time."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from scope_jax import cli
from scope_jax.errors import UserError
from scope_jax.evaluation import evaluations
from scope_jax.games import GAMES, parse_config
from scope_jax.learner.types import Datum, Episode, Judgement, Reply
from scope_jax.report import live
from scope_jax.report.panels import series
from scope_jax.run import lines as run_lines
from scope_jax.run.files import EVALUATIONS, EXAMS, JUDGEMENTS, TOKENS, LineWriter, read_records
from scope_jax.run.folder import RunFolder

TABLE = {
    "system": "ssp",
    "model": {"checkpoint": "assets/base"},
    "retrieval": {"corpus": "assets/corpus.jsonl"},
    "data": {"answers": "assets/answers.jsonl"},
    "train": {"steps": 3},
    "log": {"tokens": True},
    "ssp": {"grader": "exact-match"},
}
PACKED = (JUDGEMENTS, TOKENS, EXAMS, EVALUATIONS)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps with all files of records, two lines each step."""
    folder = tmp_path / "run"
    log = RunFolder(folder, parse_config(TABLE, "test card"))
    log.token_bytes = lambda id: b"x"
    datum = Datum(np.arange(3), np.array([False, True, True]), np.zeros(3, np.float32))
    text = {"prompt": "Play.", "turns": [{"kind": "sampled", "text": "Tarn"}], "rejected": ""}
    asked = Judgement("grader", "a river", (Reply("yes"),), True)
    for step in (1, 2, 3):
        log.metrics(step, {"solver/reward": 0.5, "solver/grad_norm": 1.0, "eval/held/accuracy": 0.5})
        own = {"judgements": (asked,), "text": text}
        log.episodes(step, [Episode("solver", "actor", g, (datum,), 1.0, {"format": 1.0}, **own) for g in "ab"])
        log.exams(step, {"held": [{"question": "Which?", "measures": {"accuracy": 0.5}}] * 2})
        record = {"question": "Which?", "measures": {"accuracy": 0.5}, "text": text}
        evaluations.keep(folder, step, "held", [record], {"eval/held/accuracy": 0.5})
    log.close()
    return folder


def report(*words: object) -> Any:
    return CliRunner().invoke(cli.app, ["report", *map(str, words)])


def written(path: Path, lines: list[str]) -> None:
    """Writes the lines, each as a step of its own in a compressed file."""
    packed = path.suffix == ".gz"
    path.write_bytes(b"".join(gzip.compress(f"{n}\n".encode()) if packed else f"{n}\n".encode() for n in lines))


def lines_of(path: Path) -> list[str]:
    """The lines without their sums, as in a run of before there were sums: what they hold is all that is known."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
    return [re.sub(', "sum": "[0-9a-f]{8}"}$', "}", line) for line in lines]


def deep(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda record: json.dumps(record)[:-1] + f', "{name}": ' + "[" * 5000 + "]" * 5000 + "}"


def less(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda record: json.dumps({key: value for key, value in record.items() if key != name})


def other(name: str, value: object) -> Callable[[dict[str, Any]], str]:
    return lambda record: json.dumps(record | {name: value})


ANY = {"words": lambda record: "nonsense", "list": lambda record: "[1]", "half": lambda record: json.dumps(record)[:-3]}
ANY |= {
    "deep": deep("more"),
    "no step": less("step"),
    "step of text": other("step", "1"),
    "far step": other("step", 10**30),
}
ANY |= {"shallow": lambda record: json.dumps(record | {"more": json.loads("[" * 300 + "]" * 300)})}
DAMAGE: dict[str, dict[str, Callable[[dict[str, Any]], str]]] = {
    "metrics.jsonl": {
        "text": other("solver/reward", "x"),
        "list": other("solver/reward", [1]),
        "huge": other("a", 10**400),
    },
    "episodes.jsonl": {
        "no text": less("text"),
        "no role": less("role"),
        "text of text": other("text", "x"),
        "turns": other("text", {"turns": [{"kind": "sampled"}]}),
        "setting": other("text", {"setting": "harness"}),
        "reward": other("reward", "1"),
        "parts": other("parts", {"a": [1]}),
        "huge": other("parts", {"a": 10**400}),
        "tokens": other("tokens", None),
    },
    JUDGEMENTS: {"no replies": less("replies"), "replies": other("replies", [1]), "episode": less("episode")},
    TOKENS: {"rows": less("rows"), "episode": other("episode", -1)},
    EVALUATIONS: {"set": less("set"), "metrics": other("metrics", [1]), "taken": other("taken", {})},
}
ONCE = ("list", "deep", "step of text", "far step", "shallow")  # what one reader of lines finds in any file
CASES = [
    pytest.param(name, kind, marks=pytest.mark.slow if name != "metrics.jsonl" and kind in ONCE else [])
    for name, kinds in DAMAGE.items()
    for kind in (*ANY, *kinds)
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_damaged_line_is_named(name: str, kind: str, run: Path) -> None:
    lines = lines_of(run / name)
    lines[2] = (DAMAGE[name] | ANY if kind in ANY else DAMAGE[name])[kind](json.loads(lines[2]))
    written(run / name, lines)
    found = report(run)
    assert found.exit_code == 2, (found.output, found.exception)
    assert f"line 3 of {run / name}" in " ".join(found.stderr.split()) and "Traceback" not in found.stderr


MEASURES = {"measures": other("measures", {"a": []}), "large": other("measures", {"a": 1e200})}
MEASURES |= {"null": other("measures", {"a": None})}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in ("half", "measures") else pytest.mark.slow) for kind in (*ANY, *MEASURES)],
)
def test_a_damaged_line_ends_a_comparison(kind: str, run: Path, tmp_path: Path) -> None:
    lines = lines_of(run / EXAMS)
    lines[2] = (ANY | MEASURES)[kind](json.loads(lines[2]))
    written(run / EXAMS, lines)
    shutil.copytree(run, tmp_path / "other")
    found = report(run, tmp_path / "other")
    assert found.exit_code == 2, (found.output, found.exception)
    assert f"line 3 of {run / EXAMS}" in " ".join(found.stderr.split())


@pytest.mark.parametrize(
    "value",
    [
        *(1.7e308, 5e-324, float("nan")),
        *(pytest.param(one, marks=pytest.mark.slow) for one in (None, 1e100, -1e101, -1.7e308, float("inf"), 10**300)),
    ],
)
def test_any_number_can_be_drawn(value: float | None, run: Path, recwarn: pytest.WarningsRecorder) -> None:
    lines = [json.loads(line) for line in lines_of(run / "metrics.jsonl")]
    for name in ("solver/reward", "solver/grad_norm", "solver/identical_pairs", "solver/loss", "time/play"):
        for line, own in zip(lines, (0.5, value, 0.25), strict=True):
            line[name] = own
    written(run / "metrics.jsonl", [json.dumps(line) for line in lines])
    found = report(run)
    assert found.exit_code == 0, (found.output, found.exception)
    (run.parent / "other").mkdir()
    shutil.copyfile(run / "config.toml", run.parent / "other" / "config.toml")
    for line in lines:
        line |= {"eval/held/accuracy": value, "eval/held/accuracy_se": value}
    for folder in (run, run.parent / "other"):
        written(folder / "metrics.jsonl", [json.dumps(line) for line in lines])
    compared = report(run, run.parent / "other")
    assert compared.exit_code == 0, (compared.output, compared.exception)
    drawn = series(lines[:2], GAMES["ssp"].panels[1])["solver"][1] if isinstance(value, int | float) else [0.5]
    assert all(abs(each) <= 1e100 for each in drawn if each == each)


def test_a_record_that_no_reader_would_take_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lines, "LONGEST_LINE", 1 << 20)
    text, extent = run_lines.summed([{"step": 1, "text": "a" * (1 << 19)}], run_lines.Extent())
    assert extent.lines == 1 and len(text) > 1 << 19
    with pytest.raises(
        UserError, match="a record of 1 MiB does not fit into a line of a run's files, which may have 1"
    ):
        run_lines.summed([{"step": 1, "text": "a" * (1 << 20)}], run_lines.Extent())


def test_a_line_may_not_fill_the_memory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few MB of gzip may stand for any number of GB."""
    assert run_lines.LONGEST_LINE == 64 << 20
    monkeypatch.setattr(run_lines, "LONGEST_LINE", 1 << 20)
    with gzip.open(run / TOKENS, "wb", compresslevel=1) as file:
        file.write(b'{"step": 1, "episode": 0, "rows": ["')
        for _ in range(30):
            file.write(b" " * (1 << 20))
        file.write(b'"]}\n')
    report(run)  # imports what it needs
    tracemalloc.start()
    try:
        found, (_, peak) = report(run), tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.exit_code == 2 and peak < 15 << 20, (found.stderr, peak)
    assert f"line 1 of {run / TOKENS} is longer than 1 MiB" in found.stderr


def test_a_step_larger_than_what_is_kept_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lines, "LONGEST_LINE", 100)
    path = tmp_path / TOKENS
    for step in range(4):
        LineWriter(path).add({"step": step, "episode": n, "rows": []} for n in range(50))
    every = [(step, n) for step in range(4) for n in range(50)]
    assert [(line["step"], line["episode"]) for line in read_records(path)] == every
    whole = path.read_bytes()
    for cut in range(1, 60):
        path.write_bytes(whole[:-cut])
        assert [line["step"] for line in read_records(path)] == [0] * 50 + [1] * 50 + [2] * 50
    LineWriter(path).cut(1)
    assert {line["step"] for line in read_records(path)} == {0, 1}
    monkeypatch.setattr(run_lines, "LONGEST_LINE", 1000)
    LineWriter(path).add([{"step": 5, "episode": 0, "rows": ["x" * 200]}])
    monkeypatch.setattr(run_lines, "LONGEST_LINE", 100)
    with pytest.raises(UserError, match=rf"line 101 of .*{TOKENS} is longer"):
        list(read_records(path))


def test_runs_lists_a_run_with_any_line(run: Path) -> None:
    for text in ("[" * 9000, '{"step": 1e999}', '{"step": []}', "9" * 5000):
        (run / "metrics.jsonl").write_text('{"step": 2}\n' + text + "\n")
        found = CliRunner().invoke(cli.app, ["runs", str(run.parent), "--json"])
        assert found.exit_code == 0, found.exception
        assert [one["steps"] for one in json.loads(found.stdout)] == [2]


def test_an_address_is_said_when_it_answers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the server takes its time."""
    startup = live.uvicorn.Server.startup

    async def late(self: Any, sockets: list[socket.socket] | None = None) -> None:
        time.sleep(0.5)
        await startup(self, sockets)

    monkeypatch.setattr(live.uvicorn.Server, "startup", late)
    found: list[int] = []

    def tell(sentence: str) -> None:
        found.append(httpx.get(sentence.split()[0], trust_env=False, timeout=30).status_code)
        raise KeyboardInterrupt

    before = threading.active_count()
    live.watch(run, 0, tell)
    assert found == [200] and threading.active_count() < before + 10
