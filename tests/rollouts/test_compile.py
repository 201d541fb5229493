"""An engine's programs are compiled once each, before the first request, and its weights come from stacks unchanged."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from scope_jax.rollouts.slots import Placement
from scope_jax.run.programs import programs
from scope_jax.sharding.program import name_of
from tests.rollouts.test_columns import MIXED
from tests.rollouts.test_states import HYBRID
from tests.rollouts.world import CFG, ENGINE, make_paged, make_params, new_engine, request

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("cfg", "columns", "drafts"),
    [
        pytest.param(CFG, True, 0, id="plain-a page for each slot", marks=SLOW),
        pytest.param(CFG, False, 0, id="plain-shared pages"),
        pytest.param(CFG, False, 3, id="drafts", marks=SLOW),
        pytest.param(HYBRID, False, 0, id="states-shared pages", marks=SLOW),
        pytest.param(HYBRID, True, 0, id="states-a page for each slot", marks=SLOW),
    ],
)
def test_nothing_is_compiled_after_the_start(cfg, columns, drafts):
    engine = new_engine(replace(ENGINE, draft_tokens=drafts), cfg, columns)
    weights = engine.take_params(make_params(cfg))
    before = programs().finished.copy()
    state = engine.compile(weights, engine.init_decode_state(), extends=True)
    compiled = programs().finished - before
    assert [compiled[name_of(program.function)] for program in engine.programs()] == [1, 1]

    state = engine.insert(state, [Placement(3, np.arange(20), 40, request("x").params, np.zeros(2, np.uint32))])
    state, _ = engine.advance(weights, state)
    state, result = engine.generate(weights, state)
    assert engine.read(state, result, [3]).counts_S[3] > 0
    if drafts:
        state, result = engine.generate(weights, state, drafts={3: [1, 2]})
        assert engine.read(state, result, [3]).counts_S[3] > 0
    assert programs().finished - before == compiled


@pytest.mark.parametrize("cfg", [CFG, MIXED, HYBRID], ids=["plain", "windows", "states"])
def test_weights_that_are_taken_are_those_that_are_copied(cfg):
    engine = make_paged(cfg=cfg)
    params = make_params(cfg)
    copied = engine.load_params(params)
    taken = engine.take_params(params)
    assert jax.tree.structure(copied) == jax.tree.structure(taken)
    pairs = zip(jax.tree.leaves(copied), jax.tree.leaves(taken), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)
    assert all(weight.is_deleted() for weight in jax.tree.leaves(params["layers"]))
