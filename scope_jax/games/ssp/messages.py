"""The prompts of SSP's roles (App. D), filled in.

Proposer and solver have the search tool and an optional system message; verification has neither.
"""

from __future__ import annotations

from typing import Any

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.games.ssp.options import options
from scope_jax.games.ssp.state import Slot
from scope_jax.play import grading, prompting
from scope_jax.play.prompting import shown
from scope_jax.text import templates
from scope_jax.text.messages import Messages

SEARCHING = ("proposer", "solver")  # roles that may search
EXAMPLES = ("example1", "example2", "example3")


def for_proposer(cfg: Config, slot: Slot, step: int) -> Messages:
    """Prompt to write a question for the slot's answer; example questions are redrawn for each row of each step."""
    known = ("answer", "n", *EXAMPLES)
    template = prompting.searcher_template(cfg, options(cfg).prompts, "proposer", known, ("answer",))
    values: dict[str, Any] = {"answer": shown(cfg, slot.golds[0]), "n": slot.searches}
    if wanted := [name for name in EXAMPLES if name in templates.variables(template.text)]:
        text = templates.load(options(cfg).prompts, "examples", known=(), required=())
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        order = rng("ssp examples", cfg.seed, step, slot.item).permutation(len(lines))
        values |= {name: lines[order[number % len(lines)]] for number, name in enumerate(wanted)}
    return templates.fill_messages(template, values | prompting.search_syntax(cfg))


def for_solver(cfg: Config, question: str) -> Messages:
    """Prompt to answer a question with searches."""
    return prompting.for_searcher(
        cfg, options(cfg).prompts, "solver", {"question": shown(cfg, question)}, ("question",)
    )


def for_verification(cfg: Config, question: str, materials: str) -> str:
    """Prompt to answer a question from materials, without searching."""
    values = {"materials": materials, "question": shown(cfg, question)}
    return prompting.filled(options(cfg).prompts, "rag", values, tuple(values))


def check_prompts(cfg: Config) -> None:
    """Fills in every prompt that the card's game uses, with sample values; raises PromptError."""
    for_proposer(cfg, Slot(0, 0, ("",), 1), 1)
    for_solver(cfg, "")
    if options(cfg).verify != "off":
        for_verification(cfg, "", "")
    if options(cfg).grader != "exact-match":
        grading.prompt(options(cfg).prompts)
