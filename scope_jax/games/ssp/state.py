"""What a step of SSP and its memory hold: slots, questions, attempts, and the pool of earlier questions (App. B.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.games.ssp.options import SSPSection
from scope_jax.grading.rewards import mean
from scope_jax.learner.types import Judgement
from scope_jax.play.samples import Sample


@dataclass(frozen=True)
class Slot:
    """What the proposer is asked for: a question to which the answer is known."""

    index: int
    """In the step."""
    item: int
    """Index of the row whose answer it is."""
    golds: tuple[str, ...]
    """The accepted answers; the proposer is shown the first."""
    searches: int
    """How many the question should need."""


@dataclass(frozen=True)
class Proposal:
    """One proposer episode."""

    slot: Slot
    """What it was asked for."""
    attempt: int
    """Among those for this slot; more than one only with resampling."""
    sample: Sample
    """The proposer's episode."""
    question: str | None
    """Q(τ); None if there is none."""
    reason: str
    """Why its question is invalid, one of `rules.REASONS`; "" if it is valid."""
    reply: str = ""
    """Of the verification."""
    judgements: tuple[Judgement, ...] = ()
    """The verification, and an external judge's of its answer."""


@dataclass(frozen=True)
class Problem:
    """The solver's problem in a slot."""

    slot: int
    """Index of the slot."""
    question: str
    """q."""
    golds: tuple[str, ...]
    """The accepted answers; none of a dummy."""
    origin: str
    """Where it comes from: fresh (this step), replay (the pool) or dummy."""


@dataclass(frozen=True)
class Solved:
    """The solver's attempts at one problem; the tuples have length n."""

    problem: Problem
    """What was asked."""
    samples: tuple[Sample, ...]
    """The solver's episodes."""
    predictions: tuple[str | None, ...]
    """A(ρ); None without an answer."""
    formed: tuple[bool, ...]
    """Whether an attempt keeps the format."""
    correct: tuple[bool, ...]
    """Whether its answer is correct; False before they are graded."""
    judgements: tuple[tuple[Judgement, ...], ...]
    """An external judge's."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """r_solve = 1(a = a*) (Eq. (6)); an attempt that violates the format is never correct (A.2)."""
        return tuple(map(float, self.correct))


Entry = dict[str, Any]  # question, answers, the step that created it, the solver's mean reward at that step


def entry(question: str, golds: Sequence[str], step: int, solved: float) -> Entry:
    return {"question": question, "answers": list(golds), "step": step, "solved": solved}


def after_step(pool: Sequence[Entry], new: Sequence[Entry], step: int, reset_every: int | None) -> list[Entry]:
    """The pool with the step's entries added; emptied after every `reset_every`-th step (None: never).

    `step` counts from 0.
    """
    if reset_every is not None and (step + 1) % reset_every == 0:
        return []
    return [*pool, *new]


def replays(card: SSPSection) -> bool:
    """True if the slots of invalid questions are filled from the pool."""
    return card.fill in ("replay", "replay-reset")


def period(card: SSPSection) -> int | None:
    """Steps between two times that the pool is emptied; None: it never is."""
    return card.replay_reset_every if card.fill == "replay-reset" else None


def new_entries(card: SSPSection, solved: Sequence[Solved], step: int) -> list[Entry]:
    """The step's valid questions for the pool, reused ones only if the card says so."""
    kept = ("fresh", "replay") if card.replay_keep_reused else ("fresh",)
    return [
        entry(group.problem.question, group.problem.golds, step, mean(group.rewards))
        for group in solved
        if group.problem.origin in kept
    ]
