"""The prompts of R-Zero's roles, filled in."""

from __future__ import annotations

from scope_jax.config import Config
from scope_jax.play.prompting import Prompt, shown
from scope_jax.text.messages import Messages

CHALLENGER = Prompt("challenger")
SOLVER = Prompt("solver", ("question",))


def for_challenger(cfg: Config) -> Messages:
    """Prompt to write a question; it is always the same."""
    return CHALLENGER.messages(cfg)


def for_solver(cfg: Config, question: str) -> Messages:
    """Prompt to answer a question."""
    return SOLVER.messages(cfg, question=shown(cfg, question))
