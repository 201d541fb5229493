"""Rollouts in which rows of one or several agents take turns.

A driver says who speaks next: it is asked when every agent that was asked has ended its turn. An agent that is asked
again at once, alone, goes on in its slot; every other row leaves its slot and is computed again, with what it has read
since, when its agent is asked again. Which of the two happens follows from what the driver asks, never from timing;
no row holds a slot while it waits for another: rollouts cannot block each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from scope_jax.rollouts.episodes import ActiveEpisode, Outcome
from scope_jax.rollouts.types import Completion, Continuation, Request, Restart, RolloutError, Turn

Move = Request | Continuation | Restart  # of an agent: its first turn begins, or its row goes on


@dataclass(frozen=True)
class Spoken:
    """What an agent that was asked has answered."""

    turns: tuple[Turn, ...]
    """All turns of its rows so far; those it had before it was asked come first."""
    over: bool
    """It cannot be asked again: it has no turns or no room left."""
    completion: Callable[[], Completion]
    """Its completion if it is not asked again, without the experts that were picked."""


@runtime_checkable
class Driver(Protocol):
    """Decides who speaks next in one rollout. Called in a responder's thread, one call at a time."""

    @property
    def immediate(self) -> bool:
        """Whether the next `advance` returns at once, so that the decode loop calls it itself."""
        ...

    def advance(self, spoken: Mapping[str, Spoken]) -> Mapping[str, Move]:
        """The moves of the agents that are asked next, by name; {} if the rollout is over. spoken: the answers of those
        that were asked before, {} at the start."""
        ...


class ActiveInteraction:
    """The host side of one rollout: a row for each agent, and which of them are asked.

    row: makes a row of a request and of a number that no other row of a loop has. order: rows of lower numbers get
    slots first.
    """

    def __init__(self, driver: Driver, row: Callable[[Request, int], ActiveEpisode], order: int = 0) -> None:
        self._driver = driver
        self._row = row
        self.order = order
        self.rows: dict[str, ActiveEpisode] = {}
        self.started = self.over = False
        self.waiting: list[ActiveEpisode] = []  # rows that wait for other weights
        self._asked: dict[str, bool | None] = {}  # by agent, whether it is exhausted; None while it speaks

    @property
    def immediate(self) -> bool:
        """Whether the next `advance` needs no thread."""
        return self._driver.immediate

    @property
    def wanted(self) -> frozenset[str]:
        """The names of the weights that its rows wait for."""
        return frozenset(row.request.weights for row in self.waiting)

    @property
    def alone(self) -> bool:
        """Whether one agent was asked last."""
        return len(self._asked) == 1

    @property
    def complete(self) -> bool:
        """Whether all agents that were asked have answered."""
        return None not in self._asked.values()

    def answered(self, row: ActiveEpisode) -> None:
        """An agent that was asked has ended its turn, or cannot speak."""
        self._asked[self.agent(row)] = row.exhausted

    def advance(self) -> Mapping[str, Move]:
        """The driver's next moves; in a thread unless `immediate`."""
        self.started = True
        return self._driver.advance(
            {
                name: Spoken(tuple(self.rows[name].turns), bool(over), self.rows[name].so_far)
                for name, over in self._asked.items()
            }
        )

    def ask(self, moves: Mapping[str, Move], number: Callable[[], int]) -> list[tuple[ActiveEpisode, Outcome]]:
        """Applies moves, and returns for each the row and how it continues; a first turn "starts anew"."""
        self._asked = dict.fromkeys(moves)
        outcomes: list[tuple[ActiveEpisode, Outcome]] = []
        for name, move in moves.items():
            row = self.rows.get(name)
            if isinstance(move, Request) == (row is not None):
                raise RolloutError(f"The agent {name!r} of a rollout has {'no' if row is None else 'a'} row already.")
            if row is None:
                assert isinstance(move, Request)
                row = self.rows[name] = self._row(move, number())
                row.interaction, row.order = self, self.order
                outcomes.append((row, "over" if row.finish_reason is not None else "starts anew"))
            else:
                outcomes.append((row, "over" if row.finish_reason is not None else row.observe(move)))
        return outcomes

    def agent(self, row: ActiveEpisode) -> str:
        """The name of a row's agent."""
        return next(name for name, other in self.rows.items() if other is row)

    def end(self) -> None:
        """The rollout is over; what its rows have sampled stays."""
        self.over = True
        for row in self.rows.values():
            if row.finish_reason is None:
                row.end()

    def completions(self) -> dict[str, Completion]:
        """The completion of each agent that was asked, once the rollout is over."""
        return {name: row.completion() for name, row in self.rows.items()}


@runtime_checkable
class InteractionEngine(Protocol):
    """What plays rollouts whose rows a driver asks for; implemented by `LocalRollouts` and `ScriptedRollouts`."""

    @property
    def slots(self) -> int | None:
        """How many rows are sampled at a time; None: it takes all that there are, and what each process plays follows
        from the rollouts alone."""
        ...

    def interaction(self, driver: Driver) -> ActiveInteraction:
        """A rollout whose rows the driver asks for."""
        ...

    def interact(
        self,
        interactions: Sequence[ActiveInteraction],
        weights: str,
        more: Iterator[Sequence[ActiveInteraction]] | None = None,
    ) -> None:
        """Plays interactions until each is over or waits for other weights. weights: the name of those in use. more:
        further ones, which are taken as slots have nothing to do."""
        ...


class Interactions:
    """The interactions of one decode loop. weights: the name of those in use; rows that want others wait. most: how
    many may be under way (None: all); those that wait for other weights, or start immediately, do not count."""

    def __init__(self, weights: str, most: int | None) -> None:
        self.weights = weights
        self.most = most
        self._unstarted: deque[ActiveInteraction] = deque()
        self._immediate: list[ActiveInteraction] = []  # of those to be started
        self._under_way: dict[ActiveInteraction, None] = {}
        self._rows = 0

    def __bool__(self) -> bool:
        """Whether one is to be started."""
        return bool(self._unstarted or self._immediate)

    @property
    def room(self) -> bool:
        """Whether one that is added now would start at once."""
        return self.most is None or len(self._unstarted) + len(self._under_way) < self.most

    def add(self, interactions: Sequence[ActiveInteraction]) -> list[ActiveEpisode]:
        """Takes over interactions, which are started in their order; returns the rows that have waited for the weights
        in use."""
        for each in interactions:
            if not each.started:
                (self._immediate if each.immediate else self._unstarted).append(each)
        rows: list[ActiveEpisode] = []
        for each in interactions:
            here = [row for row in each.waiting if row.request.weights == self.weights]
            each.waiting = [row for row in each.waiting if row not in here]
            if here:
                self._under_way[each] = None
            for row in here:
                row.index = self._number()
            rows += here
        return rows

    def start(self) -> Iterator[ActiveInteraction]:
        """Those that start now, as fewer than `most` are under way, for which the driver is to be asked in a thread."""
        while self._unstarted and (self.most is None or len(self._under_way) < self.most):
            interaction = self._unstarted.popleft()
            self._under_way[interaction] = None
            yield interaction

    def start_immediate(self) -> list[ActiveInteraction]:
        """All that are to be started and immediate."""
        starting, self._immediate = self._immediate, []
        return starting

    def step(
        self, interaction: ActiveInteraction, moves: Mapping[str, Move], holder: ActiveEpisode | None
    ) -> tuple[Outcome, list[ActiveEpisode], bool]:
        """Lets an interaction go on with its driver's moves. holder: the row that has kept its slot.

        Returns how the holder continues ("over": it leaves its slot), the rows that are to be placed, and whether the
        driver is to be asked again, as nobody that it asked can speak.
        """
        kept: Outcome = "over"
        placed, silent = [], []
        outcomes = interaction.ask(moves, self._number)
        for row, outcome in outcomes:
            if outcome == "over":
                silent.append(row)
            elif row is holder:
                kept = outcome
            else:
                if outcome == "goes on":
                    row.resume()
                (placed if row.request.weights == self.weights else interaction.waiting).append(row)
        for row in silent:
            interaction.answered(row)
        if not outcomes:
            interaction.end()
        if not outcomes or interaction.waiting:
            self._under_way.pop(interaction, None)
        return kept, placed, bool(outcomes) and interaction.complete

    def _number(self) -> int:
        """The next row's number: negative, as those of requests are not."""
        self._rows += 1
        return -self._rows
