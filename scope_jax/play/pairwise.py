"""Pairwise comparison: an external model says which of two answers is better, in both orders.

Judges have a position bias (Zheng et al. 2023), so each answer appears once as A and once as B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scope_jax.config import Config
from scope_jax.play import prompting
from scope_jax.play.asking import Send, ask
from scope_jax.text import parsing

Vote = Literal["A", "B", "tie"]
VOTES: dict[str, Vote] = {"a": "A", "b": "B", "tie": "tie"}


@dataclass(frozen=True)
class AnswerPair:
    """An answer and the reference it is compared with; None if there is no answer."""

    question: str
    answer: str | None
    reference: str


def vote_of(reply: str) -> Vote | None:
    """The first <verdict> outside of thinking; None unless it is A, B or tie."""
    return VOTES.get((parsing.first([parsing.without_thinking(reply)], "verdict") or "").lower())


def value(as_first: Vote | None, as_second: Vote | None) -> float | None:
    """Mean of the votes in both orders, 1 for the answer, 1/2 for a tie, 0 for the reference.

    as_first: the vote with the answer as A. None unless both votes exist, since a single one would be affected by the
    position bias.
    """
    if as_first is None or as_second is None:
        return None
    return ({"A": 1.0, "tie": 0.5, "B": 0.0}[as_first] + {"A": 0.0, "tie": 0.5, "B": 1.0}[as_second]) / 2


def compare(
    cfg: Config, prompts: str, send: Send, pairs: Sequence[AnswerPair], key: str
) -> list[tuple[Vote | None, Vote | None] | None]:
    """The votes on each pair, with the answer as A and as B; None for a pair without an answer, which is not sent.

    prompts: the folder with pairwise.txt and nudge_pairwise.txt. key: the key of the judge's table in the card. Raises
    JudgeError if the judge replies to many requests without a single vote, and PromptError.
    """
    questions = [
        question(cfg, prompts, pair.question, *order)
        for pair in pairs
        if pair.answer is not None
        for order in [(pair.answer, pair.reference), (pair.reference, pair.answer)]
    ]
    nudge = prompting.filled(prompts, "nudge_pairwise", {}) if questions else ""
    replies = ask(send, questions, vote_of, nudge=nudge, external=("the judge", key), closed=True)
    votes = iter(replies.read)
    return [None if pair.answer is None else (next(votes), next(votes)) for pair in pairs]


def question(cfg: Config, prompts: str, task: str, first: str, second: str) -> str:
    """Prompt to send which of two answers is better. Raises PromptError."""
    values = {"task": task, "first": first, "second": second}
    safe = {name: prompting.shown(cfg, text) for name, text in values.items()}
    return prompting.filled(prompts, "pairwise", safe, ("task", "first", "second"))


def check_prompts(cfg: Config, prompts: str) -> None:
    """Loads the prompts of the comparison; raises PromptError."""
    question(cfg, prompts, "", "", "")
    prompting.filled(prompts, "nudge_pairwise", {})
