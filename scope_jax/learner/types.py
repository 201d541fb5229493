"""The types passed between a game, the training loop and the learner: rows of tokens, episodes, updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from scope_jax.config import AdvantageCard, LossCard
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

Metrics = dict[str, float]


@dataclass(frozen=True)
class Datum:
    """One training row before packing, with exactly the tokens the engine saw."""

    ids_T: np.ndarray
    """Token ids, int32."""
    sampled_T: np.ndarray
    """True for tokens sampled by the policy; False: prompt, observation, nudge."""
    logprobs_T: np.ndarray
    """Behaviour log-probs, float32; 0 where not sampled."""
    entropies_T: np.ndarray | None = None
    """Entropies in nats of the distributions that the tokens were drawn from, float32, 0 where not sampled; None: not
    measured. Nothing is trained on them."""
    credit_T: np.ndarray | None = None
    """Added to the episode's advantage token by token, float32; only its values of sampled tokens count. None: 0."""
    teacher_T: np.ndarray | None = None
    """Log-probs of the sampled tokens under a teacher, float32, for loss cards with `teacher`; None: not rated."""
    picked_TLk: np.ndarray | None = None
    """The experts that the engine's routers picked of each token (`Row.picked_TLk`), which the policy's pick again in
    an update; a token whose first two are equal has none. None: the policy's routers pick for themselves."""
    versions_T: np.ndarray | None = None
    """How many steps had been learned by the weights that sampled the token, int32, 0 where not sampled; None: steps do
    not overlap. Only metrics follow from them."""

    @staticmethod
    def from_completion(completion: Completion) -> tuple[Datum, ...]:
        """One datum per row of the completion: its prompt, which is not sampled, and everything after it."""
        datums = []
        for row in completion.rows:
            prompt = np.asarray(row.prompt_ids, np.int32)
            zeros = np.zeros(len(prompt), np.float32)
            datums.append(
                Datum(
                    np.concatenate([prompt, np.asarray(row.ids_T, np.int32)]),
                    np.concatenate([zeros.astype(bool), np.asarray(row.sampled_T, bool)]),
                    np.concatenate([zeros, np.asarray(row.logprobs_T, np.float32)]),
                    None if row.entropies_T is None else np.concatenate([zeros, row.entropies_T]),
                    picked_TLk=row.picked_TLk,
                    versions_T=None
                    if row.versions_T is None
                    else np.concatenate([np.zeros(len(prompt), np.int32), row.versions_T]),
                )
            )
        return tuple(datums)

    def with_teacher(self, logprobs: np.ndarray) -> Datum:
        """The row with a teacher's log-probs of its sampled tokens, in order. Raises ValueError for another number."""
        count = int(np.count_nonzero(self.sampled_T))
        if len(logprobs) != count:
            raise ValueError(f"the row has {count} sampled tokens, but a teacher rated {len(logprobs)}.")
        teacher_T = np.zeros(len(self.ids_T), np.float32)
        teacher_T[self.sampled_T] = logprobs
        return replace(self, teacher_T=teacher_T)

    def after(self, prompt_ids: Sequence[int] | np.ndarray) -> Datum:
        """The row with another prompt before its first sampled token, to be rated, not trained. Raises ValueError if
        it has no sampled token."""
        if not self.sampled_T.any():
            raise ValueError("the row has no sampled token, so it cannot follow another prompt.")
        start = int(np.argmax(self.sampled_T))
        prompt = np.asarray(prompt_ids, np.int32)
        zeros = np.zeros(len(prompt), np.float32)
        return Datum(
            np.concatenate([prompt, self.ids_T[start:]]),
            np.concatenate([zeros.astype(bool), self.sampled_T[start:]]),
            np.concatenate([zeros, self.logprobs_T[start:]]),
        )


def staleness(episode: Episode) -> np.ndarray:
    """How many steps had been learned less than before its update when its tokens were sampled, of all its sampled
    tokens, int32; empty where datums have no versions."""
    values = [
        episode.learned - datum.versions_T[datum.sampled_T] for datum in episode.datums if datum.versions_T is not None
    ]
    return np.concatenate(values) if values else np.zeros(0, np.int32)


def transcript(completion: Completion) -> list[dict[str, Any]]:
    """The turns as recorded in episodes.jsonl: kind and text."""
    return [{"kind": turn.kind, "text": turn.text} for turn in completion.turns]


@dataclass(frozen=True)
class Reply:
    """A model's reply to one message."""

    text: str
    """What it wrote; empty if the request was refused."""
    refused: str = ""
    """Why an endpoint rejected the request; "": it did not."""
    cut: str = ""
    """Why the text is only the beginning of a reply, such as "length"; "": the model ended it."""


@dataclass(frozen=True)
class Judgement:
    """One request to a judge about an episode: all replies, and the parsed result."""

    job: str
    """The judge's job, for example "grader"."""
    about: str
    """The gate or criterion."""
    replies: tuple[Reply, ...]
    """Its replies; two if the first was malformed."""
    read: bool | int | str | None
    """A verdict, the number of criteria, or an answer; None: malformed."""


@dataclass(frozen=True)
class Episode:
    """One role's response to one prompt: rows to train on, and readable text."""

    role: str
    """Name of the role."""
    policy: str
    """Name of the policy that was sampled."""
    group: str
    """Names the prompt whose completions are compared with each other."""
    datums: tuple[Datum, ...]
    """Its rows; the loss counts an episode as one sequence, however many it has."""
    reward: float
    """The reward, from which `advantages.assign` computes the advantage."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Parts of the reward by name."""
    advantage: float | None = None
    """One number for all sampled tokens of the episode; None: not yet computed."""
    trained: bool = True
    """False: written to episodes.jsonl, but not trained."""
    temperature: float = 1.0
    """Sampling temperature."""
    weight: float = 1.0
    """Factor of its terms in the loss of its update."""
    learned: int = 0
    """How many steps are learned before it is, where datums have `versions_T`."""
    padding: bool = False
    """Fills a slot of the batch and is not trained: it has no term in the loss and does not enter a baseline, but
    counts in the divisor of its update's loss."""
    text: Mapping[str, Any] = field(default_factory=dict)
    """Readable prompt, turns, question, answer …"""
    judgements: tuple[Judgement, ...] = ()
    """What judges were asked about it, and said."""
    finish: str = ""
    """The finish reason of what was sampled for it; "": nothing was, as for a given answer."""
    label: str = ""
    """What the names of its metrics begin with; "": its role."""

    @staticmethod
    def from_completion(
        completion: Completion, prompt: Messages | None, text: Mapping[str, Any] = MappingProxyType({}), **fields: Any
    ) -> Episode:
        """The episode of one completion, with prompt and turns before the rest of its readable text.

        prompt: None leaves it out of the text. fields: role, policy, group, reward and others, see above; datums
        replace the completion's own (`rewards.by_turn`).
        """
        shown = {} if prompt is None else {"prompt": prompt.text}
        text = {**shown, "turns": transcript(completion), **text}
        sampled = {"datums": Datum.from_completion(completion), "finish": completion.finish_reason}
        return Episode(**{**sampled, "text": text} | fields)

    @property
    def credit(self) -> float:
        """The largest absolute credit of its sampled tokens, 0 without one."""
        credits = [datum.credit_T[datum.sampled_T] for datum in self.datums if datum.credit_T is not None]
        return float(np.abs(np.concatenate(credits)).max(initial=0.0)) if credits else 0.0

    @property
    def signal(self) -> float:
        """The larger one of its advantage, absolute, and its credit: with 0 its reward teaches nothing."""
        return max(abs(self.advantage or 0.0), self.credit)

    def with_advantage(self, advantage: float) -> Episode:
        return replace(self, advantage=advantage)


@dataclass(frozen=True)
class RoleShare:
    """The episodes of one role in an update."""

    role: str
    """Name of the role."""
    advantage: AdvantageCard | None = None
    """How their advantages are computed; None: by the update's loss card."""
    weight: float = 1.0
    """Factor of all their terms in the loss; the divisor counts every episode once, whatever its weight."""


@dataclass(frozen=True)
class Update:
    """One learner update of a step: the episodes of its roles, trained together into `policy` with one loss card."""

    policy: str
    """Name of the policy that is trained."""
    card: LossCard
    """The loss."""
    roles: tuple[RoleShare, ...]
    """The roles whose episodes are trained together."""

    @property
    def name(self) -> str:
        """The prefix of its metrics."""
        return "+".join(share.role for share in self.roles)
