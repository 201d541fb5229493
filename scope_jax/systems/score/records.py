"""The records of one step of SCORE, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollouts.types import Completion
from scope_jax.text.messages import Messages


@dataclass(frozen=True)
class Rubric:
    """(H, w): the base dimension, which has no weight, and the weights of the others in order."""

    base: str
    weights: Mapping[str, float]

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The base first."""
        return (self.base, *self.weights)


@dataclass(frozen=True)
class Draft:
    """One rubric call of the evaluator.

    rubric: what is used; the card's fixed one where the reply was malformed, and `reason` then says how.
    """

    name: str
    prompt: Messages
    completion: Completion
    rubric: Rubric
    reason: str


@dataclass(frozen=True)
class Assessment:
    """What the evaluator says of one report: points by dimension, and how many citations it found to be what."""

    scores: Mapping[str, float]
    verification: str = ""
    gap_analysis: str = ""
    citations: Mapping[str, int] | None = None  # by verdict; None: no citation check


@dataclass(frozen=True)
class Report:
    """One rollout of the solver for the query at `place`, and what became of it.

    text: the report, None without one. conclusion: what is compared with other reports. assessment: None without a
    valid one, and `reason` then says why. depth: searches of the evaluator. score: the base dimension's a as a share of
    the most points; reward: R_s.
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
    """One conversation in which the evaluator assesses reports, by their places in the step."""

    reports: tuple[int, ...]
    completion: Completion


@dataclass(frozen=True)
class Wishes:
    """(R_t, A_t) and hints of the scheduler."""

    required: tuple[str, ...]
    avoided: tuple[str, ...]
    hints: tuple[str, ...]
