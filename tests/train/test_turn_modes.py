"""A whole step of the demo with turns joined by the template: engine and learner agree, and every row is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scope_jax.games import load_card
from scope_jax.play.game import play_step
from scope_jax.run.assemble import assemble
from scope_jax.train import learn

SMALL = ("train.batch_size=4", "rollout.slots=16", "evaluate.sets=[]", "ssp.solver.samples=2")


@pytest.mark.slow  # two steps of the demo with new programs to compile
@pytest.mark.parametrize(("mode", "rows"), [("chat", {1}), ("chat-trimmed", {1, 2})])
def test_a_step(tmp_path: Path, mode: str, rows: set[int]) -> None:
    trainer = assemble(load_card("configs/ssp/atlas.toml", (*SMALL, f"model.turns={mode}")), tmp_path)
    world = trainer.world
    states, remembered, _ = trainer.start(None)
    memory = remembered["game"]
    world.sampler.publish(states)
    episodes, _, metrics = play_step(world.game, world.cfg, world.tools(0), memory, 0)
    searched = [e for e in episodes if any(turn["kind"] == "observation" for turn in e.text["turns"])]
    assert metrics["proposer/searches"] > 0
    assert searched and {min(len(e.datums), 2) for e in episodes} == rows
    for episode in episodes:
        turns = [turn["text"] for turn in episode.text["turns"] if turn["kind"] == "sampled"]
        written = [world.tokenizer.decode(d.ids_T[d.sampled_T].tolist(), skip_special=True) for d in episode.datums]
        assert "".join(written) == "".join(turns)
        if mode == "chat-trimmed":
            assert written == turns
            later = [world.tokenizer.decode(d.ids_T[~d.sampled_T].tolist()) for d in episode.datums[1:]]
            assert all("<information>" in text for text in later)
            assert all(text.count("<think>") == thought_tags_in_prompt(episode.datums[0], world) for text in later)
    _, rated, _, metrics = learn(trainer, states, episodes, remembered["baselines"])
    assert all(np.isfinite(e.advantage) for e in rated if e.trained and e.advantage is not None)
    mismatches = [metrics[name] for role in ("solver", "proposer") if (name := f"{role}/mismatch_max") in metrics]
    assert mismatches[0] < 1e-4  # of the first update only, as the second has changed weights; dummies have none


def thought_tags_in_prompt(datum, world) -> int:
    """How often <think> occurs in the prompt itself, which explains the format."""
    first = int(np.flatnonzero(datum.sampled_T)[0])
    return world.tokenizer.decode(datum.ids_T[:first].tolist()).count("<think>")
