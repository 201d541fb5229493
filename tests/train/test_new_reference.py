"""A game may give its losses a new reference: a copy of a policy's weights, which all states share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.errors import UserError
from scope_jax.games.r_zero.game import GAME
from scope_jax.learner.learner import Learner
from scope_jax.learner.state import TrainState
from scope_jax.run import card_rules
from scope_jax.run.assemble import Trainer
from scope_jax.run.opened import OpenedCard
from scope_jax.run.world import World
from tests.games.r_zero_world import card


def trainer(cfg: Any) -> Trainer:
    learner = Mock(spec=Learner, adapter=None, layout=SimpleNamespace(reference_dtype=jnp.bfloat16))
    return Trainer(Mock(spec=World, cfg=cfg, game=GAME), learner)


def states() -> dict[str, TrainState]:
    zero, base = jnp.int32(0), {"w": jnp.zeros(3, jnp.bfloat16)}
    return {
        name: TrainState(zero, zero, {"w": jnp.full(3, value)}, {}, base)
        for name, value in (("challenger", 1.0), ("solver", 2.0))
    }


def test_the_weights_of_the_policy_whose_phase_begins_become_the_reference_of_all() -> None:
    cfg, before = card(), states()
    memory = GAME.start(cfg) | {"phase": "solver", "items": [{}]}
    after = trainer(cfg).with_new_reference(before, memory)
    reference = after["challenger"].ref_params
    assert after["solver"].ref_params is reference and reference["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(reference["w"], np.float32), 2.0)
    before["solver"].params["w"].delete()  # as an update does, which takes the buffers of the weights
    np.testing.assert_array_equal(np.asarray(reference["w"], np.float32), 2.0)


@pytest.mark.parametrize(
    ("changes", "memory"),
    [({}, {"phase": "pool"}), ({}, {"phase": "solver", "place": 1}), ({"reference": "base"}, {"phase": "solver"})],
)
def test_otherwise_it_stays(changes: dict[str, Any], memory: dict[str, Any]) -> None:
    cfg, before = card(**changes), states()
    assert trainer(cfg).with_new_reference(before, GAME.start(cfg) | memory) is before


def test_a_base_that_grades_exams_cannot_be_replaced() -> None:
    exams = {"sets": [{"name": "s", "path": "none", "measures": ["rubric"]}]}
    grader = {"temperature": 0.0, "max_tokens": 8}
    with pytest.raises(UserError, match=r"R-Zero replaces it as reference; give \[evaluate.grader\] an endpoint"):
        card_rules.reference(OpenedCard(card(evaluate=exams | {"grader": grader})))
    card_rules.reference(OpenedCard(card(evaluate=exams | {"grader": grader}, reference="base")))
    card_rules.reference(OpenedCard(card()))
