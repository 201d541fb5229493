"""What a step of R-Zero and its memory hold: questions with their votes, the solver's attempts, the place in the run.

The memory is plain data: `iteration`, counted from 1; `phase`, one of the three below; `place`, the steps of the phase
that are done; `items`, the questions kept for the solver; `skipped`, the phases of the solver that had none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from scope_jax.games.r_zero.options import RZeroSection
from scope_jax.play.samples import Sample
from scope_jax.play.step import Memory

CHALLENGER = "challenger"
POOL = "pool"
SOLVER = "solver"


class Item(TypedDict):
    """A question that is kept for the solver."""

    question: str
    """x."""
    label: str
    """The answer of the majority."""


@dataclass(frozen=True)
class ChallengerReply:
    """A reply of the challenger."""

    sample: Sample
    """The reply."""
    question: str
    """x; "" if there is none that the solver can be asked."""
    votes: tuple[str | None, ...] = ()
    """The solver's answers; None: without a box."""
    label: str | None = None
    """The answer of the majority; None if it has none."""
    share: float | None = None
    """p, the share of the votes that agree with the label; None without a question, and before the votes."""
    repetition: float = 0.0
    """The share of the step's replies that are in its cluster; 0 if none were compared."""


@dataclass(frozen=True)
class SolverAnswer:
    """An answer of the solver, in its own phase."""

    item: Item
    """What was asked."""
    sample: Sample
    """The reply."""
    text: str | None
    """The content of its box; None without one."""
    agrees: bool = False
    """Whether that is the label; False before they are compared."""


# --------------------------------------------------------------------------------------------------- place in the run
def start(card: RZeroSection) -> Memory:
    """The memory before the first step."""
    return at_next_step(card, {"iteration": 1, "phase": CHALLENGER, "place": 0, "items": [], "skipped": 0})


def at_next_step(card: RZeroSection, memory: Memory) -> Memory:
    """The memory at the start of the next phase that has a step, if its own is over."""
    while memory["place"] >= steps_of_phase(card, memory):
        memory = _next_phase(memory)
    return memory


def steps_of_phase(card: RZeroSection, memory: Memory) -> int:
    """Number of steps of the phase; the solver's has none without a kept question."""
    if memory["phase"] == CHALLENGER:
        return card.challenger_steps
    if memory["phase"] == POOL:
        return 1
    return card.solver_steps if memory["items"] else 0


def _next_phase(memory: Memory) -> Memory:
    if memory["phase"] == CHALLENGER:
        return memory | {"phase": POOL, "place": 0}
    if memory["phase"] == POOL:
        return memory | {"phase": SOLVER, "place": 0}
    return {
        "iteration": memory["iteration"] + 1,
        "phase": CHALLENGER,
        "place": 0,
        "items": [],
        "skipped": memory["skipped"] + (not memory["items"]),
    }
