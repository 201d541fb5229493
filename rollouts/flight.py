"""Plays that overlap: the rollouts of several steps on one decode loop, whose weights change while they are under way.

Each play has a thread of its own, in which it waits for its rollouts; the thread that owns the engine runs the loop
(`fly`), lets it land before weights change or others use the devices, and takes off with the newer ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from scope_jax.errors import UserError
from scope_jax.multihost import distributed
from scope_jax.multihost.channels import Channels
from scope_jax.rollouts.episodes import ActiveEpisode, SampledTokens
from scope_jax.rollouts.interactions import ActiveInteraction, Driver
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.loop import DecodeLoop
from scope_jax.rollouts.schedule import RowName, Schedule
from scope_jax.rollouts.types import Request, RolloutError

REST = 0.02  # seconds, at most, that the loop rests while it has nothing to do


@dataclass(eq=False)
class _Batch:
    """Interactions that a play waits for."""

    order: int
    weights: str
    """The name of those that sample."""
    interactions: list[ActiveInteraction]
    more: Iterator[Sequence[ActiveInteraction]]
    exhausted: bool = False
    """`more` has ended."""
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def over(self) -> bool:
        return self.exhausted and all(each.over for each in self.interactions)


class FlightRollouts(LocalRollouts):
    """`Rollouts` whose engine also plays several steps at a time (`seat`), by a schedule. While it has landed it is a
    `LocalRollouts`, as exams use it. Arguments as there."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.schedule = Schedule()
        self.channels = Channels()
        self._lock = threading.Lock()
        self._inbox: list[_Batch] = []
        self._batches: list[_Batch] = []
        self._flight: DecodeLoop | None = None
        self._failure: BaseException | None = None
        self.up = False  # rows may be sampled
        self.given: dict[RowName, list[SampledTokens]] = {}  # of rows not asked for yet, by an earlier process
        self._rows: dict[int, list[ActiveEpisode]] = {}  # of plays, by their order

    def seat(self, order: int) -> FlightSeat:
        """The engine for the calls of a play. order: its number, with which the names of its rows begin; of several
        plays, those of lower numbers get slots first."""
        return FlightSeat(self, order)

    @contextmanager
    def flying(self, schedule: Schedule) -> Iterator[None]:
        """While plays may ask for rollouts. Those that still wait at the end fail. schedule: of all rows."""
        self.schedule = schedule
        self._flight = flight = DecodeLoop(
            *(self.engine, None, None, self.threads, self.tool, self.ahead), schedule=schedule, drafter=self.drafter
        )
        try:
            with flight.responders.running():
                yield
        except BaseException as error:
            self._failure = error
            raise
        finally:
            with self._lock:
                self._failure = self._failure or RolloutError("The run of the rollouts has ended.")
                left = [*self._inbox, *self._batches]
            for batch in left:
                batch.ended.set()
            self._flight = None

    def row(self, request: Request, number: int, order: int) -> ActiveEpisode:
        """The row of a request of a play; its first turns are given, if an earlier process has sampled them."""
        row, name = self.episode(request, number), (order, *request.name)
        row.name, row.given = name, deque(self.given.pop(name, ()))
        self._rows.setdefault(order, []).append(row)
        return row

    def sampled(self) -> dict[RowName, list[SampledTokens]]:
        """By the names of the rows of this process, of all plays that are not forgotten, the tokens of their turns; of
        rows that have any."""
        rows = (row for rows in self._rows.values() for row in rows)
        turns = {row.name: [*row.history, *([row.tokens] if row.tokens else [])] for row in rows}
        return {name: those for name, those in turns.items() if those}

    def forget(self, order: int) -> None:
        """Nobody asks for the tokens of a play any more."""
        self._rows.pop(order, None)
        self.given = {name: turns for name, turns in self.given.items() if name[0] != order}  # of other processes

    def take_off(self, version: int) -> None:
        """Goes on with the weights that are loaded, and an empty cache. version: the number of their updates."""
        assert self._flight is not None
        if self.params is None:
            raise RolloutError("The engine has no weights; call load_params before take_off.")
        self._state = None
        self._flight.swap(self.params, version)
        self.up = True

    def land(self) -> None:
        """Makes tokens of all rows under way, if there are any, and frees the cache."""
        if self.up:
            assert self._flight is not None
            self._flight.land()
            self._flight.params = self._flight.state = None
            self.up = False

    def fly(self, until: Callable[[], bool], at_work: Callable[[], int], alone: bool = True) -> None:
        """Runs the loop until this holds, and until nothing is left that the schedule has before newer weights. Called
        by the thread that owns the devices. at_work: how many plays are not over. alone: nothing but plays makes it
        hold.

        Raises what ends the run, and UserError if every play waits for rows that wait for newer weights.
        """
        flight = self._flight
        assert flight is not None
        while not self._proceeded(ended := until()):
            self._admit()
            if flight.busy:
                for _, error in flight.round():
                    raise error
            elif (alone or ended) and self._stuck(at_work(), ended):
                raise UserError(
                    f"no row can be computed with the weights of version {flight.version}, but the schedule has not "
                    "come to the next: it is of a run with another card, seed or record."
                )
            else:
                flight.responders.serve()
                flight.responders.rest(REST)
            self._release()

    def _stuck(self, plays: int, ended: bool) -> bool:
        """Whether every play waits for rollouts, while none of these is under way; and, at the end, for no other
        process."""
        if ended and distributed.count() > 1:
            return False
        with self._lock:
            return not self._inbox and len(self._batches) == plays

    def _proceeded(self, ended: bool) -> bool:
        """Whether the weights may change: what was run until then has ended in all processes, and they have computed
        what the schedule has before. Does what the threads of plays exchange with those of other processes."""
        flight, schedule = self._flight, self.schedule
        assert flight is not None
        free = schedule.free(flight.version)
        ready = schedule.repeated(flight.version) if ended and (free or not flight.busy) else None
        return self.channels.proceed(ready, schedule.known(flight.version), patient=not free)

    def wake(self) -> None:
        """Lets `fly` look again whether it has come to its end; in any thread."""
        if self._flight is not None:
            self._flight.responders.wake()

    def play(self, order: int, weights: str, interactions: Sequence[ActiveInteraction], more: Iterator[Any]) -> None:
        """Waits until interactions are over; in the thread of a play. weights: the name of those that sample, the same
        for all plays."""
        batch = _Batch(order, weights, [*interactions], more)
        with self._lock:
            if self._failure is None:
                self._inbox.append(batch)
        self.wake()
        if self._failure is None:
            batch.ended.wait()
        if not batch.over:
            raise RolloutError("The run of the rollouts has ended.") from self._failure

    def _admit(self) -> None:
        """Takes over what plays have asked for."""
        flight = self._flight
        assert flight is not None
        with self._lock:
            arrived, self._inbox = self._inbox, []
            self._batches += arrived
        for batch in arrived:
            self._over += [lambda i=i: i.over for i in batch.interactions]
            flight.weights = batch.weights
            flight.interact(batch.interactions)
            flight.follow(self._further(batch), batch.order)

    def _further(self, batch: _Batch) -> Iterator[None]:
        flight = self._flight
        assert flight is not None
        for part in batch.more:
            batch.interactions += part
            self._over += [lambda i=i: i.over for i in part]
            yield flight.interact(part)
        batch.exhausted = True

    def _release(self) -> None:
        """Lets plays go on whose interactions are over."""
        for batch in [batch for batch in self._batches if batch.over]:
            self._batches.remove(batch)
            batch.ended.set()
        if not self._batches:
            self._over = []


class FlightSeat:
    """An `InteractionEngine` for the calls of a play."""

    def __init__(self, rollouts: FlightRollouts, order: int) -> None:
        self._rollouts, self._order = rollouts, order

    @property
    def slots(self) -> None:
        """Plays share the slots, so a call is given all of its rollouts."""
        return None

    def interaction(self, driver: Driver) -> ActiveInteraction:
        """A rollout whose rows the driver asks for."""

        def row(request: Request, number: int) -> ActiveEpisode:
            group = None if request.group is None else f"{self._order} {request.name[:1]} {request.group}"
            return self._rollouts.row(replace(request, group=group), number, self._order)

        return ActiveInteraction(driver, row, self._order)

    def interact(
        self,
        interactions: Sequence[ActiveInteraction],
        weights: str,
        more: Iterator[Sequence[ActiveInteraction]] | None = None,
    ) -> None:
        """Plays interactions to their end. weights: the name of the only ones."""
        self._rollouts.play(self._order, weights, interactions, iter(()) if more is None else more)
