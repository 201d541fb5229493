"""What a step of SSP and its memory hold: slots, questions, attempts, and the pool of earlier questions (App. B.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.games.ssp.options import SSPSection
from scope_jax.learner.types import Judgement, Reply
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
    """τ, the proposer's episode."""
    question: str | None
    """Q(τ); None if there is none."""
    reason: str = ""
    """Why its question is invalid, one of `rules.REASONS`; "" if no rule and no verification has rejected it."""
    reply: str = ""
    """Of the verification, σ."""
    judgements: tuple[Judgement, ...] = ()
    """The verification, and an external judge's of its answer."""
    solver_mean: float | None = None
    """The solver's mean reward on its question, once it is known; None if the question is invalid."""
    reward: float = 0.0
    """r̄_propose, once it is known."""


@dataclass(frozen=True)
class QuestionVerification:
    """The request for σ: to answer a question from what its proposer has read, and noise."""

    proposal: Proposal
    """Whose question it is."""
    prompt: str
    """The question and the materials."""
    reply: Reply | None = None
    """σ; None before it is answered, and if the prompt is too long for the policy."""
    answer: str | None = None
    """A(σ); None without one."""


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
class ProblemAttempt:
    """One of the solver's n attempts at a problem."""

    problem: Problem
    """What was asked."""
    sample: Sample
    """ρ, the solver's episode."""
    prediction: str | None
    """A(ρ); None without an answer."""
    keeps_format: bool
    """Otherwise it gets no reward (A.2)."""
    reward: float = 0.0
    """r_solve = 1(a = a*) (Eq. (6)), once it is graded."""
    judgements: tuple[Judgement, ...] = ()
    """An external judge's."""


Entry = dict[str, Any]  # of the pool: question, answers


def replays(card: SSPSection) -> bool:
    """True if the slots of invalid questions are filled from the pool."""
    return card.fill in ("replay", "replay-reset")


def new_entries(card: SSPSection, problems: Sequence[Problem]) -> list[Entry]:
    """The step's valid questions for the pool, reused ones only if the card says so."""
    origins = ("fresh", "replay") if card.replay_keep_reused else ("fresh",)
    return [{"question": p.question, "answers": list(p.golds)} for p in problems if p.origin in origins]


def after_step(card: SSPSection, pool: Sequence[Entry], new: Sequence[Entry], number: int) -> list[Entry]:
    """The pool with the entries of a step, counted from 0, if the card replays; emptied after every
    `replay_reset_every`-th step with `replay-reset`."""
    if card.fill == "replay-reset" and (number + 1) % card.replay_reset_every == 0:
        return []
    return [*pool, *new] if replays(card) else list(pool)
