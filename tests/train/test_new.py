"""Games that read no data: a card that `new` writes is checked, and trains a step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.train import runs

pytestmark = pytest.mark.slow

ATLAS = runs.ROOT / "assets" / "atlas"
# Shorter than what is usual: Atlas's models read 1024 tokens.
SHORT = {
    "absolute_zero": (
        "train.batch_size=2",
        "absolute_zero.seeds=3",
        "absolute_zero.inputs=6",
        "absolute_zero.estimates=2",
        "absolute_zero.max_prompt_tokens=128",
        "absolute_zero.sampling={max_tokens=64, max_response_tokens=64}",
    ),
    "spiral": (
        "spiral.turns=16",
        "spiral.kuhn_hands=1",
        "spiral.sampling={max_tokens=14, max_response_tokens=28}",
    ),
}
EXAM = {"absolute_zero": "deduction.jsonl", "spiral": "kuhn_random.jsonl"}


@pytest.mark.parametrize("game", SHORT)
def test_a_new_card_trains_a_step(tmp_path: Path, game: str) -> None:
    card, run, world = tmp_path / "card.toml", tmp_path / "run", ATLAS / game
    limits = ("rollout.slots=8", "learner.micro_batch_rows=4", "learner.logprob_chunk=128", "evaluate.max_tokens=16")
    sets = [*SHORT[game], *limits, f"{game}.prompts={ATLAS / 'prompts' / game}"]
    words = ["--game", game, "--model", str(world / "base"), "--exam", str(world / EXAM[game])]
    words += ["--steps", "1", "--max-length", "256"]
    program = [sys.executable, "-m", "scope_jax"]
    runs.finish([*program, "new", str(card), *words, *(part for one in sets for part in ("--set", one))])
    runs.finish([*program, "check", str(card)])
    runs.finish([*program, "train", str(card), "--run", str(run)])
    records = runs.lines(run, "metrics.jsonl")
    assert runs.saved(run) == [1] and any(name.startswith("eval/held_out/") for name in records[-1])
    assert any(episode["trained"] for episode in runs.lines(run, "episodes.jsonl"))
