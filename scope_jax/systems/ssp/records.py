"""The records of one step of SSP, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from rollouts.types import Completion
from scope_jax.learner.types import Judgement
from scope_jax.text.messages import Messages


@dataclass(frozen=True)
class Slot:
    """A place in the batch: the `index`-th question, to be proposed for the answer of row `item`."""

    index: int
    item: int
    golds: tuple[str, ...]
    searches: int  # how many the question shall need


@dataclass(frozen=True)
class Proposal:
    """One proposer episode; `reason` is empty while its question is valid."""

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
    """What the solver gets in a slot."""

    slot: int
    question: str
    golds: tuple[str, ...]
    origin: str  # fresh, replay or dummy


@dataclass(frozen=True)
class Solved:
    """The solver's attempts at one problem: completion, prediction, format kept, answer right, what a judge said of
    it, each of length n."""

    problem: Problem
    prompt: Messages
    completions: tuple[Completion, ...]
    predictions: tuple[str | None, ...]
    formed: tuple[bool, ...]
    correct: tuple[bool, ...]
    judgements: tuple[tuple[Judgement, ...], ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """r_solve = 1(a = a*) (Eq. (6)); an attempt out of format never counts as right (A.2)."""
        return tuple(map(float, self.correct))
