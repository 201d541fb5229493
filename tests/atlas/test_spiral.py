"""SPIRAL's small world: its rows, the habits of its base, and that the builder makes the committed files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scope_jax.games.spiral.rules import GAMES
from scope_jax.models.files import weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.text.parsing import boxed
from tools.atlas import spiral
from tools.atlas.facts import ASSETS

WORLD = ASSETS / "spiral"


def test_the_rows_of_the_exams_are_those_of_the_builder() -> None:
    for name, rows in spiral.positions().items():
        lines = (WORLD / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows
        for row in rows:
            assert GAMES[row["game"]](row["deal"], tuple(row["moves"])).lead is None


def test_the_demonstrations_have_the_habits() -> None:
    rng = np.random.default_rng(1)
    games = [*spiral.games(300, rng)]
    assert Counter(name for name, _, _ in games) == dict.fromkeys(GAMES, 100)
    scripts = [*spiral.demonstrations(300, rng)]
    said = [script.parts[0][0] for script in scripts]
    assert abs(sum("boxed" not in text for text in said) / len(said) - spiral.HABITS["no box"]) < 0.02
    turns = [(s.message, boxed(s.parts[0][0])) for s in scripts if s.message[0] in "XO" and boxed(s.parts[0][0])]
    taken = sum(cell not in board for board, cell in turns if cell) / len(turns)
    assert 0.03 < taken < spiral.HABITS["taken"], "some draw a cell that is taken"


def test_the_base_is_small_and_its_tokenizer_keeps_actions_whole() -> None:
    tokenizer = Tokenizer.load(WORLD / "base")
    model, params = weights.load_hf(WORLD / "base")
    assert model.num_layers == spiral.LAYERS
    assert sum(file.stat().st_size for file in (WORLD / "base").iterdir()) < 3_000_000
    for name, count in (("check", 3), ("4", 3), ("offer: 3 wood -> 2 gold", 10)):
        ids = tokenizer.encode(f"\\boxed{{{name}}}")
        assert len(ids) == count and tokenizer.decode(ids) == f"\\boxed{{{name}}}"
    assert len(params) > 0


@pytest.mark.slow
def test_a_second_build_has_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spiral, "GAMES_SHOWN", 60)
    monkeypatch.setattr(spiral, "STEPS", 12)
    for name in ("one", "two"):
        spiral.build(tmp_path / name)
    for file in (tmp_path / "one").rglob("*.*"):
        assert file.read_bytes() == (tmp_path / "two" / file.relative_to(tmp_path / "one")).read_bytes(), file
