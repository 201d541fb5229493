"""Sizes of a new card follow the memory: by the arithmetic of the plan, and no smaller than needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.games import load_card
from scope_jax.models.files.families import from_hf
from scope_jax.plan.planning import Planner
from scope_jax.plan.sizes import DEFAULTS, FEW, LENGTH, ROWS, SLOTS, sizes_that_fit
from tests.plan.world import CARD, MODEL, absent

ALL = (SLOTS, ROWS, LENGTH)
LARGE = ("rollout.max_length=4096", "learner.buckets=[4096]", "rollout.slots=64", "learner.micro_batch_rows=8")


def sized(gib: float, chosen: tuple[str, ...] = ALL) -> tuple[int, int, int, str]:
    """(slots, rows, length) that were chosen, and the sentence."""
    model, on = from_hf(MODEL), absent(1, gib)
    cfg, sentence = sizes_that_fit(load_card(Path(CARD), LARGE), model, on, chosen)
    needs = Planner(model, on).needs(cfg)
    assert (needs.peak.total <= Planner(model, on).limit) == (not sentence.startswith(DEFAULTS))
    rows = cfg.learner.micro_batch_rows
    assert isinstance(rows, int) and cfg.learner.buckets == (cfg.rollout.max_length,)
    return cfg.rollout.slots, rows, cfg.rollout.max_length, sentence


def test_slots_rows_and_lengths_follow_the_memory() -> None:
    assert sized(8)[:3] == (64, 8, 4096)
    slots, rows, length, sentence = sized(1)
    assert (slots, rows, length) == (32, 2, 4096)
    assert sentence.endswith("(rollout.slots = 32, of 4096 tokens; micro-batches of 2 rows, of up to 4096 tokens)")
    assert sized(0.4)[:3] == (FEW, 1, 2048)
    assert sized(0.2)[:3] == (FEW, 1, 1024)


def test_sizes_that_are_given_stay() -> None:
    slots, _, length, _ = sized(0.5, (SLOTS, ROWS))
    assert slots < 64 and length == 4096
    slots, rows, length, _ = sized(0.5, (ROWS, LENGTH))
    assert (slots, rows) == (64, 1) and length < 4096


def test_a_card_for_a_larger_machine_has_the_defaults() -> None:
    slots, rows, length, sentence = sized(0.05)
    assert (slots, rows, length) == (64, 8, 4096) and "the smallest need at least 0.16 GiB in the phase" in sentence


def test_new_writes_sizes_that_fit_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spiral = Path("assets/atlas/spiral")
    words = ["--game", "spiral", "--model", str(spiral / "base"), "--exam", str(spiral / "kuhn_random.jsonl")]

    def written(name: str, gib: float, *more: str) -> tuple[int, int, str]:
        monkeypatch.setattr("scope_jax.plan.sizes.hardware", lambda on, compiled: absent(1, gib))
        card = tmp_path / name
        done = CliRunner().invoke(app, ["new", str(card), *words, *more])
        assert done.exit_code == 0, done.stderr
        rollout = load_card(card, ()).rollout
        return rollout.slots, rollout.max_length, done.stderr

    slots, length, said = written("large.toml", 64)
    assert (slots, length) == (64, 1024) and "rollout.slots = 64, of 1024 tokens" in said
    fewer, length, said = written("small.toml", 0.06)
    assert fewer < 64 and f"rollout.slots = {fewer}, of {length} tokens" in said
    assert written("given.toml", 0.06, "--set", "rollout.slots=48")[0] == 48
