"""`Step`: all that a game has in one step, and `Played`: what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from scope_jax.config import Config, SamplingSection
from scope_jax.data.keys import rng
from scope_jax.data.rows import Row
from scope_jax.errors import UserError
from scope_jax.grading.math_answers import SECONDS, Comparison, Verdict
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play import asking, judging
from scope_jax.play.asking import Replies
from scope_jax.play.chains import Chain, GatherRequest, Waiting, gather, take_samples
from scope_jax.play.prompting import folder_of
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Groups, Interaction, Rollout, RolloutRequest, agent_of
from scope_jax.play.samples import Sample, sample_of
from scope_jax.play.settings import SettingRecord
from scope_jax.play.tools import Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

Card = TypeVar("Card")
Read = TypeVar("Read")
Item = TypeVar("Item")
Case = TypeVar("Case")
Result = TypeVar("Result")
Memory = dict[str, Any]  # what is carried between steps: plain JSON data, saved with every checkpoint
REQUEST_COUNTS = ("asked", "retried", "malformed", "refused")  # numbers of requests to a judge, which are metrics


@dataclass(frozen=True)
class Played:
    """A step of a game before its updates."""

    episodes: Sequence[Episode]
    """Of all roles, without advantages."""
    outcome: Any = None
    """What happened, not the memory after it: `Game.remember` makes that of it. It is never saved."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The game's own numbers. Those of samples and episodes (`samples.metrics`) come by themselves; one of the same
    name here takes their place, and None leaves it out: the step has no value for it."""
    settings: Sequence[SettingRecord] = ()
    """Values of settings that change during a run, for the report."""


@dataclass
class Ledger:
    """What happened in a step, for its metrics."""

    samples: list[Sample] = field(default_factory=list)
    """Everything that was sampled for the step's `play` and `interact`, in order."""
    counts: Metrics = field(default_factory=dict)
    """Numbers of requests to judges, and of comparisons without a verdict, by metric."""

    def add(self, metric: str, number: int) -> None:
        """Adds to a count."""
        self.counts[metric] = self.counts.get(metric, 0.0) + float(number)


@dataclass(frozen=True)
class Step(Generic[Card]):
    """One step of a game: its card, its place in the run, and what it may use. Nothing in it outlives the step."""

    cfg: Config
    """The whole card."""
    card: Card
    """The game's own table of it."""
    roles: Mapping[str, Role]
    """By name."""
    tools: Tools
    """What a step needs besides sampling: tokens, searches, comparisons, records."""
    memory: Memory
    """The game's, after the steps before. It is not modified."""
    number: int
    """Steps before this one."""
    ledger: Ledger = field(default_factory=Ledger)
    """For its metrics."""

    def rng(self, name: str, *places: int | str) -> np.random.Generator:
        """Random numbers that depend on the run's seed, this name and these places alone; the step's number is a place
        like any other."""
        return rng(name, self.cfg.seed, *places)

    def rows(self, first: int, count: int) -> list[Row]:
        """Rows of the game's data by their position in an endless stream, see `Tools.rows`."""
        return self.tools.rows(first, count)

    def play(
        self,
        role: str,
        rollouts: Sequence[Rollout | Messages],
        *,
        samples: int = 1,
        sampling: SamplingSection | None = None,
        key: str = "",
        label: str = "",
    ) -> list[list[Sample]]:
        """`samples` of each rollout by a role, in order; equal prompts are prefilled once. A prompt alone is a rollout
        with its place as name.

        sampling: in place of the role's own. key: what enters the keys of the requests in place of the role's name.
        label: what the names of metrics begin with; "": the key, or the role's name. A rollout may have its own.
        """
        speaker = self._speaker(role, sampling)
        named = [
            each if isinstance(each, Rollout) else Rollout(f"{place}", each) for place, each in enumerate(rollouts)
        ]
        groups = self.tools.play(key or role, named, speaker.agent, samples)
        return self._samples(groups, speaker, named, label or key or role)

    def interact(
        self, roles: Sequence[str], rollouts: Sequence[Rollout], *, samples: int = 1, key: str
    ) -> list[list[Interaction[Sample]]]:
        """`samples` of each rollout, in order, whose generators ask these roles for turns; their completions are
        samples, whose metrics begin with the role's name after the rollout's label, if it has one. Several samples of a
        role (`Ask.samples`) are of one group, as all of a role in one rollout are, unless an episode says otherwise."""
        speakers = {name: self._speaker(name) for name in roles}
        agents = {name: role.agent for name, role in speakers.items()}
        groups = self.tools.interact(key, rollouts, agents, samples)
        return [
            [self._interaction(each, speakers, rollout) for each in group]
            for rollout, group in zip(rollouts, groups, strict=True)
        ]

    def map(
        self, roles: Sequence[str], work: Callable[[Step[Card], Item], Waiting[Result]], items: Sequence[Item]
    ) -> list[Result]:
        """What `work` returns for each item, in order: a generator (`play.chains`) that waits for samples of these
        roles and goes on as soon as its own are there, whatever other items wait for."""
        agents = {name: self._speaker(name).agent for name in roles}
        chains = [
            Chain(partial(work, self, item), lambda item=item: work(replace(self, ledger=Ledger()), item))
            for item in items
        ]
        known: set[tuple[str, str]] = set()
        while any(chain.wanted for chain in chains):
            playing = [chain for chain in chains if isinstance(chain.wanted, RolloutRequest)]
            if not playing:
                gather(chains)
                continue
            given = self.tools.chains(agents, [chain.leg for chain in playing])
            for chain, requests in zip(playing, given, strict=True):
                take_samples(chain, requests, known)
        return [chain.result for chain in chains]

    def sample(
        self,
        role: str,
        rollouts: Sequence[Rollout],
        *,
        samples: int = 1,
        sampling: SamplingSection | None = None,
        key: str = "",
        label: str = "",
    ) -> Waiting[list[list[Sample]]]:
        """`play` in the generator of an item (`map`): `groups = yield from step.sample(…)`. The name of a rollout is
        that of no other item's under the same key."""
        if not rollouts:
            return []
        speaker = self._speaker(role, sampling)
        groups = yield RolloutRequest(key or role, rollouts, speaker.agent, samples)
        return self._samples(groups, speaker, rollouts, label or key or role)

    def gather(
        self, name: str, work: Callable[[list[Case]], Sequence[Read]], cases: Sequence[Case]
    ) -> Waiting[list[Read]]:
        """In the generator of an item (`map`): the results of `work` for these cases, once no item goes on without it;
        it is then done once, for the cases of all items that wait for it, and may ask what all processes ask together:
        judges, graders, the game's tools."""
        if not cases:
            return []
        return (yield GatherRequest(name, work, cases))

    def ask(
        self, role: str, questions: Sequence[str], read: Callable[[str], Read | None], nudge: str = ""
    ) -> Replies[Read]:
        """The replies of a judge, the base or an external model, to these prompts (`asking.ask_role`); the numbers of
        requests are metrics `judge/<role>/…`."""
        replies = asking.ask_role(self.tools, self._role(role), questions, read, nudge)
        self.count(f"judge/{role}", replies)
        return replies

    def grade(self, rule: str, cases: Sequence[judging.Case]) -> judging.Grades:
        """The grades of answers (`judging.grade`); the numbers of requests to the judge are metrics `judge/…`."""
        grades = judging.grade(rule, folder_of(self.cfg), self.tools.judge, cases)
        self.count("judge", grades)
        return grades

    def count(self, prefix: str, requests: Replies[Any] | judging.Grades) -> None:
        """Adds numbers of requests to a judge to the metrics `<prefix>/…` of the step."""
        for name in REQUEST_COUNTS:
            self.ledger.add(f"{prefix}/{name}", getattr(requests, name))

    def compare_math(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> list[Verdict]:
        """The verdict on each pair of mathematical answers (`Tools.compare_math`); how many have none, since they took
        too long or cannot be read, are metrics `math/…`."""
        verdicts = self.tools.compare_math(comparisons, seconds) if comparisons else []
        self.ledger.add("math/given_up", verdicts.count("timeout"))
        self.ledger.add("math/unreadable", verdicts.count("unreadable"))
        return verdicts

    def tell(self, sentence: str) -> None:
        """Shows the user one sentence among the messages of the run."""
        self.tools.tell(sentence)

    def _role(self, name: str) -> Role:
        """The role of a name. Raises UserError if the game lists none."""
        if name not in self.roles:
            raise UserError(f"there is no role {name!r}; the game has {', '.join(self.roles)} (Game.roles).")
        return self.roles[name]

    def _speaker(self, role: str, sampling: SamplingSection | None = None) -> Role:
        speaker = self._role(role).with_reminder(self.cfg)
        if sampling is None:
            return speaker
        return replace(speaker, speaker=replace(speaker.agent, sampling=sampling))

    def _samples(self, groups: Groups, role: Role, rollouts: Sequence[Rollout], label: str) -> list[list[Sample]]:
        return [
            [self._sample(each, role, rollout.name, rollout.messages, rollout.label or label) for each in group]
            for rollout, group in zip(rollouts, groups, strict=True)
        ]

    def _sample(self, completion: Completion, role: Role, name: str, prompt: Messages | None, label: str) -> Sample:
        sample = sample_of(completion, role, name, prompt, label)
        self.ledger.samples.append(sample)
        return sample

    def _interaction(
        self, played: Interaction[Completion], speakers: Mapping[str, Role], rollout: Rollout
    ) -> Interaction[Sample]:
        prefix = f"{rollout.label}_" if rollout.label else ""
        said: dict[str, Sample] = {}
        for name, completion in played.completions.items():
            role = agent_of(name, speakers)
            prompt = played.prompts.get(name)
            said[name] = self._sample(completion, speakers[role], rollout.name, prompt, f"{prefix}{role}")
        return Interaction(played.value, said, played.calls, played.failed, played.prompts)
