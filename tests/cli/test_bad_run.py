"""Runs that cannot start because an input is broken: one error message, exit code 2, no partial output."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from scope_jax.cli import app

ATLAS = Path("assets/atlas")


def refused(run: Path, *overrides: str) -> str:
    """The error of `train` on Atlas with these overrides, which must leave no state behind."""
    words = ["train", "configs/ssp/atlas.toml", "--run", str(run)]
    for override in overrides:
        words += ["--set", override]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    sentences = [line for line in result.stderr.splitlines() if line.startswith("scope-jax: ")]
    assert len(sentences) == 1, result.stderr
    assert "Traceback" not in result.stderr
    left = {path.name for path in run.iterdir()} if run.exists() else set()
    assert not left & {"metrics.jsonl", "episodes.jsonl", "report"}
    assert not list((run / "checkpoints").glob("*"))
    return sentences[0]


def test_truncated_safetensors(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(ATLAS / "ssp" / "base", base)
    weights = base / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    text = refused(tmp_path / "run", f"model.checkpoint={base}")
    assert "model.safetensors" in text


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_clone_without_git_lfs(tmp_path: Path, name: str) -> None:
    shutil.copytree(ATLAS / "ssp" / "base", tmp_path / "base")
    (tmp_path / "base" / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    text = refused(tmp_path / "run", f"model.checkpoint={tmp_path / 'base'}")
    assert f"{name} is a pointer of Git LFS and not the file; run `git lfs pull` in its folder" in text


@pytest.mark.slow  # evaluation/test_weights.py has one, too
def test_a_checkpoint_with_a_nan(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(ATLAS / "ssp" / "base", base)
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.weight"][7] = float("nan")
    save_file(tensors, base / "model.safetensors")
    text = refused(tmp_path / "run", f"model.checkpoint={base}")
    assert "model.safetensors: model.norm.weight holds values that are NaN or infinite" in text
    out = tmp_path / "out"
    again = CliRunner().invoke(app, ["convert", str(base), str(out), "--to", "hf"])
    assert again.exit_code == 2 and "model.norm.weight holds values that are NaN" in again.stderr and not out.exists()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("config.json", lambda contents: [contents], "config.json does not hold a JSON object"),
        ("config.json", lambda contents: contents | {"hidden_size": "128"}, "field 'hidden_size' is \"128\""),
        ("config.json", lambda contents: contents | {"num_hidden_layers": 0}, "field 'num_hidden_layers' is 0"),
        ("config.json", lambda contents: contents | {"num_hidden_layers": -1}, "field 'num_hidden_layers' is -1"),
        ("model.safetensors.index.json", lambda _: {"weight_map": {"a": "../x"}}, "names '../x'"),
        ("model.safetensors.index.json", lambda _: {"weight_map": {"a": "/etc/passwd"}}, "names '/etc/passwd'"),
        ("seal.json", lambda _: [], "seal.json is damaged"),
        ("seal.json", lambda _: {}, "seal.json is damaged"),
    ],
)
def test_model_folder_with_invalid_fields(tmp_path: Path, name: str, change: Callable[[Any], Any], words: str) -> None:
    base = tmp_path / "base"
    shutil.copytree(ATLAS / "ssp" / "base", base)
    contents = json.loads((base / name).read_text()) if (base / name).is_file() else {}
    (base / name).write_text(json.dumps(change(contents)))
    if name == "model.safetensors.index.json":  # it is read where the weights are not in one file
        (base / "model.safetensors").rename(base / "one.safetensors")
    text = refused(tmp_path / "run", f"model.checkpoint={base}")
    assert words in text and str(base) in text


def test_missing_checkpoint(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refused(tmp_path / "run", f"model.checkpoint={tmp_path / 'none'}")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param(['{"title": "A", "text": "a"}', '{"title": "B", "te'], "line 2", id="a line that is not JSON"),
        pytest.param([], "empty", id="no line at all"),
        pytest.param(['{"heading": "A"}'], "line 1", id="a passage without text"),
    ],
)
def test_broken_corpus(tmp_path: Path, lines: list[str], words: str) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(line + "\n" for line in lines))
    text = refused(tmp_path / "run", f"retrieval.corpus={corpus}")
    assert str(corpus) in text
    assert words in text.lower()
    assert not (tmp_path / "run" / "index").exists()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param([json.dumps({"answer": "Oslo"}), "{"], "line 2", id="a line that is not JSON"),
        pytest.param([], "empty", id="no line at all"),
        pytest.param([json.dumps({"reply": "Oslo"})], "`answer`", id="no answer"),
    ],
)
def test_broken_answers(tmp_path: Path, lines: list[str], words: str) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(line + "\n" for line in lines))
    text = refused(tmp_path / "run", f"data.answers={answers}")
    assert str(answers) in text
    assert words in text.lower()


def test_unreachable_judge(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        asked = (f'judge={{url = "{url}", model = "m"}}', "ssp.grader=judge", "ssp.prompts=scope_jax/games/ssp/prompts")
        text = refused(tmp_path / "run", *asked)
    assert url in text
    assert "cannot be reached" in text
