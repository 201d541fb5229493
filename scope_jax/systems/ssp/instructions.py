"""The prompts of SSP's roles (App. D), filled in.

Proposer and solver get the search as a tool and may have a system message; verification has neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.systems.ssp.records import Slot
from scope_jax.text import dialects, parsing, templates
from scope_jax.text.messages import Messages

SEARCHING = ("proposer", "solver")  # roles that may search
EXAMPLES = ("example1", "example2", "example3")
DIALECT = ("search", "results")  # what a search looks like, and where its results are


def _dialect(cfg: Config) -> dict[str, str]:
    words = dialects.load(cfg.model.dialect).words
    return {"search": words.call, "results": words.results}


def _safe(cfg: Config, text: str) -> str:
    return parsing.neutralise(text, dialects.load(cfg.model.dialect).tags)


def _template(cfg: Config, role: str, known: Sequence[str], required: Sequence[str]) -> Messages:
    """What a role that may search is told."""
    tools = dialects.load(cfg.model.dialect).tools
    return templates.load_messages(cfg.ssp.prompts, role, known=(*known, *DIALECT), required=required, tools=tools)


def for_proposer(cfg: Config, slot: Slot, step: int) -> Messages:
    """Write a question for the slot's answer; the example questions are drawn anew for each row of each step."""
    template = _template(cfg, "proposer", ("answer", "n", *EXAMPLES), ("answer",))
    values: dict[str, Any] = {"answer": _safe(cfg, slot.golds[0]), "n": slot.searches} | _dialect(cfg)
    if wanted := [name for name in EXAMPLES if name in templates.variables(template.text)]:
        lines = templates.load(cfg.ssp.prompts, "examples", known=(), required=()).splitlines()
        order = rng("ssp examples", cfg.seed, step, slot.item).permutation(len(lines))
        values |= {name: lines[order[place % len(lines)]] for place, name in enumerate(wanted)}
    return templates.fill_messages(template, values)


def for_solver(cfg: Config, question: str) -> Messages:
    """Answer a question with searches."""
    values = {"question": _safe(cfg, question)} | _dialect(cfg)
    return templates.fill_messages(_template(cfg, "solver", ("question",), ("question",)), values)


def for_verification(cfg: Config, question: str, materials: str) -> str:
    """Answer a question from materials, without a search."""
    names = ("materials", "question")
    text = templates.load(cfg.ssp.prompts, "rag", known=names, required=names)
    return templates.fill(text, {"materials": materials, "question": _safe(cfg, question)})
