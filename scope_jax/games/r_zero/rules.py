"""The rules of R-Zero: rewards of both roles, questions whose value is known; pure functions."""

import re

from scope_jax.games.r_zero.options import RZeroSection
from scope_jax.grading.rewards import r_zero

has_value = re.compile(r"[\d\s+*()-]*\d[\d\s+*()-]*").fullmatch  # of sums, differences and products of numbers
_FORMAT = re.compile(r"<think>(?>.*?</think>)(?>.*?\\boxed\{).*?\}", re.DOTALL)


def challenger_reward(share: float | None, repetition: float, card: RZeroSection) -> float:
    """w (1 − 2 |p − ½|) − λ · repetition; without a question (share is None) `invalid_reward` − λ · repetition."""
    base = card.invalid_reward if share is None else card.uncertainty_weight * r_zero(share)
    reward = base - card.repetition_weight * repetition
    return max(0.0, reward) if card.floor else reward


def solver_reward(agrees: bool, text: str, weight: float) -> float:
    """(1 − w) · agrees + w · format; format: a closed `<think>` begins the answer, and a box follows it."""
    compact = "".join(piece.strip() for piece in re.split("([<>/])", text))
    formed = _FORMAT.match(compact) is not None
    return (1 - weight) * agrees + weight * formed
