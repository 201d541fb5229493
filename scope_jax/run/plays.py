"""Plays of steps that overlap: each in a thread, begun when the card allows it, remembered in the order of steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.game import rollouts_of_step, with_values
from scope_jax.play.step import Memory
from scope_jax.run.world import World


@dataclass(eq=False)
class Play:
    """A step that is being played."""

    number: int
    """Of the step, from 1."""
    result: tuple[list[Episode], Any, dict[str, Any]] | None = None
    """(episodes, outcome, metrics), once it is over."""
    error: BaseException | None = None
    """What ended it instead."""
    began: float = field(default_factory=time.time)
    """In seconds since the epoch."""
    over: float = 0.0
    """The same of its end."""
    ended: threading.Event = field(default_factory=threading.Event)


class Plays:
    """The plays of a run from a step on.

    memories: by step, the game's memory after it, those of the last `plays` steps that are done. wake: lets the decode
    loop look at what has happened, in any thread.
    """

    def __init__(self, world: World, memories: dict[int, Memory], plays: int, wake: Callable[[], None]) -> None:
        self._world, self._plays, self._wake = world, plays, wake
        self.memories = memories
        self._under_way: dict[int, Play] = {}

    def begin(self, updates: int) -> None:
        """Begins all plays that may begin after so many updates."""
        for number in range(updates + 1, updates + self._plays + 1):
            if number not in self._under_way:
                memory = self._memory_of(number)
                if memory is None:
                    return
                self._under_way[number] = play = Play(number)
                threading.Thread(target=self._run, args=(play, memory), name=f"play-{number}", daemon=True).start()

    def _memory_of(self, number: int) -> Memory | None:
        """What a step reads of those before; None if it is not to begin."""
        cfg, game = self._world.cfg, self._world.game
        first = min(self.memories)
        known = max(first, number - self._plays)
        if known not in self.memories or game.over(cfg, self.memories[known], number - 1):
            return None
        return game.memory_ahead(cfg, self.memories[known], number - 1 - known)

    def _run(self, play: Play, memory: Memory) -> None:
        world = self._world
        try:
            play.result = rollouts_of_step(world.game, world.cfg, world.tools(play.number - 1), memory, play.number - 1)
        except BaseException as error:  # noqa: BLE001 (a thread has no caller: `taken` raises it)
            play.error = error
        play.over = time.time()
        play.ended.set()
        self._wake()

    def is_over(self, number: int) -> bool:
        """Whether the play of a step is over; if it has failed, or if one that is under way has, too."""
        return self._under_way[number].ended.is_set() or any(play.error for play in self._under_way.values())

    def at_work(self) -> int:
        """How many plays are not over."""
        return sum(not play.ended.is_set() for play in self._under_way.values())

    def taken(self, number: int) -> tuple[Play, list[Episode], Metrics]:
        """(the play, episodes, metrics) of a step that is over, which is remembered. Raises what has ended a play."""
        for play in self._under_way.values():
            if play.error is not None:
                raise play.error
        play = self._under_way.pop(number)
        assert play.result is not None
        episodes, outcome, metrics = play.result
        memory, of_memory = self._world.game.remember(self._world.cfg, self.memories[number - 1], outcome, number - 1)
        self.memories[number] = memory
        for old in [old for old in self.memories if old < number - self._plays + 1]:
            del self.memories[old]
        return play, episodes, with_values({**metrics, **of_memory})
