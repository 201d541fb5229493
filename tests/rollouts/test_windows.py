"""Sliding layers keep the pages of their window, and the tokens are the same as with everything kept."""

from dataclasses import replace

import numpy as np
import pytest

from scope_jax.models.decoder.paging import PAGE, SHARED, layer_groups
from scope_jax.rollouts.budget import page_bytes
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.types import Continuation
from tests.rollouts.world import CFG, ENGINE, bits, make_engine, make_paged, make_params, make_rollouts, request
from tests.rollouts.world import trainer_logprobs as learner_logprobs
from tests.shapes import like

WINDOW = 40
SLIDING = like(CFG, num_layers=3, layer_windows=(WINDOW, WINDOW, None))
LENGTH = 448
LONG = replace(ENGINE, slots=4, max_length=LENGTH, prefill_tokens=64)


@pytest.fixture(scope="module")
def weights():
    return make_params(SLIDING)


@pytest.fixture(scope="module")
def engine():
    return make_paged(LONG, SLIDING)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


def asked() -> list:
    """Prompts shorter and longer than the window, two of them equal; greedy, as engines differ in rounding. The first
    four grow by several pages at the same time."""
    prompts = [tokens(20), tokens(300, 1), tokens(300, 1), tokens(130, 2), [*tokens(256, 1), 3, 4, 5]]
    grow = [request(tokens(9, 20 + i), key=i, temperature=0.0, max_tokens=250, stop_ids=()) for i in range(4)]
    ask = [request(ids, key=i, temperature=0.0, max_tokens=90, stop_ids=()) for i, ids in enumerate(prompts)]
    return [*grow, *ask, *(replace(one, respond=cut) for one in ask[:3])]


def cut(turns):
    """After the first turn, keeps 3 of its 90 tokens: the window lies before the turn again."""
    sampled = [turn for turn in turns if turn.kind == "sampled"]
    return Continuation(tokens(50, 9), "", kept=3) if len(sampled) == 1 else None


@pytest.fixture(scope="module")
def said(engine, weights):
    return make_rollouts(engine, weights).run([replace(one, max_turns=2) for one in asked()])


def test_a_page_is_one_layer_of_each_group():
    assert [group.layers for group in layer_groups(SLIDING)] == [(0,), (1,), (2,)]
    olmo = like(CFG, num_layers=8, layer_windows=(4096, 4096, 4096, None) * 2)
    assert layer_groups(olmo) == ((4096, (0, 1), 0), (4096, (2, 4), 0), (4096, (5, 6), 0), (None, (3, 7), 0))
    mixer = olmo.layers[0].attention
    assert page_bytes(olmo, np.float32, 1) == (2 * 2 * mixer.num_kv_heads * mixer.head_dim * PAGE * 4,)
    assert layer_groups(CFG) == ((None, (0, 1), 0),)


def test_the_log_probs_are_the_learners(weights, said):
    for ours in said:
        expected = learner_logprobs(weights, ours, 1.0, SLIDING, LENGTH)[ours.sampled_T]
        np.testing.assert_allclose(ours.logprobs_T[ours.sampled_T], expected, atol=1e-5, rtol=0)
    assert len(said[-1].turns) == 3 and len(said[-1].ids_T) == 3 + 50 + 90


@pytest.mark.slow
def test_the_completions_are_the_other_engines(weights, said):
    columns = make_rollouts(make_engine(LONG, SLIDING), weights).run([replace(one, max_turns=2) for one in asked()])
    for ours, theirs in zip(said, columns, strict=True):
        assert ours.ids_T.tolist() == theirs.ids_T.tolist()
        np.testing.assert_allclose(ours.logprobs_T, theirs.logprobs_T, atol=1e-5, rtol=0)


def test_with_few_pages_the_same_bits(weights, said, monkeypatch):
    aside = []
    set_aside = Engine.set_aside
    monkeypatch.setattr(Engine, "set_aside", lambda self, *given: aside.append(given) or set_aside(self, *given))
    least = 1 + 3 * (SHARED.count(LENGTH) + 2)
    few = make_rollouts(make_paged(LONG, SLIDING, pages=least), weights)
    again = few.run([replace(one, max_turns=2) for one in asked()])
    assert [bits(c) for c in again] == [bits(c) for c in said]
    assert aside and few._state.pools[0].used == 0 and few._state.pools[0].available() == least - 1


def test_a_sliding_layer_holds_its_window_and_what_a_dispatch_adds(weights, engine, monkeypatch):
    """Pages of a row of 300 tokens that grows by 90, by layer, while its prompt is computed and while it decodes."""
    most = {"append": np.zeros(3, int), "generate": np.zeros(3, int)}
    rollouts = make_rollouts(engine, weights)
    state = rollouts._state = engine.init_decode_state()
    for name, counts in most.items():

        def watched(*given, name=name, counts=counts, program=getattr(engine.jitted, name)):
            np.maximum(counts, np.count_nonzero(state.table, axis=2).max(axis=0), out=counts)
            return program(*given)

        monkeypatch.setattr(engine.jitted, name, watched)
    rollouts.run([request(tokens(300, 5), max_tokens=90, stop_ids=())])
    # 39 tokens before a block of 64 that begins with a page, and before 4 tokens anywhere, lie in two pages at most.
    assert most["append"].tolist() == [2, 2, SHARED.count(299)]
    assert most["generate"].tolist() == [2, 2, SHARED.count(389)]
    assert SHARED.touched(WINDOW - 1 + ENGINE.decode_steps) == 2


def test_a_long_prompt_is_found_by_the_window_before_its_end(weights, engine):
    rollouts = make_rollouts(engine, weights)
    rollouts.run([request(tokens(300, 1), max_tokens=2)])
    state = rollouts._state
    assert state.computed_tokens == 299
    rollouts.run([request(tokens(300, 1), max_tokens=2)])
    assert state.computed_tokens == 299
    rollouts.run([request([*tokens(256, 1), *tokens(60, 8)], max_tokens=2)])  # behind four pages it is another prompt
    assert state.computed_tokens == 299 + 59
