"""The commands that open a model folder refuse hostile files as the loaders do: one sentence, soon, nothing written."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from tests.models.hostile_files import BASE, CASES

CARD = "configs/ssp/atlas.toml"
EXAM = 'evaluate.sets=[{name="few", path="assets/atlas/questions_held_out.jsonl", limit=2}]'
SAMPLE = (
    "config.json: 2,000 layers of 10,000 experts",
    "config.json: 100,000 brackets",
    "config.json: a head of 2^31",
    "safetensors: 40 MiB of header",
    "tokenizer.json: an id of 2^31",
    "tokenizer.json: an added id that the library changes",
    "tokenizer.json: a normaliser that doubles",
    "beside it: a million ends",
    "stated template: a number",
    "template: loops in loops",
    "template: a string that doubles",
)


@pytest.fixture(scope="module", autouse=True)
def _imports() -> None:
    """What the first command imports is not counted among a file's seconds."""
    assert CliRunner().invoke(app, ["check", CARD]).exit_code == 0


DOORS = ("check", "serve", "chat", "eval", "train")
EVERYWHERE = ("tokenizer.json: an id of 2^31", "stated template: a number")  # cases that are tried at every door
LONG = ("template: loops in loops", "config.json: 2,000 layers of 10,000 experts")
PAIRS = [
    pytest.param(
        case, door, marks=[] if case in EVERYWHERE or (door == "check" and case not in LONG) else pytest.mark.slow
    )
    for case in SAMPLE
    for door in DOORS
]


def commands(folder: Path) -> dict[str, list[str]]:
    return {
        "check": ["check", CARD, "--set", f"model.checkpoint={folder}"],
        "serve": ["serve", str(folder), "--port", "0"],
        "chat": ["chat", str(folder)],
        "eval": ["eval", str(folder), "--card", CARD, "--set", EXAM],
        "train": ["train", CARD, "--set", f"model.checkpoint={folder}", "--run", str(folder.parent / "run")],
    }


@pytest.mark.parametrize(("case", "door"), PAIRS)
def test_a_hostile_folder_is_refused_at_every_door(case: str, door: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    CASES[case][1](folder)
    before = time.process_time()
    result = CliRunner().invoke(app, commands(folder)[door])
    assert result.exit_code == 2, (result.output, result.exception)
    assert time.process_time() - before < 10
    lines = [line for line in result.stderr.splitlines() if line.startswith("scope-jax: ")]
    if door == "check":
        lines = [line for line in result.stdout.splitlines() if line.startswith("WRONG")]
    assert lines and all(len(line) < 600 for line in lines) and (door == "check" or len(lines) == 1)
    assert "Traceback" not in result.output
    assert not list((folder.parent / "run").glob("checkpoints/*"))
