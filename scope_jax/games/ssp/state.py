"""What a step of SSP and its memory hold: slots, questions, attempts, and the pool of earlier questions (App. B.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.config import Config
from scope_jax.games.ssp.options import options
from scope_jax.learner.types import Judgement
from scope_jax.play.game import Memory
from scope_jax.play.rewards import mean
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


def next_memory(cfg: Config, memory: Memory, solved: Sequence[Solved], step: int) -> Memory:
    """The pool with this step's valid questions, or emptied at the end of a period (App. B.1)."""
    if options(cfg).fill not in ("replay", "replay-reset"):
        return memory
    kept = ("fresh", "replay") if options(cfg).replay_keep_reused else ("fresh",)
    new = [
        entry(group.problem.question, group.problem.golds, step, mean(group.rewards))
        for group in solved
        if group.problem.origin in kept
    ]
    period = options(cfg).replay_reset_every if options(cfg).fill == "replay-reset" else None
    return {"pool": after_step(memory["pool"], new, step, period)}
