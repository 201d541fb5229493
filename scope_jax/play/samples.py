"""`Sample`: a completion that knows where it comes from. And the metrics of a step that come by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from scope_jax.config import Config
from scope_jax.grading.rewards import means
from scope_jax.learner.types import Datum, Episode, Judgement, Metrics
from scope_jax.play.collapse import REJECTED
from scope_jax.play.roles import Role
from scope_jax.play.searching import lengths
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Sample(Completion):
    """A completion of a role in a step."""

    role: Role
    """Who was sampled."""
    rollout: str
    """The name of the rollout that it is a sample of."""
    prompt: Messages | None
    """What it began with; None if nobody knows."""
    temperature: float
    """At which it was sampled."""
    label: str
    """What the names of its metrics begin with."""

    def episode(
        self,
        reward: float,
        *,
        parts: Mapping[str, float] = NOTHING,
        text: Mapping[str, Any] = NOTHING,
        role: str = "",
        group: str = "",
        label: str = "",
        trained: bool | None = None,
        padding: bool = False,
        judgements: Sequence[Judgement] = (),
        datums: Sequence[Datum] | None = None,
        shows_prompt: bool = True,
    ) -> Episode:
        """The episode of this sample, with its prompt and turns as readable text before `text`.

        role: in place of the one that was sampled, where a role has several kinds of episodes. group: "": the samples
        of its rollout. label: "": the sample's, or `role`. trained: None: if the role learns. datums: in place of its
        own rows (`rewards.by_turn`). shows_prompt: False leaves the prompt out of the text. The rest as in `Episode`.
        """
        return Episode.from_completion(
            self,
            self.prompt if shows_prompt else None,
            text,
            role=role or self.role.name,
            policy=self.role.agent.policy,
            group=group or f"{role or self.role.name}/{self.rollout}",
            label=label or role or self.label,
            datums=Datum.from_completion(self) if datums is None else tuple(datums),
            reward=reward,
            parts=dict(parts),
            trained=self.role.learns if trained is None else trained,
            padding=padding,
            temperature=self.temperature,
            judgements=tuple(judgements),
        )


def sample_of(completion: Completion, role: Role, rollout: str, prompt: Messages | None, label: str) -> Sample:
    """The completion as a sample of a role; it is as the role's agent samples."""
    return Sample(
        rows=completion.rows,
        turns=completion.turns,
        finish_reason=completion.finish_reason,
        calls=completion.calls,
        role=role,
        rollout=rollout,
        prompt=prompt,
        temperature=role.agent.sampling.temperature,
        label=label,
    )


# ------------------------------------------------------------------------------------------------------------- metrics
def metrics(cfg: Config, samples: Iterable[Sample], episodes: Iterable[Episode], roles: Iterable[Role]) -> Metrics:
    """`<label>/<name>` of everything that was sampled in a step, and of its episodes.

    Of samples: lengths, and searches where they may search. Of episodes that were sampled, without those that fill a
    batch: the reward, its parts, and why they were rejected; a part with the name of one of samples takes its place.
    A mean of no values is left out.
    """
    of_samples: dict[str, list[float]] = {}
    by_label: dict[str, list[Sample]] = {}
    for sample in samples:
        by_label.setdefault(sample.label, []).append(sample)
    for label, same in by_label.items():
        searches = [sample.role.count_searches(cfg, sample) for sample in same]
        of_samples[f"{label}/searches"] = [float(count) for count in searches if count is not None]
        of_samples |= lengths(label, same)
    reasons = {role.name: role.rejections for role in roles if role.rejections}
    of_episodes: dict[str, list[float]] = {}
    for episode in episodes:
        if not episode.finish or episode.padding:
            continue
        label = episode.label or episode.role
        of_episodes.setdefault(f"{label}/reward", []).append(episode.reward)
        for name, value in episode.parts.items():
            of_episodes.setdefault(f"{label}/{name}", []).append(value)
        for reason in reasons.get(episode.role, ()):
            rejected = float(episode.text.get("rejected") == reason)
            of_episodes.setdefault(f"{label}/{REJECTED}{reason}", []).append(rejected)
    return means(of_samples | of_episodes)
