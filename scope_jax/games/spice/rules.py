"""SPICE's rewards, sub-sampling and grading, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scope_jax.config import one_of
from scope_jax.data.keys import drawn
from scope_jax.games.spice.options import ChallengerReward
from scope_jax.games.spice.records import MULTIPLE_CHOICE, Attempt, Task
from scope_jax.play.math_answers import Verdict
from scope_jax.play.measures import letter, same_text
from scope_jax.play.rewards import absolute_zero, r_zero

BEST_VARIANCE = 0.25  # of 0/1 correctness at a pass rate of one half (Eq. (1))
MATHEMATICAL = ("integer", "float", "expression")  # answer types compared by value


# ------------------------------------------------------------------------------------------------------------ rewards
def variance(pass_rate: float, width: float) -> float:
    """exp(−(Var − 0.25)²/(2 τ)) with Var = p (1 − p), the population variance of K answers (Eq. (1), Eq. (5))."""
    return math.exp(-((pass_rate * (1.0 - pass_rate) - BEST_VARIANCE) ** 2) / (2.0 * width))


def threshold(pass_rate: float) -> float:
    """1 unless all answers are correct or all are wrong (Figure 7)."""
    return float(0.0 < pass_rate < 1.0)


def reward(name: str, pass_rate: float, width: float) -> float:
    """The challenger's reward for a valid task (Eq. (1); the others: App. 8, Figure 7). Raises ValueError for an
    unknown name."""
    one_of("name", name, ChallengerReward)
    if name == "variance":
        return variance(pass_rate, width)
    return {"absolute-zero": absolute_zero, "threshold": threshold, "r-zero": r_zero}[name](pass_rate)


# ------------------------------------------------------------------------------------------------------- sub-sampling
def valid_share(valid: int, total: int, size: int) -> int:
    """How many of `size` attempts should be valid if `valid` of `total` are: proportional, rounded half up.

    At least one if any is valid, since a document without a valid attempt gives the reasoner no task. All valid ones if
    `total` is not above `size`.
    """
    if total <= size:
        return valid
    return min(max((2 * size * valid + total) // (2 * total), 1), valid)


def subsample(attempts: Sequence[Attempt], size: int, rng: np.random.Generator) -> list[Attempt]:
    """T_C: `size` attempts in the overall valid:invalid ratio (Algorithm 1 l.7), in order; all if there are fewer."""
    valid = [attempt for attempt in attempts if attempt.valid]
    invalid = [attempt for attempt in attempts if not attempt.valid]
    wanted = valid_share(len(valid), len(attempts), size)
    kept = drawn(valid, wanted, rng) + drawn(invalid, size - wanted, rng)
    return sorted(kept, key=lambda attempt: attempt.number)


# ------------------------------------------------------------------------------------------------------------ grading
def right(task: Task, prediction: str | None, verdict: Verdict | None = None) -> bool:
    """1[â = a*]: the same letter for a multiple-choice task; the same text or, for mathematical answers, an equal value
    otherwise (section 2.5). False without a prediction. verdict: on the pair, if it `needs_mathematics`."""
    if not prediction:
        return False
    if task.kind == MULTIPLE_CHOICE:
        return letter(prediction) == task.answer
    return same_text(prediction, [task.answer]) or verdict == "equal"


def needs_mathematics(task: Task, prediction: str | None) -> bool:
    """True if the answer has to be compared by value, as its text is another."""
    return task.kind in MATHEMATICAL and bool(prediction) and not same_text(prediction or "", [task.answer])
