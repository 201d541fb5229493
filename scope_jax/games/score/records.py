"""The records of one step of SCORE, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages


@dataclass(frozen=True)
class Rubric:
    """(H, w): the base dimension, which has no weight, and the other dimensions with their weights, in order."""

    base: str
    weights: Mapping[str, float]

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The base first."""
        return (self.base, *self.weights)


@dataclass(frozen=True)
class Draft:
    """One rubric call of the evaluator.

    rubric: the rubric in use. If the reply was malformed, this is the card's fixed one, and `reason` names the fault.
    """

    name: str
    prompt: Messages
    completion: Completion
    rubric: Rubric
    reason: str


@dataclass(frozen=True)
class Assessment:
    """The evaluator's assessment of one report. scores: points by dimension."""

    scores: Mapping[str, float]
    verification: str = ""
    gap_analysis: str = ""
    citations: Mapping[str, int] | None = None  # their number by verdict; None: not checked


@dataclass(frozen=True)
class Report:
    """One rollout of the solver for the query at index `place` of the batch.

    text: the report, None if there is none. conclusion: the part that is compared with other reports. assessment: None
    if there is no valid one; `reason` then says why. depth: number of searches of the evaluator. reward: R_s.
    """

    place: int
    prompt: Messages
    completion: Completion
    rubric: Rubric
    text: str | None
    conclusion: str | None
    assessment: Assessment | None = None
    reason: str = ""
    depth: int = 0
    reward: float = 0.0


@dataclass(frozen=True)
class Call:
    """A conversation in which the evaluator assesses reports, given by their indices in the step.

    nudged: it was held twice, as the first had no valid assessment; `completion` is the one that counts.
    """

    reports: tuple[int, ...]
    completion: Completion
    nudged: bool = False


@dataclass(frozen=True)
class Constraints:
    """The scheduler's constraints (R_t, A_t) and exploration hints."""

    required: tuple[str, ...]
    avoided: tuple[str, ...]
    hints: tuple[str, ...]
