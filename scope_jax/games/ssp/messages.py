"""The prompts of SSP's roles (App. D), filled in.

Proposer and solver have the search tool and an optional system message; verification has neither.
"""

from __future__ import annotations

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.games.ssp.state import Slot
from scope_jax.play.prompting import Prompt, shown
from scope_jax.text import templates
from scope_jax.text.messages import Messages

EXAMPLES = ("example1", "example2", "example3")
PROPOSER = Prompt(
    "proposer", ("answer", "n", *EXAMPLES), ("answer",), searches=True, lines_of=dict.fromkeys(EXAMPLES, "examples")
)
SOLVER = Prompt("solver", ("question",), searches=True)
VERIFICATION = Prompt("rag", ("materials", "question"), system=False)


def for_proposer(cfg: Config, slot: Slot, step: int) -> Messages:
    """Prompt to write a question for the slot's answer; example questions are redrawn for each row of each step."""
    examples = {}
    if wanted := [name for name in EXAMPLES if name in templates.variables(PROPOSER.template(cfg).user)]:
        lines = PROPOSER.lines(cfg, wanted[0])
        order = rng("ssp examples", cfg.seed, step, slot.item).permutation(len(lines))
        examples = {name: lines[order[number % len(lines)]] for number, name in enumerate(wanted)}
    return PROPOSER.messages(cfg, answer=shown(cfg, slot.golds[0]), n=slot.searches, **examples)


def for_solver(cfg: Config, question: str) -> Messages:
    """Prompt to answer a question with searches."""
    return SOLVER.messages(cfg, question=shown(cfg, question))


def for_verification(cfg: Config, question: str, materials: str) -> str:
    """Prompt to answer a question from materials, without searching."""
    return VERIFICATION.text(cfg, materials=materials, question=shown(cfg, question))
