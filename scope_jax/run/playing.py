"""Plays the rollouts of one call of `Tools.play`, `interact` or `chains`; of several processes, each plays a part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scope_jax.play.driver import InteractionDriver, ResultDriver, ended
from scope_jax.play.rollouts import Interaction, Rollout
from scope_jax.rollouts.interactions import ActiveInteraction, InteractionEngine
from scope_jax.rollouts.keys import key_data
from scope_jax.run.processes import HandedOut, together


@dataclass(frozen=True)
class PlayPart:
    """What one process plays, begun together."""

    cost: float
    """Compared with that of other parts."""
    size: int
    """Slots that it needs."""
    begin: Callable[[], Iterable[ResultDriver]]
    """The drivers of its interactions, in the process that plays it."""


@dataclass(frozen=True)
class Playing:
    """Where parts are played."""

    weights: Mapping[str, str]
    """By the name of weights that are sampled from, a policy that has them; the first ones are used first."""
    local: InteractionEngine
    """This process's."""
    load: Callable[[str], None]
    """Loads the weights of a policy into it."""

    def results(self, what: str, parts: Sequence[PlayPart]) -> list[list[Any]]:
        """Those of each part's interactions, the same in all processes. what: names the parts. Raises as `together`
        does, and what ends the run (`play.failures`)."""
        handed = HandedOut(what, [part.cost for part in parts], [part.size for part in parts], self.local.slots)
        playing: dict[int, list[tuple[ResultDriver, ActiveInteraction]]] = {}  # by part

        def begun(numbers: Iterable[int]) -> Iterator[list[ActiveInteraction]]:
            for number in numbers:
                playing[number] = [(driver, self.local.interaction(driver)) for driver in parts[number].begin()]
                yield [interaction for _, interaction in playing[number]]

        with ended(lambda: (driver for pairs in playing.values() for driver, _ in pairs)):
            first = [interaction for part in begun(handed.first) for interaction in part]
            self._decode(what, first, begun(handed.later))
        return handed.gathered(
            lambda: [
                (number, [driver.result(interaction.completions()) for driver, interaction in pairs])
                for number, pairs in playing.items()
            ]
        )

    def _decode(
        self, what: str, first: Sequence[ActiveInteraction], later: Iterator[Sequence[ActiveInteraction]]
    ) -> None:
        """Lets the engine play them to their end, also those that are handed out later. Weights are loaded in turns, by
        all processes together: those of a policy are used until no rollout goes on with them."""
        active = [*first]

        def begun() -> Iterator[Sequence[ActiveInteraction]]:
            for part in later:
                active.extend(part)
                yield part

        more = begun()

        def turn(name: str) -> list[str]:
            """Plays as far as these weights lead; the names of those that are wanted next."""
            if left := [each for each in active if not each.over] or next(more, []):
                self.local.interact(left, name, more)
            return sorted(set().union(*(each.wanted for each in active)))

        wanted = {next(iter(self.weights))}
        while wanted:
            name = next(name for name in self.weights if name in wanted)
            self.load(self.weights[name])
            wanted = set().union(*together(partial(turn, name), what))


@dataclass(frozen=True)
class PlayCall:
    """One call of `Tools.play` or `Tools.interact`."""

    step: str
    """The step and the role, in words."""
    rollouts: Sequence[Rollout]
    """Their names differ."""
    samples: int
    """Of each rollout."""
    prompts: Mapping[str, tuple[int, ...]]
    """The ids of the prompts of rollouts without a generator, by name."""
    tokens: int
    """The most that all agents together sample in one sample of a rollout."""
    driver: Callable[[Rollout, int, str], InteractionDriver]
    """That of a sample of a rollout, by its number and the name of the group whose prompt it has."""

    @property
    def what(self) -> str:
        """Names what is played: what differs has other names."""
        number = key_data(self.samples, *(rollout.name for rollout in self.rollouts)).tobytes().hex()
        return f"{self.step}: {len(self.rollouts)} rollouts of {self.samples} samples, {number}"

    def played(self, playing: Playing) -> list[list[Interaction]]:
        """The samples of each rollout, in order; see `Playing.results`."""
        groups = self._groups()
        results = playing.results(self.what, [self._part(places) for places in groups])
        by_place: dict[int, list[Interaction]] = {}
        for places, flat in zip(groups, results, strict=True):
            for number, place in enumerate(places):
                by_place[place] = flat[number * self.samples : (number + 1) * self.samples]
        return [by_place[place] for place in range(len(self.rollouts))]

    def _groups(self) -> list[list[int]]:
        """The places of the rollouts, those whose prompts are equal together: they share a prefill."""
        groups: dict[object, list[int]] = {}
        for place, rollout in enumerate(self.rollouts):
            groups.setdefault(self.prompts.get(rollout.name, rollout.name), []).append(place)
        return [*groups.values()]

    def _part(self, places: Sequence[int]) -> PlayPart:
        known = [len(self.prompts.get(self.rollouts[place].name, ())) for place in places]
        cost = float(sum(self.samples * (prompt + self.tokens) for prompt in known))  # tokens known before
        return PlayPart(cost, self.samples * len(places), lambda: self._begun(places))

    def _begun(self, places: Sequence[int]) -> Iterator[InteractionDriver]:
        group = self.rollouts[places[0]].name
        for place in places:
            for sample in range(self.samples):
                yield self.driver(self.rollouts[place], sample, group)
