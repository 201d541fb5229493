"""Defaults for the functions of a game: one actor, trained for the card's number of steps, without judges.

A game in this package imports the functions it does not define itself; a game in a file of your own gets them
automatically.
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
