"""Weights that change while rollouts are under way: which tokens are whose, and the same bits by a schedule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from scope_jax.rollouts.drafter import Drafter
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.flight import FlightRollouts
from scope_jax.rollouts.schedule import SWAP, Pair, RowName, Schedule
from scope_jax.rollouts.types import Row
from tests.rollouts.test_interactions import Game
from tests.rollouts.world import ByteTokenizer, bits, make_engine, make_paged, make_params, trainer_logprobs

GAMES = 10
VERSIONS = 4
Delay = Callable[[int], float]
Played = list[dict[str, Any]]
Pairs = dict[RowName, list[Pair]]


@pytest.fixture(scope="module")
def weights() -> list[Any]:
    """By version."""
    first = make_params()
    return [
        jax.tree.map(
            lambda x, v=version: x + 0.02 * v * np.sin(np.arange(x.size)).reshape(x.shape).astype(x.dtype), first
        )
        for version in range(VERSIONS)
    ]


class Flown:
    """A run of games in two plays on one engine, whose weights change after so many rounds of the loop. known, given:
    what an earlier run has left at the landing before version `first`. drafter: in place of the engine's."""

    def __init__(
        self,
        engine: Engine,
        weights: list[Any],
        rounds: int,
        delay: Delay,
        known: Pairs | None = None,
        first: int = 0,
        given: Mapping[RowName, Any] | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.pairs: Pairs = {row: list(pairs) for row, pairs in (known or {}).items()}
        self.landed: dict[int, Mapping[RowName, Any]] = {}  # by version, what was sampled before it
        self._results: dict[int, Played] = {}
        rollouts = FlightRollouts(engine, ByteTokenizer(), seed=0, threads=4, ahead=True)
        rollouts.given, rollouts.drafter = dict(given or {}), drafter
        with rollouts.flying(Schedule(known, self._add)):
            plays = [threading.Thread(target=self._play, args=(rollouts, number, delay)) for number in (0, 1)]
            for play in plays:
                play.start()
            for version in range(first, len(weights)):
                rollouts.load_params(weights[version])
                rollouts.take_off(version)
                left = [rounds]

                def until(left: list[int] = left, newest: bool = version == len(weights) - 1) -> bool:
                    left[0] -= 1
                    return not any(play.is_alive() for play in plays) if newest else left[0] < 0

                rollouts.fly(until, lambda: sum(play.is_alive() for play in plays), alone=version == len(weights) - 1)
                rollouts.land()
                self.landed[version + 1] = rollouts.sampled()
            for play in plays:
                play.join()
        self.played = [*self._results[0], *self._results[1]]

    def _add(self, new: Sequence[tuple[RowName, Pair]]) -> None:
        for row, pair in new:
            self.pairs.setdefault(row, []).append(pair)

    def _play(self, rollouts: FlightRollouts, number: int, delay: Delay) -> None:
        seat = rollouts.seat(number)
        games = [Game(number * GAMES + place, delay=delay) for place in range(GAMES)]
        interactions = [seat.interaction(game) for game in games]
        seat.interact(interactions[:4], "", iter([interactions[4:]]))
        self._results[number] = [each.completions() for each in interactions]
        rollouts.wake()


def plain(played: Played) -> Any:
    return [
        {
            name: (bits(said), [(row.prompt_ids.tolist(), np.asarray(row.versions_T).tolist()) for row in said.rows])
            for name, said in each.items()
        }
        for each in played
    ]


def rows(played: Played) -> list[Row]:
    return [row for each in played for said in each.values() for row in said.rows]


@pytest.fixture(scope="module")
def free(weights: list[Any]) -> Flown:
    return Flown(make_engine(slots=4), weights, rounds=14, delay=lambda number: 0.003 * (number % 3))


def test_each_token_is_sampled_from_the_weights_of_its_version(free: Flown, weights: list[Any]) -> None:
    mixed = 0
    for row in rows(free.played):
        assert row.versions_T is not None
        own = row.versions_T[row.sampled_T]
        assert (np.diff(own) >= 0).all()
        mixed += len({*own.tolist()}) > 1
        for version in {*own.tolist()}:
            those = row.sampled_T & (row.versions_T == version)
            learner = trainer_logprobs(weights[version], row)
            np.testing.assert_allclose(row.logprobs_T[those], learner[those], atol=1e-5, rtol=0)
    assert mixed > 5  # rows that changed weights in the middle
    assert {version for row in rows(free.played) for version in np.asarray(row.versions_T)[row.sampled_T]} == {
        *range(VERSIONS)
    }


def test_a_schedule_determines_the_bits(free: Flown, weights: list[Any]) -> None:
    rows = {row: pairs for row, pairs in free.pairs.items() if row != SWAP}
    inside = sum(pair.version > pairs[0].version for pairs in rows.values() for pair in pairs)
    assert inside > 5
    for delay in (lambda number: 0.0, lambda number: 0.01 * ((number * 7) % 3)):
        again = Flown(make_engine(slots=4), weights, rounds=3, delay=delay, known=free.pairs)
        assert plain(again.played) == plain(free.played)
        assert again.pairs == free.pairs


def test_slots_do_not_matter(free: Flown, weights: list[Any]) -> None:
    other = Flown(make_engine(slots=8), weights, rounds=30, delay=lambda number: 0.0, known=free.pairs)
    assert other.pairs == free.pairs
    for one, two in zip(rows(free.played), rows(other.played), strict=True):
        assert one.ids_T.tolist() == two.ids_T.tolist()
        np.testing.assert_allclose(one.logprobs_T, two.logprobs_T, atol=1e-5, rtol=0)


def test_pages_that_slots_share(weights: list[Any]) -> None:
    free = Flown(make_paged(slots=6), weights, rounds=10, delay=lambda number: 0.002 * (number % 2))
    again = Flown(make_paged(slots=6), weights, rounds=25, delay=lambda number: 0.0, known=free.pairs)
    assert plain(again.played) == plain(free.played)
    for row in rows(free.played):
        for version in {*np.asarray(row.versions_T)[row.sampled_T].tolist()}:
            those = row.sampled_T & (row.versions_T == version)
            np.testing.assert_allclose(
                row.logprobs_T[those], trainer_logprobs(weights[version], row)[those], atol=1e-5, rtol=0
            )


class Guesses(Drafter):
    """Proposes what the row has had before."""

    def draft(self, row: ActiveEpisode, most: int) -> list[int]:
        return row.ids[-5 : most - 5].tolist() if row.length % 3 else []


@pytest.mark.slow
def test_drafts_change_nothing(weights: list[Any]) -> None:
    """Whatever was drafted, with whichever weights it was written; also in a run that goes on from a landing."""
    engine, own = make_paged(slots=6, draft_tokens=3), Guesses(shares=True)
    free = Flown(engine, weights, rounds=14, delay=lambda number: 0.003 * (number % 3), drafter=own)
    assert own.counts.drafts > 20
    for drafter in (None, Guesses(shares=True), Drafter(shares=True)):
        again = Flown(engine, weights, rounds=25, delay=lambda number: 0.0, known=free.pairs, drafter=drafter)
        assert plain(again.played) == plain(free.played) and again.pairs == free.pairs
        known = {row: [pair for pair in pairs if pair.version >= 2] for row, pairs in free.pairs.items()}
        known = {row: pairs for row, pairs in known.items() if pairs}
        resumed = Flown(engine, weights, 5, lambda number: 0.0, known, 2, free.landed[2], drafter)
        assert plain(resumed.played) == plain(free.played)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_was_sampled_before_a_landing_is_enough_to_go_on(free: Flown, weights: list[Any], version: int) -> None:
    known = {row: [pair for pair in pairs if pair.version >= version] for row, pairs in free.pairs.items()}
    known = {row: pairs for row, pairs in known.items() if pairs}
    assert len(known) > 2
    resumed = Flown(
        make_engine(slots=4), weights, 5, lambda number: 0.002 * (number % 2), known, version, free.landed[version]
    )
    assert plain(resumed.played) == plain(free.played)
    assert resumed.pairs == known


def test_a_run_goes_on_freely_from_a_landing(free: Flown, weights: list[Any]) -> None:
    resumed = Flown(make_engine(slots=4), weights, 9, lambda number: 0.0, {}, 2, free.landed[2])
    whole = {row: [pair for pair in free.pairs.get(row, []) if pair.version < 2] for row in free.pairs | resumed.pairs}
    whole = {row: [*before, *resumed.pairs.get(row, [])] for row, before in whole.items()}
    whole = {row: pairs for row, pairs in whole.items() if pairs}
    again = Flown(make_engine(slots=4), weights, 6, lambda number: 0.001, whole)
    assert plain(again.played) == plain(resumed.played)
