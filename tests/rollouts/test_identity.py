"""A completion depends on the weights and its request only, and its log-probs are the learner's."""

import dataclasses
import gc

import jax
import numpy as np
import pytest

from scope_jax.models.decoder.columns import Columns
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.loop import DecodeLoop
from scope_jax.rollouts.slots import Placement
from tests.rollouts.world import (
    CFG,
    ENGINE,
    EOS,
    PAD,
    ByteTokenizer,
    bits,
    make_engine,
    make_paged,
    make_rollouts,
    mixed,
    request,
    trainer_logprobs,
)


@pytest.fixture(scope="module")
def together(rollouts):
    return rollouts.run(mixed(32))


def test_thirty_two_requests_sample_different_tokens(together):
    assert len({bits(c) for c in together}) == 32
    assert {c.finish_reason for c in together} >= {"length"}
    assert len({len(c.ids_T) for c in together}) > 10


def test_alone_in_eight_and_in_thirty_two(rollouts, together):
    requests = mixed(32)
    eight = [c for first in range(0, 32, 8) for c in rollouts.run(requests[first : first + 8])]
    alone = [rollouts.run([r])[0] for r in requests]
    assert [bits(c) for c in eight] == [bits(c) for c in together]
    assert [bits(c) for c in alone] == [bits(c) for c in together]


def test_any_order_any_slot(rollouts, together):
    requests = mixed(32)
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(32)
        shuffled = rollouts.run([requests[i] for i in order])
        assert [bits(c) for c in shuffled] == [bits(together[i]) for i in order]


class Once:
    """A driver of one request."""

    immediate = True

    def __init__(self, one):
        self.one = one

    def advance(self, spoken):
        return {} if spoken else {"agent": self.one}


def test_work_that_is_taken_as_slots_are_free_changes_nothing(rollouts, together):
    interactions, open_ = [rollouts.interaction(Once(one)) for one in mixed(32)], []

    def more():
        for one in interactions[6:]:
            over, begun = rollouts.counts
            open_.append(begun - over)
            yield [one]

    rollouts.interact(interactions[:6], "", more())
    assert [bits(each.completions()["agent"]) for each in interactions] == [bits(c) for c in together]
    assert max(open_) == ENGINE.slots - 1  # none is taken before there is a slot for it


def test_an_unrelated_request_changes_nothing(rollouts, together):
    requests = mixed(32)
    for i in (0, 5, 17):
        other = request(range(1, 70), key=99, temperature=2.0, top_k=3, top_p=0.5, tempered_logprobs=True)
        changed = rollouts.run([*requests[:i], other, *requests[i + 1 :]])
        assert bits(changed[i]) != bits(together[i])
        assert [bits(c) for j, c in enumerate(changed) if j != i] == [bits(c) for j, c in enumerate(together) if j != i]


@pytest.mark.slow  # the quick suite has another length with shared pages, in test_pages.py
def test_the_number_of_steps_in_a_dispatch_changes_nothing(params, together):
    one = make_rollouts(make_engine(dataclasses.replace(ENGINE, decode_steps=7)), params)
    assert [bits(c) for c in one.run(mixed(32))] == [bits(c) for c in together]


def test_equal_prompts_are_computed_once_and_change_nothing(engine, params):
    """In slots that hold others at the same time, in slots that held them before, and in fewer slots than there are
    samples; each page of a slot is the row's alone."""
    rollouts = make_rollouts(engine, params)
    lengths, draw = (2, 65, 100, 130), np.random.default_rng(0)
    prompts = [draw.integers(0, 256, length).tolist() for length in lengths]
    asked = [request(prompts[g], key=s, group=str(g), max_tokens=2 + 5 * s) for g in range(4) for s in range(6)]
    group = rollouts.run(asked)
    state = rollouts._state
    assert state.prompt_tokens == 6 * (sum(lengths) - 4)
    assert sum(lengths) - 4 <= state.computed_tokens < 2 * sum(lengths)
    alone = []
    for one in asked:
        rollouts.clear()
        alone += rollouts.run([one])
    assert [bits(c) for c in group] == [bits(c) for c in alone] and len({bits(c) for c in group}) == 24
    for _ in range(5):
        some = draw.permutation(24)
        again = rollouts.run([dataclasses.replace(asked[i], group=None) for i in some])
        assert [bits(c) for c in again] == [bits(group[i]) for i in some]
    few = make_rollouts(make_engine(dataclasses.replace(ENGINE, slots=1)), params)
    assert [c.ids_T.tolist() for c in few.run(asked[6:12])] == [c.ids_T.tolist() for c in group[6:12]]
    assert few._state.computed_tokens == 64  # the slot has the prompt still


def test_a_prompt_that_is_copied_is_not_overwritten_first(engine, params):
    """A slot has ended, and its prompt is asked for elsewhere and another one there, in one dispatch."""
    weights, how, key = engine.load_params(params), request("x", temperature=0.0).params, np.zeros(2, np.uint32)
    old, new = np.arange(70), np.arange(100, 170)

    def placed(state, *pairs):
        state = engine.insert(state, [Placement(slot, ids, 160, how, key) for slot, ids in pairs])
        state, left = engine.advance(weights, state)
        assert not left
        return state

    def sampled(state, slot):
        state, result = engine.generate(weights, state)
        return list(engine.read(state, result, [0, 1]).sampled(slot))

    expected = sampled(placed(engine.init_decode_state(), (0, old), (1, new)), 0)
    for order in ((1, 0), (0, 1)):
        state = placed(engine.init_decode_state(), (0, old))
        state = engine.release(engine.pause(state, [0]), [0])
        pairs = {0: new, 1: old}
        assert sampled(placed(state, *((slot, pairs[slot]) for slot in order)), 1) == expected


def test_logprobs_are_the_learners(params, together):
    for request_, completion in zip(mixed(32), together, strict=True):
        how = request_.params
        temperature = how.temperature if how.tempered_logprobs and how.temperature else 1.0
        expected = trainer_logprobs(params, completion, temperature)
        assert completion.sampled_T.all()
        np.testing.assert_allclose(completion.logprobs_T, expected, atol=1e-5, rtol=0)


def test_without_keys_calls_differ_and_runs_repeat(engine, params):
    asked = [request("a prompt", key=None) for _ in range(3)]
    first, again = make_rollouts(engine, params), make_rollouts(engine, params)
    one, two = first.run(asked), first.run(asked)
    assert len({bits(c) for c in one + two}) == 6
    assert [bits(c) for c in again.run(asked) + again.run(asked)] == [bits(c) for c in one + two]
    assert bits(make_rollouts(engine, params, seed=1).run(asked)[0]) != bits(one[0])


def test_new_weights_are_used_and_the_old_may_be_deleted(engine, params):
    rollouts = make_rollouts(engine, params)
    before = rollouts.run([request("a prompt")])[0]
    changed = jax.tree.map(lambda x: x * 1.1, params)
    rollouts.load_params(changed)
    jax.tree.map(lambda x: x.delete(), changed)
    assert bits(rollouts.run([request("a prompt")])[0]) != bits(before)


@pytest.fixture
def fast_collections():
    """What the worker held before is not looked at again in each collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("fast_collections")
@pytest.mark.parametrize("make", [make_engine, make_paged])
def test_after_a_call_weights_and_cache_can_be_freed(make, params):
    """An update needs their memory."""

    def held() -> int:
        gc.collect()
        return sum(array.nbytes for array in jax.live_arrays())

    before = held()
    rollouts = make_rollouts(make(), params)
    rollouts.run([request("a prompt")])
    calls, dispatches = rollouts.progress
    loaded = held()
    rollouts.clear()
    cleared = held()
    rollouts.use(None)
    assert loaded > cleared > held() == before
    assert rollouts.progress == (calls, dispatches) == (1, dispatches) and dispatches > 0
    rollouts.load_params(params)
    with pytest.raises(ValueError, match="a different prompt from the rest of its group"):
        rollouts.run([request("a", group="g"), request("b", group="g")])
    rollouts.use(None)
    assert held() == before


def test_how_many_replies_are_over(params, monkeypatch):
    """While a call is under way; between calls there is nothing to count."""
    rollouts, seen, steps = make_rollouts(make_engine(), params), [], []
    plain = DecodeLoop.round

    def watched(loop):
        ended = plain(loop)
        seen.append(rollouts.counts)
        steps.append(rollouts.steps)
        return ended

    monkeypatch.setattr(DecodeLoop, "round", watched)
    assert (rollouts.counts, rollouts.steps) == ((0, 0), 0)
    completions = rollouts.run(mixed(6))
    assert (rollouts.counts, rollouts.steps) == ((0, 0), 0)
    assert steps == sorted(steps) and all(step % ENGINE.decode_steps == 0 for step in steps)
    assert steps[-1] >= max(int(row.sampled_T.sum()) for done in completions for row in done.rows)
    assert {total for _, total in seen} == {6} and seen[-1] == (6, 6)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and len(set(seen)) > 2


def test_a_prompt_of_pad_ids_is_a_prompt(rollouts, params):
    short, long = rollouts.run([request([PAD] * 3, temperature=0.0), request([PAD] * 9, temperature=0.0)])
    for completion in (short, long):
        np.testing.assert_allclose(completion.logprobs_T, trainer_logprobs(params, completion), atol=1e-5, rtol=0)
    assert not np.array_equal(short.logprobs_T, long.logprobs_T)


def test_stop_ids_of_a_later_call_take_effect(rollouts):
    free = rollouts.run([request("stop here", stop_ids=())])[0]
    assert free.finish_reason == "length" and len(free.ids_T) == 20
    stop = next(id for id in free.ids_T[5:].tolist() if id != EOS)
    first = free.ids_T.tolist().index(stop)
    stopped, ended = rollouts.run([request("stop here", stop_ids=(stop,)), request("stop here", stop_ids=(259,))])
    assert stopped.finish_reason == "stop"
    assert stopped.ids_T.tolist() == free.ids_T[: first + 1].tolist()
    assert stopped.turns[0].text == ByteTokenizer().decode(free.ids_T[:first].tolist())
    assert ended.finish_reason == ("stop" if 259 in free.ids_T else "length")


def test_the_end_token_is_kept_and_sampled(params, engine):
    # A policy that ends soon: the end token's row of the output table is aligned with the hidden states.
    eager = {**params, "head": {"table_VD": params["head"]["table_VD"].at[EOS].multiply(3.0)}}
    rollouts = make_rollouts(engine, eager)
    completions = rollouts.run([request(f"prompt {i}", key=i, max_tokens=60) for i in range(12)])
    ended = [c for c in completions if c.finish_reason == "eos"]
    assert ended
    for completion in ended:
        assert completion.ids_T[-1] == EOS and completion.sampled_T[-1]
        assert EOS not in completion.ids_T[:-1]
        assert "<end>" not in completion.text
        assert completion.turns[0].finish == "eos"


def test_refusals_are_clear(rollouts, engine, params):
    with pytest.raises(ValueError, match="no prompt"):
        rollouts.run([request([])])
    with pytest.raises(ValueError, match="at most 16"):
        rollouts.run([request("x", stop_ids=tuple(range(17)))])
    with pytest.raises(ValueError, match="different prompt"):
        rollouts.run([request("one", group="g"), request("two", group="g")])
    with pytest.raises(ValueError, match="max_length=2000 exceeds"):
        make_engine(dataclasses.replace(ENGINE, max_length=2000))
    with pytest.raises(ValueError, match="each slot has one page of 64 tokens"):
        Engine(CFG, ENGINE, engine.mesh, Columns(64))
    with pytest.raises(ValueError, match="takes 1 to 159"):
        engine.checked(range(160))
