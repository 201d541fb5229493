"""Two commands that write one output: the second is refused in one sentence, or the output is one's, whole."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.data import conversion
from scope_jax.files import alone
from scope_jax.models.files import weights

BASE = Path("assets/atlas/ssp/base")


def run(*words: object) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


@contextmanager
def written(path: Path) -> Iterator[None]:
    """As if another process were writing it."""
    code = (
        "import sys; from pathlib import Path; from scope_jax.files import alone\n"
        "with alone(Path(sys.argv[1])):\n print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None and other.stdout.readline() == "held\n"
        yield
        other.stdin.close()


def refusals(tmp_path: Path) -> dict[str, tuple[Path, tuple[object, ...]]]:
    """By command: the output, and the words."""
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"answer": "Rome"}) + "\n")
    source = tmp_path / "nq.jsonl"
    source.write_text(json.dumps({"question": "Who?", "answer": ["é"]}) + "\n")
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": "Rome lies on the Tiber."}) + "\n")
    card, out, model, found = (tmp_path / name for name in ("card.toml", "out.jsonl", "model", "found.jsonl"))
    new = ("--game", "ssp", "--model", BASE, "--data", answers, "--corpus", tmp_path / "corpus.jsonl")
    return {
        "data": (out, ("data", "nq", out, "--source", source)),
        "new": (card, ("new", card, *new)),
        "convert": (model, ("convert", BASE, model, "--to", "hf")),
        "eval": (found, ("eval", BASE, "--card", "configs/ssp/atlas.toml", "--records", found)),
    }


@pytest.mark.parametrize("command", ["data", "new", "convert", "eval"])
def test_the_second_is_refused(command: str, tmp_path: Path) -> None:
    out, words = refusals(tmp_path)[command]
    before = {path.name for path in tmp_path.iterdir()}
    with written(out):
        refused = run(*words)
        assert refused.exit_code == 2, (refused.output, refused.exception)
        assert f"another process is writing {out}" in " ".join(refused.stderr.split())
        assert not out.exists()
    assert {path.name for path in tmp_path.iterdir()} == before
    if command != "eval":  # which takes a minute
        made = run(*words)  # `new` also opens what the card names, finds so small a corpus wrong, and keeps no card
        assert (made.exit_code == 0) == out.exists() == (command != "new"), made.output
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".") or "partial" in path.name]


def test_success_is_said_of_ones_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two conversions to one file at the same time, also where the file system has no locks."""
    sources = []
    for name in "ab":
        sources.append(tmp_path / f"{name}.jsonl")
        sources[-1].write_text((json.dumps({"question": f"{name}?", "answer": [name]}) + "\n") * 50)
    both, out, stream = threading.Barrier(2, timeout=60), tmp_path / "out.jsonl", conversion._stream

    def together(*arguments: Any) -> None:
        stream(*arguments)
        both.wait()  # both have written all rows, and none has renamed its file

    monkeypatch.setattr(conversion, "_stream", together)
    monkeypatch.setattr("scope_jax.files._locked", lambda place, path: None)

    def convert(source: Path) -> dict[str, Any]:
        return conversion.convert("nq", out, [str(source)], split=None, hub_config=None, baseline=None)

    with ThreadPoolExecutor(2) as pool:
        manifests = list(pool.map(convert, sources))
    digests = [manifest["sha256"] for manifest in manifests]
    assert len(set(digests)) == 2 and hashlib.sha256(out.read_bytes()).hexdigest() in digests
    lines = [json.loads(line)["answers"] for line in out.read_text().splitlines()]
    assert len(lines) == 50 and lines == [lines[0]] * 50
    for manifest, source in zip(manifests, sources, strict=True):  # what each was told is what it wrote
        again = tmp_path / "again.jsonl"
        assert conversion_of(source, again, monkeypatch, stream) == manifest["sha256_of_lines"]


def conversion_of(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, stream: Any) -> str:
    monkeypatch.setattr(conversion, "_stream", stream)
    return conversion.convert("nq", out, [str(source)], split=None, hub_config=None, baseline=None)["sha256_of_lines"]


def test_an_export_leaves_nothing_and_removes_what_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    left = [tmp_path / f".model.{name}" for name in ("new-17", "old-17", "newer", "old-x")]
    for path in left:
        (path / "deep").mkdir(parents=True)
    with pytest.raises(FileNotFoundError), weights.whole_folder(model) as new:
        (new / "nothing").read_text()
    assert all(path.exists() for path in left) and not model.exists()
    monkeypatch.setattr(weights, "STALE", -1.0)
    for _ in range(2):
        with weights.whole_folder(model) as new:
            shutil.copyfile(BASE / "config.json", new / "config.json")
    assert [path.exists() for path in left] == [False, False, True, True]  # other names are other people's
    with alone(model), pytest.raises(Exception, match="another process is writing"), weights.whole_folder(model):
        raise AssertionError
