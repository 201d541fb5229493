"""Which steps are played at a time, what each reads of those before, and how an error ends them; schedules."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from scope_jax.config import Config
from scope_jax.games import game_of, load_card
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.game import Game
from scope_jax.play.step import Memory
from scope_jax.play.tools import Tools
from scope_jax.rollouts.schedule import SWAP, Pair, Schedule
from scope_jax.run import plays
from scope_jax.run.plays import Plays
from scope_jax.run.world import World

Result = tuple[list[Episode], str, dict[str, Any]]
LIMIT = 30.0  # seconds, which only a hang reaches


def ahead(cfg: Config, memory: Memory, lag: int) -> Memory:
    return {"steps": [*memory["steps"], *["?"] * lag]}


def remember(cfg: Config, memory: Memory, outcome: str, step: int) -> tuple[Memory, Metrics]:
    return {"steps": [*memory["steps"], outcome]}, {"remembered": float(step)}


class Stage:
    """A game whose memory lists its steps, and whose plays last until they are told to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, staleness: int, count: int, steps: int = 99) -> None:
        self.read: dict[int, list[str]] = {}  # by step, the memory that it was played with
        self.channels: list[str] = []
        self._end: dict[int, threading.Event] = {}
        self._errors: dict[int, Exception] = {}
        self._begun = threading.Condition()
        sets = [f"train.max_staleness={staleness}", f"train.plays={count}", f"train.steps={steps}"]
        cfg = load_card("ssp/atlas", sets)
        world = object.__new__(World)
        object.__setattr__(world, "tools", lambda step: None)
        object.__setattr__(world, "cfg", cfg)
        object.__setattr__(world, "game", replace(game_of(cfg), ahead=ahead, remember=remember))
        monkeypatch.setattr(plays, "rollouts_of_step", self._play)
        self.plays = Plays(world, 0, {0: {"steps": []}}, lambda: None, self._channel)

    @contextmanager
    def _channel(self, name: str) -> Iterator[None]:
        self.channels.append(name)
        yield

    def _play(
        self, game: Game, cfg: Config, tools: Tools, memory: Memory, step: int
    ) -> tuple[list[Episode], str, dict]:
        with self._begun:
            self.read[step + 1] = memory["steps"]
            event = self._end.setdefault(step + 1, threading.Event())
            self._begun.notify_all()
        assert event.wait(LIMIT)
        if error := self._errors.get(step + 1):
            raise error
        return [Episode("player", "actor", "0", (), float(step))], f"step {step + 1}", {"played": float(step)}

    def under_way(self, updates: int) -> list[int]:
        """The plays that have begun after so many updates."""
        self.plays.advance(updates)
        with self._begun:
            assert self._begun.wait_for(lambda: len(self.read) == len(self.channels), LIMIT)
        return sorted(self.read)

    def end(self, step: int, error: Exception | None = None) -> None:
        if error is not None:
            self._errors[step] = error
        play = self.plays._under_way[step]
        self._end[step].set()
        assert play.ended.wait(LIMIT)


@pytest.mark.parametrize(("staleness", "count"), [(1, 2), (2, 3), (4, 5)])
def test_as_many_steps_are_under_way_as_may_be_stale_and_one(
    monkeypatch: pytest.MonkeyPatch, staleness: int, count: int
) -> None:
    stage = Stage(monkeypatch, staleness, count)
    assert stage.under_way(0) == [*range(1, count + 1)]
    stage.end(2)
    assert stage.under_way(0) == [*range(1, count + 1)] and not stage.plays.is_over(1)  # the first is not over
    stage.end(1)
    assert stage.under_way(0) == [*range(1, count + 1)] and stage.plays.is_over(2)
    play, episodes, metrics = stage.plays.take(1)
    assert play.number == 1 and episodes[0].reward == 0.0
    assert metrics == {"played": 0.0, "remembered": 0.0}
    assert stage.under_way(1) == [*range(1, count + 2)]
    assert stage.read[count + 1] == ["step 1", *["?"] * (count - 1)]  # what is known of the steps between
    assert all(stage.read[step] == ["?"] * (step - 1) for step in range(1, count + 1))


def test_fewer_plays_than_may_be_stale_begin_when_one_is_over_not_when_it_is_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, 2, 1)
    assert stage.under_way(0) == [1]
    stage.end(1)
    assert stage.under_way(0) == [1, 2] and stage.read[2] == ["step 1"]
    stage.end(2)
    assert stage.under_way(0) == [1, 2, 3] and stage.read[3] == ["step 1", "step 2"]
    stage.end(3)
    assert stage.under_way(0) == [1, 2, 3]  # the next would lack three updates
    stage.plays.take(1)
    assert stage.under_way(1) == [1, 2, 3, 4] and stage.read[4] == ["step 1", "step 2", "step 3"]
    assert stage.plays.memories(1) == {1: {"steps": ["step 1"]}}  # what a checkpoint after the first update holds
    stage.end(4)


def test_no_play_begins_after_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, 2, 3, steps=4)
    assert stage.under_way(0) == [1, 2, 3]
    for step in (1, 2, 3):
        stage.end(step)
    stage.plays.advance(0)
    for step in (1, 2, 3):
        stage.plays.take(step)
        assert stage.under_way(step) == [1, 2, 3, 4]
    stage.end(4)


def test_what_ends_a_play_is_raised_also_of_a_later_step(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, 1, 2)
    stage.under_way(0)
    stage.end(2, KeyError("the judge"))
    with pytest.raises(KeyError, match="the judge"):
        stage.plays.advance(0)
    stage.end(1)


def test_a_schedule_counts_what_it_knows_and_what_is_repeated_by_version() -> None:
    """Swaps are no caches; rows that it does not know are free after the last version."""
    first, second = (1, "solver", "0", 0, "agent", 0), (2, "solver", "0", 0, "agent", 0)
    written: list[Any] = []
    schedule = Schedule(
        {SWAP: [Pair(0, 0), Pair(0, 1)], first: [Pair(5, 0)], second: [Pair(4, 0), Pair(9, 1)]}, written.extend
    )
    assert [schedule.known(version) for version in (0, 1, 2)] == [2, 3, 3]
    schedule.swapped(0)
    schedule.computed(second, 4, 0)
    assert [schedule.repeated(version) for version in (0, 1)] == [1, 1]
    assert schedule.border(second, 4) == 9 and not schedule.free(0)
    schedule.computed(first, 5, 0)
    schedule.swapped(1)
    schedule.computed(second, 9, 1)
    assert [schedule.repeated(version) for version in (0, 1)] == [2, 3] and schedule.free(1)
    assert written == []
    schedule.computed((3, "solver", "0", 0, "agent", 0), 4, 1)
    schedule.flush()
    assert [row for row, _ in written] == [(3, "solver", "0", 0, "agent", 0)]
