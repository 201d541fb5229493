"""A step of SPICE with the real tokenizer and learner: both roles' episodes train the one policy in one update."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from scope_jax.games import load_card
from scope_jax.play.game import play_step
from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.run.assemble import assemble
from scope_jax.train import learn
from tests.train import spice_card

FORMAT = json.dumps({"suitable_for_mcq": False, "suitable_for_free_form": True, "best_answer_type": "Integer"})
TASK = json.dumps({"question": "How many rivers?", "answer": 7, "answer_type": "Integer"})


def script(answers: Iterator[str], tasks: Iterator[str]) -> Any:
    def reply(prompt: str, turns: tuple[Any, ...]) -> str:
        if "Choose for:" in prompt:
            return FORMAT
        return next(tasks) if "Question of type" in prompt else next(answers)

    return reply


@pytest.mark.slow
def test_a_step_trains_both_roles_in_one_update(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = assemble(load_card(spice_card.written(tmp_path)), tmp_path / "run")
    answers, tasks = itertools.cycle([r"so \boxed{7}", "none"]), itertools.cycle([TASK, "I pass."])
    said = ScriptedRollouts(script(answers, tasks), trainer.world.tokenizer, max_length=512)
    world = trainer.world
    for name in ("interaction", "interact"):
        monkeypatch.setattr(world.local, name, getattr(said, name))
    states, memory, _ = trainer.start(None)
    world.sampler.publish(states)
    before = jax.device_get(states["actor"].params)

    episodes, after, metrics = play_step(world.game, world.cfg, world.tools(0), memory["game"], 0)
    assert after == {"drawn": 3} and metrics["challenger/attempts"] == 2.0
    assert [e.reward for e in episodes if e.role == "challenger"] == [1.0, -0.1] * 3  # p = 1/2, and the penalty
    assert [e.reward for e in episodes if e.role == "reasoner"] == [1.0, 0.0, 1.0, 0.0] * 3

    states, rated, _, learned = learn(trainer, states, episodes, {})
    assert [e.advantage for e in rated if e.role == "challenger"] == pytest.approx([0.55, -0.55] * 3)
    assert [e.advantage for e in rated if e.role == "reasoner"] == pytest.approx([0.5, -0.5, 0.5, -0.5] * 3)
    by_role = {f"{role}/mismatch_{name}@1k" for role in ("challenger", "reasoner") for name in ("kl", "bias")}
    assert {name for name in learned if not name.startswith("challenger+reasoner/")} == by_role
    assert learned["challenger+reasoner/skipped"] == 0 and learned["challenger+reasoner/grad_norm"] > 0
    moved = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - b).max()), states["actor"].params, before)
    assert max(jax.tree.leaves(moved)) > 0
    assert states["actor"].ref_params is None  # no KL term, no reference
