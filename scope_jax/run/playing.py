"""Plays the rollouts of one call of `Tools.play` or `Tools.interact`; of several processes, each plays a part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from scope_jax.play.driver import InteractionDriver, ended
from scope_jax.play.rollouts import Interaction, Rollout
from scope_jax.rollouts.interactions import ActiveInteraction, InteractionEngine
from scope_jax.rollouts.keys import key_data
from scope_jax.run.processes import HandedOut, together


@dataclass(frozen=True)
class _Sample:
    """A sample of a rollout that is being played."""

    driver: InteractionDriver
    interaction: ActiveInteraction

    def result(self) -> Interaction:
        return self.driver.interaction(self.interaction.completions())


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
    weights: Mapping[str, str]
    """By the name of weights that are sampled from, a policy that has them; the first ones are used first."""
    driver: Callable[[Rollout, int, str], InteractionDriver]
    """That of a sample of a rollout, by its number and the name of the group whose prompt it has."""
    local: InteractionEngine
    """This process's."""
    load: Callable[[str], None]
    """Loads the weights of a policy into it."""

    @property
    def what(self) -> str:
        """Names what is played: what differs has other names."""
        number = key_data(self.samples, *(rollout.name for rollout in self.rollouts)).tobytes().hex()
        return f"{self.step}: {len(self.rollouts)} rollouts of {self.samples} samples, {number}"

    def played(self) -> list[list[Interaction]]:
        """The samples of each rollout, in order, the same in all processes. Raises as `together` does, and what ends
        the run (`play.failures`)."""
        what, parts = self.what, self._parts()
        costs = [float(sum(self._cost(place) for place in part)) for part in parts]
        handed = HandedOut(what, costs, [self.samples * len(part) for part in parts], self.local.slots)
        playing: dict[int, list[_Sample]] = {}  # by part, the samples of its rollouts

        def begun(numbers: Iterable[int]) -> Iterator[list[ActiveInteraction]]:
            for number in numbers:
                playing[number] = [*self._begun(parts[number])]
                yield [sample.interaction for sample in playing[number]]

        with ended(lambda: (sample.driver for samples in playing.values() for sample in samples)):
            first = [interaction for part in begun(handed.first) for interaction in part]
            self._decode(what, first, begun(handed.later))
        results = handed.gathered(
            lambda: [(number, [sample.result() for sample in samples]) for number, samples in playing.items()]
        )
        groups: dict[int, list[Interaction]] = {}
        for part, flat in zip(parts, results, strict=True):
            for number, place in enumerate(part):
                groups[place] = flat[number * self.samples : (number + 1) * self.samples]
        return [groups[place] for place in range(len(self.rollouts))]

    def _parts(self) -> list[list[int]]:
        """The places of the rollouts, those whose prompts are equal together: they share a prefill."""
        parts: dict[object, list[int]] = {}
        for place, rollout in enumerate(self.rollouts):
            parts.setdefault(self.prompts.get(rollout.name, rollout.name), []).append(place)
        return [*parts.values()]

    def _cost(self, place: int) -> int:
        """Tokens of a rollout's samples, as far as they are known before."""
        return self.samples * (len(self.prompts.get(self.rollouts[place].name, ())) + self.tokens)

    def _begun(self, part: Sequence[int]) -> Iterator[_Sample]:
        group = self.rollouts[part[0]].name
        for place in part:
            for sample in range(self.samples):
                driver = self.driver(self.rollouts[place], sample, group)
                yield _Sample(driver, self.local.interaction(driver, (self.rollouts[place].name, sample)))

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
