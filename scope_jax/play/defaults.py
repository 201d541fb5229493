"""What most games answer to the loop: one actor, trained for as many steps as the card says, nobody else asked.

A game takes from here what it does not say otherwise: a module by importing the functions, a game that is a file of
one's own without doing anything.
"""

from __future__ import annotations

from pathlib import Path

from scope_jax.config import Config, JudgeSection
from scope_jax.play.system import Memory

ACTOR = "actor"


def policies(cfg: Config) -> tuple[str, ...]:
    """One policy plays every role."""
    return (ACTOR,)


def uses_base(cfg: Config) -> bool:
    """The weights a run began with play no role."""
    return False


def searches(cfg: Config) -> bool:
    """No role searches."""
    return False


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """No outside model is asked."""
    return {}


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """No role has a system message in a file."""
    return ()


def start(cfg: Config) -> Memory:
    """Nothing is carried between steps."""
    return {}


def finished(cfg: Config, memory: Memory, step: int) -> bool:
    """The game goes on for as many steps as the card says."""
    return False


def total_steps(cfg: Config) -> int | None:
    """Those of the card."""
    return cfg.train.steps


def iterations(cfg: Config, memory: Memory) -> int:
    """A run is one row of steps."""
    return 0


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """What a run remembers is good under any card."""
    return memory
