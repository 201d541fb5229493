"""A simulation of steps that overlap, against cases worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from scope_jax.plan.overlap import (
    FIRST,
    STEPS,
    OverlapMode,
    RowTokens,
    StageSeconds,
    bound,
    drawn_rows,
    lognormal_rows,
    modes,
    simulate,
)

# A token takes a second however many slots are live, a token that is read nothing.
COST = StageSeconds(token=lambda live: 1.0, read=0.0, update=10.0, slots=4)


def alike(*sampled: int, read: int = 0):
    def rows(step: int) -> Sequence[RowTokens]:
        return [RowTokens(read, tokens) for tokens in sampled]

    return rows


def synchronous(apart: bool = False) -> OverlapMode:
    return OverlapMode("synchronous", 0, 1, apart)


def overlapping(k: int, apart: bool = False) -> OverlapMode:
    return OverlapMode("overlapping", k, k + 1, apart)


@pytest.mark.parametrize("apart", [False, True])
def test_steps_that_follow_each_other_wait_for_the_longest_row_and_the_update(apart: bool) -> None:
    found = simulate(synchronous(apart), COST, alike(5, 20, 20, 20))
    assert found.seconds == 30 and found.tokens == pytest.approx(65 / 30)
    assert found.idle == pytest.approx(1 / 3) and found.staleness == 0 and found.recomputed == 0


def test_on_shared_devices_the_tail_of_a_step_is_filled_with_the_next() -> None:
    """One row of 40 and three of 10: 40 + 10 s each when in turn. With two steps at a time the three slots that are
    free after 10 s have those of the next step; what is left is its long row beside this one's."""
    lengths = alike(40, 10, 10, 10)
    assert simulate(synchronous(), COST, lengths).seconds == 50
    found = simulate(overlapping(1), COST, lengths)
    assert bound(COST, lengths, apart=False) == pytest.approx(70 / 4 + 10)
    assert bound(COST, lengths, apart=False) <= found.seconds < 50 and 0 < found.staleness <= 1


def test_on_devices_of_its_own_the_engine_never_waits_for_an_update() -> None:
    """20 s of rollouts, 10 s of updates: one step ahead hides the updates. A step's tokens are all sampled with the
    weights of the update before the last."""
    lengths = alike(20, 20, 20, 20)
    ahead = OverlapMode("one step ahead", 1, 1, True, swaps=False)
    found = simulate(ahead, COST, lengths)
    assert found.seconds == 20 and found.idle == pytest.approx(0)
    assert found.staleness == pytest.approx(0.5)  # the update ends in the middle of a step, and is not waited for
    slow = StageSeconds(COST.token, 0.0, 50.0, 4)
    assert simulate(ahead, slow, lengths).seconds == 50  # the learner is the slower one


def test_rows_under_way_are_computed_anew() -> None:
    """A read token takes .1 s: of four rows of 20 with 10 read, 4 s. An update that ends after 10 sampled tokens lets
    four rows of 20 tokens be computed anew: 8 s."""
    cost = StageSeconds(lambda live: 1.0, 0.1, 10.0, 4)
    found = simulate(overlapping(1, apart=True), cost, alike(20, 20, 20, 20, read=10))
    assert found.recomputed > 0.1
    assert found.seconds == pytest.approx(4 + 20 + found.recomputed * found.seconds)


def test_older_weights_are_counted_by_token() -> None:
    """On shared devices with k = 2 three steps begin at once; tokens of the third lack two updates, later fewer."""
    found = simulate(overlapping(2), COST, alike(20, 20, 20, 20))
    assert found.staleness == pytest.approx(0)  # four slots are full of the oldest step alone
    wide = StageSeconds(COST.token, 0.0, 10.0, 12)
    assert 0 < simulate(overlapping(2), wide, alike(20, 20, 20, 20)).staleness <= 2


@pytest.mark.parametrize("apart", [False, True])
def test_nothing_is_lost_and_no_bound_is_beaten(apart: bool) -> None:
    rows = drawn_rows(lognormal_rows(60, 1.0, 400, 20, 500), 24)
    cost = StageSeconds(lambda live: 0.02 + 0.001 * live, 1e-4, 3.0, 16)
    before = math.inf
    for mode in modes(apart):
        found = simulate(mode, cost, rows)
        sampled = sum(row.sampled for step in range(FIRST + 1, STEPS + 1) for row in rows(step))
        assert found.tokens * found.seconds * (STEPS - FIRST) == pytest.approx(sampled)
        # What is played before the first step that is counted, and after the last, is not the same to a token.
        assert found.seconds >= 0.98 * bound(cost, rows, apart) and -0.01 <= found.idle < 1
        assert found.staleness <= mode.staleness
        if mode.swaps:
            assert found.seconds <= before * 1.02
            before = found.seconds


def test_lengths_of_a_lognormal() -> None:
    rows = lognormal_rows(100, 0.8, 10**6, 7, 20_000)
    assert sum(row.sampled for row in rows) / len(rows) == pytest.approx(100, rel=0.03)
    assert {row.read for row in rows} == {7} and max(
        row.sampled for row in lognormal_rows(100, 0.8, 150, 7, 999)
    ) == 150
