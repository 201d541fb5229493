"""The types passed between a game, the training loop and the learner: rows of tokens, episodes, updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scope_jax.config import AdvantageCard, LossCard
from scope_jax.rollouts.types import Completion

Metrics = dict[str, float]


@dataclass(frozen=True)
class Datum:
    """One training row before packing, with exactly the tokens the engine saw."""

    ids_T: np.ndarray
    """int32"""
    sampled_T: np.ndarray
    """bool, True for tokens sampled by the policy; False: prompt, observation, nudge."""
    logprobs_T: np.ndarray
    """float32, behaviour log-probs, 0 where not sampled."""
    entropies_T: np.ndarray | None = None
    """float32, nats, of the distributions that they are of, 0 where not sampled; None: not measured. Nothing is trained
    on them."""

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
                )
            )
        return tuple(datums)


@dataclass(frozen=True)
class Reply:
    """A model's reply to one message."""

    text: str
    refused: str = ""
    """Why an endpoint rejected the message; the text is then empty."""
    cut: str = ""
    """Why the text is only the beginning of a reply, such as "length"; "" if the model ended it."""


@dataclass(frozen=True)
class Judgement:
    """One request to a judge about an episode: all replies, and the parsed result."""

    job: str
    """For example "grader"."""
    about: str
    """The gate or criterion."""
    replies: tuple[Reply, ...]
    """Two if the first was malformed."""
    read: bool | int | str | None
    """A verdict, the number of criteria, or an answer; None: malformed."""


@dataclass(frozen=True)
class Episode:
    """One role's response to one prompt: rows to train on, and readable text."""

    role: str
    policy: str
    group: str
    """Names the prompt whose completions are compared with each other."""
    datums: tuple[Datum, ...]
    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Reward parts by name."""
    advantage: float | None = None
    """Set by `advantages.assign`, one number for all sampled tokens of the episode; None: not yet computed."""
    trained: bool = True
    """False: written to episodes.jsonl, but not trained."""
    temperature: float = 1.0
    """Of sampling."""
    weight: float = 1.0
    """Factor of its terms in the loss of its update."""
    padding: bool = False
    """It fills a slot of the batch and is not trained: it has no term in the loss and does not enter a baseline, but
    counts in the divisor of its update's loss."""
    text: Mapping[str, Any] = field(default_factory=dict)
    """Readable prompt, turns, question, answer …"""
    judgements: tuple[Judgement, ...] = ()

    def with_advantage(self, advantage: float) -> Episode:
        return replace(self, advantage=advantage)


@dataclass(frozen=True)
class RoleShare:
    """The episodes of one role in an update."""

    role: str
    advantage: AdvantageCard | None = None
    """How their advantages are computed; None: by the update's loss card."""
    weight: float = 1.0
    """Factor of all their terms in the loss; the divisor counts every episode once, whatever its weight."""


@dataclass(frozen=True)
class Update:
    """One learner update of a step: the episodes of its roles, trained together into `policy` with one loss card."""

    policy: str
    card: LossCard
    roles: tuple[RoleShare, ...]

    @property
    def name(self) -> str:
        """The prefix of its metrics."""
        return "+".join(share.role for share in self.roles)
