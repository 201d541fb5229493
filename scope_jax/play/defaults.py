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
    """The game does not sample from the base model."""
    return False


def searches(cfg: Config) -> bool:
    """No role searches."""
    return False


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """No external models."""
    return {}


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """No system message files."""
    return ()


def check_prompts(cfg: Config) -> None:
    """The game has no prompt folder."""


def start(cfg: Config) -> Memory:
    """Empty: nothing is carried between steps."""
    return {}


def finished(cfg: Config, memory: Memory, step: int) -> bool:
    """Never: the card's number of steps ends the run."""
    return False


def total_steps(cfg: Config) -> int | None:
    """The card's number of steps."""
    return cfg.train.steps


def iterations(cfg: Config, memory: Memory) -> int:
    """0: the game has no iterations."""
    return 0


def waits(cfg: Config, memory: Memory) -> bool:
    """Never: the game has no stages."""
    return False


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """The memory unchanged: it is valid under any card."""
    return memory
