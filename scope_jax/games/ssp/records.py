"""The records of one step of SSP, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from scope_jax.learner.types import Judgement
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages


@dataclass(frozen=True)
class Slot:
    """A place in the batch for the `index`-th question, whose answer is that of row `item`."""

    index: int
    item: int
    golds: tuple[str, ...]
    searches: int  # how many the question should need


@dataclass(frozen=True)
class Proposal:
    """One proposer episode. reason: why its question is invalid, "" if it is valid."""

    slot: Slot
    attempt: int
    prompt: Messages
    completion: Completion
    question: str | None
    reason: str
    reply: str = ""  # of the verification
    judgements: tuple[Judgement, ...] = ()


@dataclass(frozen=True)
class Problem:
    """The solver's problem in a slot."""

    slot: int
    question: str
    golds: tuple[str, ...]
    origin: str  # fresh, replay or dummy


@dataclass(frozen=True)
class Solved:
    """The solver's n attempts at one problem. formed: whether an attempt keeps the format; correct: whether its answer
    is correct; judgements: an external judge's. All tuples have length n."""

    problem: Problem
    prompt: Messages
    completions: tuple[Completion, ...]
    predictions: tuple[str | None, ...]
    formed: tuple[bool, ...]
    correct: tuple[bool, ...]
    judgements: tuple[tuple[Judgement, ...], ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """r_solve = 1(a = a*) (Eq. (6)); an attempt that violates the format is never correct (A.2)."""
        return tuple(map(float, self.correct))
