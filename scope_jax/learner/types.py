"""The types passed between a game, the training loop and the learner: rows of tokens, episodes, updates."""

from __future__ import annotations

from collections.abc import Mapping
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
    """One training row before packing, with exactly the tokens the engine saw.

    ids_T: int32; sampled_T: bool, True for tokens sampled by the policy (False: prompt, observation, nudge);
    logprobs_T: float32 behaviour log-probs, 0 where not sampled. entropies_T: float32, nats, of the distributions that
    they are of, 0 where not sampled; None if they were not measured. Nothing is trained on them.
    """

    ids_T: np.ndarray
    sampled_T: np.ndarray
    logprobs_T: np.ndarray
    entropies_T: np.ndarray | None = None

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


def transcript(completion: Completion) -> list[dict[str, Any]]:
    """The turns as recorded in episodes.jsonl: kind and text."""
    return [{"kind": turn.kind, "text": turn.text} for turn in completion.turns]


@dataclass(frozen=True)
class Reply:
    """A model's reply to one message; refused: why an endpoint rejected it (the text is then empty).

    cut: why the text is only the beginning of a reply, such as "length"; "" if the model ended it.
    """

    text: str
    refused: str = ""
    cut: str = ""


@dataclass(frozen=True)
class Judgement:
    """One request to a judge about an episode: all replies, and the parsed result.

    job: for example "grader"; about: the gate or criterion; replies: two if the first was malformed.
    """

    job: str
    about: str
    replies: tuple[Reply, ...]
    read: bool | int | str | None  # a verdict, the number of criteria, or an answer; None: malformed


@dataclass(frozen=True)
class Episode:
    """One role's response to one prompt: rows to train on, and readable text.

    `group` names the prompt whose completions are compared with each other; `advantage` is set by
    `advantages.assign`, one number for all sampled tokens of the episode (None: not yet computed). `padding`
    fills a slot of the batch and is not trained: it has no term in the loss and does not enter a baseline, but
    counts in the divisor of its update's loss.
    """

    role: str
    policy: str
    group: str
    datums: tuple[Datum, ...]
    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)  # reward parts by name
    advantage: float | None = None
    trained: bool = True  # False: written to episodes.jsonl, but not trained
    temperature: float = 1.0  # sampling temperature
    weight: float = 1.0  # factor of its terms in the loss of its update
    padding: bool = False
    text: Mapping[str, Any] = field(default_factory=dict)  # readable prompt, turns, question, answer …
    judgements: tuple[Judgement, ...] = ()

    @staticmethod
    def from_completion(
        completion: Completion, prompt: Messages | None, text: Mapping[str, Any] = MappingProxyType({}), **fields: Any
    ) -> Episode:
        """The episode of one completion, with prompt and turns before the rest of its readable text.

        prompt: None leaves it out of the text. fields: role, policy, group, reward and others, see above.
        """
        shown = {} if prompt is None else {"prompt": prompt.text}
        text = {**shown, "turns": transcript(completion), **text}
        return Episode(datums=Datum.from_completion(completion), text=text, **fields)

    def with_advantage(self, advantage: float) -> Episode:
        return replace(self, advantage=advantage)


@dataclass(frozen=True)
class RoleShare:
    """The episodes of one role in an update.

    advantage: how their advantages are computed, None: by the update's loss card. weight: factor of all their terms in
    the loss; the divisor counts every episode once, whatever its weight.
    """

    role: str
    advantage: AdvantageCard | None = None
    weight: float = 1.0


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
