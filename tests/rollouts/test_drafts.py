"""Drafted tokens are verified in free rows, and no completion depends on what was drafted."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.paged_gpu import Triton
from scope_jax.rollouts.drafter import Drafter
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.slots import Placement
from scope_jax.rollouts.types import Completion, Request
from scope_jax.rollouts.verification import BatchShape, arranged, trimmed
from tests.models import gpt_oss
from tests.rollouts import test_ahead, test_windows
from tests.rollouts.scripted_drafts import Scripted
from tests.rollouts.test_adapters import ADAPTED, POLICIES, factors_of
from tests.rollouts.test_picks import MOE, same
from tests.rollouts.test_picks import asked as picked
from tests.rollouts.test_states import HYBRID
from tests.rollouts.world import CFG, ENGINE, bits, make_paged, make_params, make_rollouts, mixed, new_engine, request

K = 3
DRAFTED = replace(ENGINE, draft_tokens=K)


# --------------------------------------------------------------------------------------------------- rows of a dispatch
def test_free_rows_are_dealt_in_rounds():
    """Two shards of four slots and five rows. On the first two slots are under way, which leaves three rows; on the
    other one slot is."""
    live = [True, False, True, False, False, False, False, True]
    drafts = {0: [1, 2, 3], 2: [4, 5], 7: [6]}
    assert trimmed(drafts, live, BatchShape(4, 5, 3)) == {0: [1, 2], 2: [4], 7: [6]}
    assert trimmed({0: [1]}, [True] * 4, BatchShape(4, 4, 3)) == {}
    assert trimmed({0: [1], 3: [2]}, [True] * 4, BatchShape(4, 5, 3)) == {0: [1]}


def test_a_row_has_the_slot_and_the_place_of_its_token():
    live = [True, False, True, False, False, False, False, True]
    rows = arranged({0: [1, 2], 2: [4], 7: [6]}, live, BatchShape(4, 5, 2), steps=9)
    assert rows.steps == 1
    slots, offsets, tokens = (np.asarray(x).reshape(2, 5) for x in (rows.slot_R, rows.offset_R, rows.token_R))
    for slot, own in {0: [1, 2], 2: [4], 7: [6]}.items():
        shard, number = divmod(slot, 4)
        at = np.asarray(rows.row_SJ)[slot]
        assert at[0] == number and slots[shard, number] == number and offsets[shard, number] == 0
        for offset, token in enumerate(own, start=1):
            row = at[offset]
            assert (slots[shard, row], offsets[shard, row], tokens[shard, row]) == (number, offset, token)
    used = [row for at in np.asarray(rows.row_SJ)[[0, 2]] for row in at.tolist() if row < 5]
    assert len(set(used)) == len(used) == 5
    plain = arranged({}, live, BatchShape(4, 5, 2), steps=9)
    assert plain.steps == 9 and plain.slot_R.tolist() == [0, 1, 2, 3, 4] * 2 and not plain.offset_R.any()
    assert plain.row_SJ.tolist() == [[number, 5, 5] for number in range(4)] * 2


# --------------------------------------------------------------------------------------------------- one slot, by hand
class OneSlot:
    """A slot that has a prompt, whose greedy tokens are known."""

    def __init__(self, engine: Engine, params: Any, **changes: Any) -> None:
        self.engine, self.weights = engine, engine.load_params(params)
        self.asked = request("a prompt", temperature=0.0, **({"stop_ids": (), "max_tokens": 12} | changes))
        self.state = engine.init_decode_state()

    def dispatch(self, *drafts: list[int]) -> list[list[int]]:
        """The tokens of each dispatch: those with these drafts, then plain ones until the turn ends."""
        slot, length = 2, len(self.asked.prompt_ids)
        key = np.zeros(2, np.uint32)
        limit = length + self.asked.params.max_tokens
        self.state = self.engine.insert(
            self.state, [Placement(slot, self.asked.prompt_ids, limit, self.asked.params, key)]
        )
        self.state, _ = self.engine.advance(self.weights, self.state)
        found: list[list[int]] = []
        while self.state.live[slot]:
            draft = {slot: drafts[len(found)]} if len(found) < len(drafts) else {}
            self.state, result = self.engine.generate(self.weights, self.state, drafts=draft)
            result = self.engine.read(self.state, result, [slot])
            found.append([token for token, _, _ in result.sampled(slot)])
        self.state = self.engine.release(self.state, [slot])
        return found


def test_tokens_are_accepted_up_to_the_first_that_is_wrong(params):
    engine = make_paged(DRAFTED)
    ids = [*chain(*OneSlot(engine, params).dispatch())]
    assert len(ids) == 12
    one = OneSlot(engine, params)
    said = one.dispatch(ids[:3], [ids[4], 0], [0, ids[7]])
    assert said[:4] == [ids[:4], ids[4:6], ids[6:7], ids[7:11]] and [*chain(*said)] == ids
    (pool,) = one.state.pools
    assert pool.used == 0


def test_a_turn_ends_in_the_middle_of_a_draft(params):
    """At an end token, and at its limit, behind which nothing may be drafted."""
    engine = make_paged(DRAFTED)
    ids = [*chain(*OneSlot(engine, params).dispatch())]
    end = next(place for place in range(1, 4) if ids[place] not in ids[:place])
    assert OneSlot(engine, params, stop_ids=(ids[end],)).dispatch(ids[:3]) == [ids[: end + 1]]
    short = OneSlot(engine, params, max_tokens=4)
    assert short.dispatch(ids[:3]) == [ids[:4]]


def test_how_many_tokens_may_be_drafted(params):
    """At most `draft_tokens`, as many as the limit leaves, and as other slots leave rows: of four rows two slots leave
    two, and three slots too few."""
    engine = make_paged(DRAFTED, slots=3)
    weights, state = engine.load_params(params), engine.init_decode_state()
    key, asked = np.zeros(2, np.uint32), request("x" * 5, stop_ids=())
    cases = ((0, 6, {}), (0, 7, {0: 1}), (0, 160, {0: 3}), (1, 160, {0: 2, 1: 2}), (2, 160, {}))
    for slot, limit, room in cases:
        if slot == 0:
            state = engine.release(engine.pause(state, [0]), [0])
        state = engine.insert(state, [Placement(slot, asked.prompt_ids, limit, asked.params, key)])
        state, _ = engine.advance(weights, state)
        assert engine.draft_room(state) == room


def test_what_drafts_do_not_work_with_is_refused():
    with pytest.raises(
        ValueError, match=r"^rollout\.draft_tokens is 3, but layers of the model keep a state, .* to 0\.$"
    ):
        make_paged(DRAFTED, HYBRID)
    with pytest.raises(
        ValueError, match=r"^rollout\.draft_tokens is 3 and rollout\.cascade is 4, which do not work tog"
    ):
        make_paged(DRAFTED, cascade=4)
    with pytest.raises(ValueError, match=r"^EngineConfig\.draft_tokens needs pages that belong to no slot"):
        Engine(CFG, DRAFTED, make_paged().mesh, Columns(160))


# --------------------------------------------------------------------------------------------------------- whole rows
def wrong(ids: list[int], _: int) -> list[int]:
    return [(id + 1) % 256 for id in ids]


def right(ids: list[int], _: int) -> list[int]:
    return ids


def now_and_then(ids: list[int], length: int) -> list[int]:
    """Nothing, right tokens, or some before a wrong one."""
    return [] if length % 3 == 0 else [*ids[: length % 4], *wrong(ids[length % 4 :], length)]


PROPOSALS = (right, wrong, now_and_then)


def others(engine: Engine, params: Any, asked: list[Request], ahead: bool = False) -> list[list[Completion]]:
    """Completions with nothing drafted, with each of PROPOSALS, and with the product's own drafter."""
    rollouts = make_rollouts(engine, params, ahead=ahead)
    rollouts.drafter = None
    first = rollouts.run(asked)
    found = [first]
    for propose in PROPOSALS:
        rollouts.clear()
        rollouts.drafter = drafter = Scripted(asked, first, propose)
        found.append(rollouts.run(asked))
        counts = drafter.counts
        assert counts.drafts and (propose is wrong or counts.accepted > counts.drafted // 4), "drafts were verified"
    rollouts.drafter = Drafter(shares=True)
    return [*found, rollouts.run(asked)]


def assert_equal(found: list[list[Completion]]) -> None:
    first, *rest = found
    for each in rest:
        assert [bits(c) for c in each] == [bits(c) for c in first] and same(each, first)
        assert entropies(each) == entropies(first)


def entropies(completions: list[Completion]) -> list[bytes | None]:
    rows = (row.entropies_T for said in completions for row in said.rows)
    return [None if each is None else each.tobytes() for each in rows]


def conversations() -> list[Request]:
    """Turns that end by stop strings, end tokens and limits; observations, cuts and new prompts; two groups; and rows
    of which few are left in the end."""
    plain = [request("a group", key=90 + i, group="g", max_tokens=9 + 20 * (i % 3), stop_ids=()) for i in range(6)]
    return [*test_ahead.episodes(), *plain]


@pytest.mark.parametrize("slots", [1, pytest.param(4, marks=pytest.mark.slow), 8])
def test_rows_are_equal_whatever_is_drafted(params, slots):
    """And are those of an engine without drafts, log-probs within 1e-5; no token is at a tie."""
    asked = conversations() if slots > 1 else conversations()[::3]
    found = others(make_paged(DRAFTED, slots=slots), params, asked)
    assert_equal(found)
    off = make_rollouts(make_paged(slots=slots), params).run(asked)
    for one, other in zip(off, found[0], strict=True):
        assert one.ids_T.tolist() == other.ids_T.tolist() and one.finish_reason == other.finish_reason
        np.testing.assert_allclose(one.logprobs_T, other.logprobs_T, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_ahead_with_few_pages_and_another_number_of_steps(params, monkeypatch):
    aside = []
    set_aside = Engine.set_aside
    monkeypatch.setattr(Engine, "set_aside", lambda *given: aside.append(1) or set_aside(*given))
    first, *_ = others(make_paged(DRAFTED), params, conversations())
    assert_equal([first, *others(make_paged(DRAFTED, pages=9), params, conversations(), ahead=True)])
    assert len(aside) > 2
    other = make_paged(DRAFTED, decode_steps=1, draft_tokens=5)
    assert_equal([first, *others(other, params, conversations(), ahead=True)])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["experts", "gpt-oss", "windows", "kernel"])
def test_families(family):
    """Experts with what their routers picked; windows and sinks; the kernel for GPUs, interpreted."""
    cfg: ModelConfig = {"experts": MOE, "gpt-oss": gpt_oss.CFG, "windows": test_windows.SLIDING, "kernel": CFG}[family]
    weights = gpt_oss.weights(cfg) if family == "gpt-oss" else make_params(cfg)
    config = replace(DRAFTED, picks=family in ("experts", "gpt-oss"))
    asked = picked(12, tokens=40) if config.picks else mixed(12)
    if family == "windows":
        config = replace(test_windows.LONG, draft_tokens=K, entropies=True)
        longer = request(test_windows.tokens(100, 7), temperature=0.0, max_tokens=200, stop_ids=())
        keyed = enumerate([*test_windows.asked(), longer])
        asked = [replace(one, max_turns=2, key=np.asarray([7, place], np.uint32)) for place, one in keyed]
    how = Triton(interpret=True) if family == "kernel" else None
    engine = Engine(cfg, config, make_paged().mesh, how)
    found = others(engine, weights, asked)
    assert_equal(found)
    if config.picks:
        assert all(row.picked_TLk is not None and row.picked_TLk[:-1].any() for said in found[-1] for row in said.rows)


@pytest.mark.slow
def test_adapters_and_matrices_in_8_bits(params):
    for config in (replace(ADAPTED, draft_tokens=K), replace(DRAFTED, quantized=True)):
        rollouts = make_rollouts(new_engine(config, columns=False), params)
        policies = (*POLICIES, None) if config.policies else (None,)
        for policy in config.policies:
            rollouts.load_adapter(policy, factors_of(policy))
        asked = [replace(one, policy=policies[place % len(policies)]) for place, one in enumerate(mixed(12))]
        rollouts.drafter = None
        first, found = rollouts.run(asked), []
        for propose in PROPOSALS:
            rollouts.drafter = Scripted(asked, first, propose)
            found.append(rollouts.run(asked))
            assert rollouts.drafter.counts.drafted
        assert_equal([first, *found])


def test_the_rows_of_a_text_that_repeats_itself_need_fewer_steps(params, monkeypatch):
    """A greedy reply that falls into a cycle; the product's drafter copies it."""
    counted: list[int] = []
    read = Engine.read

    def counting(engine: Engine, state: Any, result: Any, slots: Any) -> Any:
        found = read(engine, state, result, slots)
        counted.append(int(found.counts_S.sum()))
        return found

    monkeypatch.setattr(Engine, "read", counting)
    rollouts = make_rollouts(make_paged(DRAFTED, slots=1), params)
    (said,) = rollouts.run([request("ab" * 30, temperature=0.0, max_tokens=90, stop_ids=())])
    assert rollouts.drafter is not None and sum(counted) == len(said.ids_T) == 90
    counts = rollouts.drafter.counts
    assert counts.accepted > 0 and counts.drafts + counts.accepted <= 90 and counts.accepted <= counts.drafted
