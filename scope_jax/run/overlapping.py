"""Steps that overlap (`train.max_staleness`): one is played while earlier ones still are, and before they are learned.

play s        begins when at most max_staleness of the updates before it are missing, and takes over newer weights
              while its rollouts are under way
update s      trains what play s has made, in the order of steps; rollouts of later steps go on meanwhile if the engine
              has devices of its own
then          rows under way become tokens, which are computed anew with the newer weights (`rollouts.flight`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from scope_jax.learner.types import Episode, Metrics, staleness
from scope_jax.play.collapse import with_signs
from scope_jax.play.step import Memory
from scope_jax.rollouts.flight import FlightRollouts
from scope_jax.rollouts.schedule import Schedule
from scope_jax.run.folder import RunFolder
from scope_jax.run.plays import Plays
from scope_jax.run.processes import together
from scope_jax.run.steps import PlayedStep, Steps

T = TypeVar("T")


class OverlappingSteps(Steps):
    """The steps of a run whose plays overlap; arguments as for `Steps`. schedule: of their rows. log: gets when they
    were played and learned."""

    def __init__(self, *arguments: Any, schedule: Schedule, log: RunFolder) -> None:
        super().__init__(*arguments)
        self._log = log
        local, saved = self.world.local, self.position.plays or {}
        assert isinstance(local, FlightRollouts)
        self._local, self._schedule, self._open = local, schedule, ExitStack()
        memories = {int(step): memory for step, memory in saved.get("memories", {}).items()}
        local.given = {tuple(name): turns for name, turns in saved.get("rows", [])}
        done = self.position.done
        memories = memories or {done: self.position.memory}
        self._plays = Plays(self.world, done, memories, local.wake, local.channels.channel)

    def __enter__(self) -> OverlappingSteps:
        self._open.enter_context(self._local.flying(self._schedule))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        super().__exit__(*error)

    def play_next(self) -> PlayedStep:
        number, local = self.position.done, self._local
        if not local.up:
            self.world.sampler.use(self.world.game.policies(self.cfg)[0])
            local.take_off(number - 1)
            swapped = time.time()
            self._log.timeline(number, "swap", swapped, swapped)

        def over() -> bool:
            self._plays.advance(number - 1)
            return self._plays.is_over(number)

        local.fly(over, self._plays.at_work)
        play, played, metrics = self._plays.take(number)
        self._log.timeline(number, "play", play.began, play.over)
        local.forget(number)
        episodes = [replace(episode, learned=number - 1) for episode in played]
        metrics = with_signs(metrics, episodes) | staleness_by_role(episodes)
        return PlayedStep(episodes, self._plays.memories(number)[number], metrics)

    def update(self, learn: Callable[[], T]) -> T:
        """The result of `learn`. Where engine and learner share devices all rows under way become tokens before it,
        elsewhere it runs in a thread of its own, and they do so after it."""
        with self._timed("update"):
            return self._updated(learn)

    def _updated(self, learn: Callable[[], T]) -> T:
        if self.cfg.rollout.devices is None:
            self._local.land()
            return self.learned_alone(learn)

        with ThreadPoolExecutor(1, "learner") as thread:
            learning = thread.submit(self.learned_beside, learn)
            learning.add_done_callback(lambda _: self._local.wake())

            def learned() -> bool:
                self._plays.advance(self.position.done - 1)
                if learning.done():
                    learning.result()  # raises what has ended it
                return learning.done()

            with self.instruments.phase("wait"), self.world.activity("updating beside the next steps"):
                self._local.fly(learned, self._plays.at_work, alone=False)
        self._local.land()
        return learning.result()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """An evaluation of the current weights, for which all rows under way become tokens."""
        self._local.land()
        with self._timed("exam"), super().evaluating():
            yield

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        began = time.time()
        yield
        self._log.timeline(self.position.done, kind, began, time.time())

    def carried(self) -> Memory:
        """The memories that the next plays read, and the tokens of the rows of plays that are not learned from."""
        sampled = together(lambda: [*self._local.sampled().items()])
        rows = self._local.given | {name: turns for part in sampled for name, turns in part}
        plain = [[[*name], [[[*token] for token in turn] for turn in rows[name]]] for name in sorted(rows)]
        memories = {f"{step}": memory for step, memory in self._plays.memories(self.position.done).items()}
        return {"plays": {"memories": memories, "rows": plain}}


def staleness_by_role(episodes: Sequence[Episode]) -> Metrics:
    """How many steps the weights lacked that sampled the tokens of each role: the mean, and the most."""
    lacked: dict[str, list[np.ndarray]] = {}
    for episode in episodes:
        lacked.setdefault(episode.role, []).append(staleness(episode))
    metrics: Metrics = {}
    for role, parts in lacked.items():
        values = np.concatenate(parts)
        if values.size:
            metrics[f"{role}/staleness_mean"] = float(values.mean())
            metrics[f"{role}/staleness_max"] = float(values.max())
    return metrics
