"""The prompts of Dr. Zero's roles, filled in."""

from __future__ import annotations

from scope_jax.config import Config
from scope_jax.games.dr_zero.state import Passage
from scope_jax.play.prompting import Prompt, shown
from scope_jax.text.messages import Messages

PROPOSER = Prompt("proposer", ("document", "hops"), searches=True)
SOLVER = Prompt("solver", ("question",), searches=True)


def for_proposer(cfg: Config, passage: Passage) -> Messages:
    """Prompt to write a question with its answer about a passage."""
    return PROPOSER.messages(cfg, document=shown(cfg, passage.text), hops=passage.hops)


def for_solver(cfg: Config, question: str) -> Messages:
    """Prompt to answer a question with searches."""
    return SOLVER.messages(cfg, question=shown(cfg, question))
