"""Rollouts in which rows of one or several agents take turns.

A driver says who speaks next: it is asked when every agent that was asked has ended its turn. An agent that is asked
again at once, alone, goes on in its slot; every other row leaves its slot and is computed again, with what it has read
since, when its agent is asked again. Which of the two happens follows from what the driver asks, never from timing;
no row holds a slot while it waits for another: rollouts cannot block each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.types import Completion, Continuation, Request, Restart, RolloutError, Turn

Move = Request | Continuation | Restart  # of an agent: its first turn begins, or its row goes on


@dataclass(frozen=True)
class Spoken:
    """What an agent that was asked has answered."""

    turns: tuple[Turn, ...]
    """All turns of its rows so far; those it had before it was asked come first."""
    over: bool
    """It cannot be asked again: it has no turns or no room left."""


@runtime_checkable
class Driver(Protocol):
    """Decides who speaks next in one rollout. Called in a responder's thread, one call at a time."""

    def advance(self, spoken: Mapping[str, Spoken]) -> Mapping[str, Move]:
        """The moves of the agents that are asked next, by name; {} if the rollout is over. spoken: the answers of those
        that were asked before, {} at the start."""
        ...


class ActiveInteraction:
    """The host side of one rollout: a row for each agent, and which of them are asked. row: makes a row of a request;
    its second argument is a number that no other row of a loop has."""

    def __init__(self, driver: Driver, row: Callable[[Request, int], ActiveEpisode]) -> None:
        self._driver = driver
        self._row = row
        self.rows: dict[str, ActiveEpisode] = {}
        self.started = self.over = False
        self.waiting: list[ActiveEpisode] = []  # rows that wait for other weights
        self._asked: dict[str, bool | None] = {}  # by agent, whether it is exhausted; None while it speaks

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
        """The driver's next moves; in a thread."""
        self.started = True
        return self._driver.advance(
            {name: Spoken(tuple(self.rows[name].turns), bool(over)) for name, over in self._asked.items()}
        )

    def ask(self, moves: Mapping[str, Move], number: Callable[[], int]) -> list[tuple[ActiveEpisode, str]]:
        """Applies moves, and returns for each the row and how it continues: it "begins", "goes on", "starts anew" or
        is "over"."""
        self._asked = dict.fromkeys(moves)
        outcomes: list[tuple[ActiveEpisode, str]] = []
        for name, move in moves.items():
            row = self.rows.get(name)
            if isinstance(move, Request) == (row is not None):
                raise RolloutError(f"The agent {name!r} of a rollout has {'no' if row is None else 'a'} row already.")
            if row is None:
                assert isinstance(move, Request)
                row = self.rows[name] = self._row(move, number())
                row.interaction = self
                outcomes.append((row, "over" if row.finish_reason is not None else "begins"))
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
