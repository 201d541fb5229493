"""A pool of earlier questions that fill the slots of invalid ones (App. B.1). Plain data, part of the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Entry = dict[str, Any]  # question, answers, step of its making, mean reward of the solver then


def entry(question: str, golds: Sequence[str], step: int, solved: float) -> Entry:
    return {"question": question, "answers": list(golds), "step": step, "solved": solved}


def draw(pool: Sequence[Entry], count: int, rng: np.random.Generator) -> list[Entry]:
    """`count` entries without replacement, the whole pool in random order where it has fewer."""
    return [pool[index] for index in rng.permutation(len(pool))[:count]]


def after_step(pool: Sequence[Entry], new: Sequence[Entry], step: int, reset_every: int | None) -> list[Entry]:
    """The pool with the step's entries; empty after every `reset_every`-th step (`step` counts from 0; None: never)."""
    if reset_every is not None and (step + 1) % reset_every == 0:
        return []
    return [*pool, *new]
