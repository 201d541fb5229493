"""Chains: the parts of a step that follow each other for one item, beside those of all other items.

What a game does with an item (a document, a query, a cluster) is a generator. It waits for samples (`Step.sample`) and
goes on as soon as its own are there, while those of other items are still under way; only where it needs what others
have (`Step.gather`), it waits for them:

    def of_document(step, document):
        (tasks,) = yield from step.sample("challenger", [Rollout(document.name, prompt(document))], samples=4)
        return (yield from step.sample("reasoner", [Rollout(f"{document.name}.{n}", ...) for n, task in ...]))

    played = step.map(("challenger", "reasoner"), of_document, documents)

The generator of an item runs twice with the same samples: in the process that plays the item, as they come, and in all
processes, once all are there. So it depends on its step and item alone, and changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from scope_jax.errors import UserError
from scope_jax.play.driver import InteractionDriver, in_generator
from scope_jax.play.rollouts import Groups, Leg, RolloutRequest
from scope_jax.rollouts.interactions import Move, Spoken
from scope_jax.rollouts.types import Completion, RolloutError

Result = TypeVar("Result")


@dataclass(frozen=True)
class GatherRequest:
    """What a chain waits for: the results of work that is done once for the cases of all chains that wait for it."""

    name: str
    """Of the work."""
    work: Callable[[list[Any]], Sequence[Any]]
    """Gives a result for each case."""
    cases: Sequence[Any]
    """Those of this chain."""


Waiting = Generator[RolloutRequest | GatherRequest, Any, Result]  # what `Step.sample` and `Step.gather` are


class Chain(Generic[Result]):
    """An item's chain in all processes, as far as its samples are known. begin: a new generator of it, which may do
    what has no other effect than its requests; again: the same for the generator that plays."""

    def __init__(self, begin: Callable[[], Waiting[Result]], again: Callable[[], Waiting[Result]]) -> None:
        self._generator, self._again = begin(), again
        self._given: list[Any] = []
        self.wanted: RolloutRequest | GatherRequest | None = None
        """None: it is over."""
        self.result: Result
        self._advance(None)

    def take(self, given: Any) -> None:
        """Goes on with what it has waited for."""
        self._given.append(given)
        self._advance(given)

    def _advance(self, given: Any) -> None:
        try:
            with in_generator():
                self.wanted = self._generator.send(given)
        except StopIteration as end:
            self.wanted, self.result = None, end.value

    def leg(self) -> Leg:
        """What it asks for from here on, until it needs what others have or is over."""
        generator = self._again()
        try:
            wanted = next(generator)
            for given in [*self._given]:
                wanted = generator.send(given)
            while isinstance(wanted, RolloutRequest):
                wanted = generator.send((yield wanted))
        except StopIteration:
            return
        finally:
            generator.close()


def take_samples(chain: Chain[Any], requests: Sequence[Groups], known: set[tuple[str, str]]) -> None:
    """Lets a chain go on with what its leg was given. known: role and name of the rollouts of the step's chains so far.
    Raises UserError if two rollouts are alike, RolloutError if the chain asks for something else than its leg did."""
    for given in requests:
        wanted = chain.wanted
        if not isinstance(wanted, RolloutRequest):
            raise RolloutError(
                "the generator of an item asked for other samples the second time; let it depend on its step and item "
                "alone, and change nothing."
            )
        for rollout in wanted.rollouts:
            if (wanted.role, rollout.name) in known:
                raise UserError(
                    f"two rollouts of role {wanted.role!r} have the name {rollout.name!r}; give each its own."
                )
            known.add((wanted.role, rollout.name))
        chain.take(given)


def gather(chains: Sequence[Chain[Any]]) -> None:
    """Lets the chains that wait for others go on: the first of what they wait for is done, for all that wait for it."""
    wanted = {place: chain.wanted for place, chain in enumerate(chains) if isinstance(chain.wanted, GatherRequest)}
    first = next(iter(wanted.values()))
    same = {place: one for place, one in wanted.items() if one.name == first.name}
    places = [place for place, one in same.items() for _ in one.cases]
    results: dict[int, list[Any]] = {}
    for place, result in zip(places, first.work([case for one in same.values() for case in one.cases]), strict=True):
        results.setdefault(place, []).append(result)
    for place, given in results.items():
        chains[place].take(given)


@dataclass
class ChainDriver:
    """Plays a leg of a chain; see `rollouts.interactions.Driver`. drivers: those of the samples of each rollout of a
    request."""

    leg: Leg
    drivers: Callable[[RolloutRequest], list[list[InteractionDriver]]]
    _asked: list[list[list[str]]] = field(default_factory=list)
    """By request, the names of the samples of each rollout."""
    _under_way: dict[str, InteractionDriver] = field(default_factory=dict)
    _begun: bool = False

    @property
    def immediate(self) -> bool:
        """See `Driver`: the game's code runs."""
        return False

    def advance(self, spoken: Mapping[str, Spoken]) -> Mapping[str, Move]:
        """See `Driver`. Raises what the chain raises."""
        for name, driver in self._under_way.items():
            (agent,) = driver.agents
            driver.advance({agent: spoken[name]})  # ends it, as it has one turn to ask for
        self._under_way = {}
        try:
            with in_generator():
                wanted = self.leg.send(self._answered(spoken)) if self._begun else next(self.leg)
        except StopIteration:
            return {}
        self._begun = True
        return dict(self._moves(wanted))

    def _answered(self, spoken: Mapping[str, Spoken]) -> Groups:
        return [[spoken[name].completion() for name in group] for group in self._asked[-1]]

    def _moves(self, wanted: RolloutRequest) -> list[tuple[str, Move]]:
        moves: list[tuple[str, Move]] = []
        names: list[list[str]] = []
        for group in self.drivers(wanted):
            names.append([])
            for driver in group:
                name = f"{len(self._asked)}.{len(moves)}"
                self._under_way[name] = driver
                names[-1].append(name)
                (move,) = driver.advance({}).values()
                moves.append((name, move))
        self._asked.append(names)
        return moves

    def close(self) -> None:
        """Ends the leg and what is under way."""
        for driver in self._under_way.values():
            driver.close()
        self._under_way = {}
        if inspect.getgeneratorstate(self.leg) == inspect.GEN_SUSPENDED:
            self.leg.close()

    def result(self, completions: Mapping[str, Completion]) -> list[Groups]:
        """The samples of each request."""
        return [[[completions[name] for name in group] for group in names] for names in self._asked]
