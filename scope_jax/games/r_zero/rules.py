"""The rules of R-Zero: rewards of both roles, questions that are kept or whose value is known; pure functions."""

import re
from collections.abc import Sequence

from scope_jax.games.r_zero.options import RZeroSection
from scope_jax.games.r_zero.state import ChallengerReply, Item
from scope_jax.grading.rewards import uncertainty

has_value = re.compile(r"[\d\s+*()-]*\d[\d\s+*()-]*").fullmatch  # of sums, differences and products of numbers
_FORMAT = re.compile(r"<think>(?>.*?</think>)(?>.*?\\boxed\{).*?\}", re.DOTALL)


def challenger_reward(share: float | None, repetition: float, card: RZeroSection) -> float:
    """w (1 − 2 |p − ½|) − λ · repetition; without a question (share is None) `invalid_reward` − λ · repetition."""
    base = card.invalid_reward if share is None else card.uncertainty_weight * uncertainty(share)
    reward = base - card.repetition_weight * repetition
    return max(0.0, reward) if card.floor else reward


def keep(card: RZeroSection, replies: Sequence[ChallengerReply]) -> list[Item]:
    """The questions with a label and p in the window."""
    lowest, highest = card.window
    return [
        Item(question=reply.question, label=reply.label)
        for reply in replies
        if reply.label and reply.share is not None and lowest <= reply.share <= highest
    ]


def solver_reward(agrees: bool, text: str, weight: float) -> float:
    """(1 − w) · agrees + w · format; format: a closed `<think>` begins the answer, and a box follows it."""
    compact = "".join(piece.strip() for piece in re.split("([<>/])", text))
    formed = _FORMAT.match(compact) is not None
    return (1 - weight) * agrees + weight * formed
