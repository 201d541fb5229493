"""Replay pool of earlier questions, which fill the slots of invalid ones (App. B.1). Plain data, part of the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scope_jax.config import Config
from scope_jax.games.ssp.options import options
from scope_jax.games.ssp.records import Solved
from scope_jax.play.game import Memory
from scope_jax.play.rewards import mean

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
