"""Plays of steps that overlap: each in a thread, begun when the card allows it, remembered in the order of steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
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
    of_memory: Metrics = field(default_factory=dict)
    """Metrics of what is remembered of it."""
    began: float = field(default_factory=time.time)
    """In seconds since the epoch."""
    over: float = 0.0
    """The same of its end."""
    ended: threading.Event = field(default_factory=threading.Event)


class Plays:
    """The plays of a run after `done` steps.

    memories: by step, the game's memory after it, those of the last `plays` steps that are done. wake: lets the decode
    loop look at what has happened, in any thread. channel: that of a play, in which its thread exchanges with those of
    other processes.
    """

    def __init__(
        self,
        world: World,
        done: int,
        memories: dict[int, Memory],
        wake: Callable[[], None],
        channel: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._world, self._wake, self._channel = world, wake, channel
        self._plays, self._staleness = world.cfg.train.overlapping, world.cfg.train.max_staleness
        self._memories = memories
        self._remembered = done  # steps that are
        self._under_way: dict[int, Play] = {}  # until they are taken

    def advance(self, updates: int) -> None:
        """Remembers what is over, in the order of steps, and begins what may begin after so many updates. Raises what
        has ended a play."""
        for play in self._under_way.values():
            if play.error is not None:
                raise play.error
        while (play := self._under_way.get(self._remembered + 1)) is not None and play.ended.is_set():
            self._remember(play)
        for number in range(updates + 1, updates + self._staleness + 2):
            if number > self._remembered and number not in self._under_way:
                memory = self._memory_of(number) if self.at_work() < self._plays else None
                if memory is None:
                    return
                self._under_way[number] = play = Play(number)
                threading.Thread(target=self._run, args=(play, memory), name=f"play-{number}", daemon=True).start()

    def _remember(self, play: Play) -> None:
        game, cfg, before = self._world.game, self._world.cfg, play.number - 1
        assert play.result is not None
        memory, play.of_memory = game.remember(cfg, self._memories[before], play.result[1], before)
        self._memories[play.number] = memory
        self._remembered = play.number

    def _memory_of(self, number: int) -> Memory | None:
        """What a step reads of those before; None if it is not to begin."""
        cfg, game = self._world.cfg, self._world.game
        known = max(min(self._memories), number - self._plays)
        if known not in self._memories or game.over(cfg, self._memories[known], number - 1):
            return None
        return game.memory_ahead(cfg, self._memories[known], number - 1 - known)

    def _run(self, play: Play, memory: Memory) -> None:
        world = self._world
        try:
            with self._channel(f"play {play.number}"):
                tools = world.tools(play.number - 1)
                play.result = rollouts_of_step(world.game, world.cfg, tools, memory, play.number - 1)
        except BaseException as error:  # noqa: BLE001 (a thread has no caller: `advance` raises it)
            play.error = error
        play.over = time.time()
        play.ended.set()
        self._wake()

    def at_work(self) -> int:
        """How many plays are not over."""
        return sum(not play.ended.is_set() for play in self._under_way.values())

    def is_over(self, number: int) -> bool:
        """Whether a step is played and remembered."""
        return self._remembered >= number

    def take(self, number: int) -> tuple[Play, list[Episode], Metrics]:
        """(the play, episodes, metrics) of a step that is over, with which its memory is the oldest that is kept."""
        play = self._under_way.pop(number)
        assert play.result is not None
        episodes, _, metrics = play.result
        for old in [old for old in self._memories if old < number - self._plays + 1]:
            del self._memories[old]
        return play, episodes, with_values({**metrics, **play.of_memory})

    def memories(self, done: int) -> dict[int, Memory]:
        """By step, what later ones read of those that are done."""
        return {step: memory for step, memory in self._memories.items() if step <= done}
