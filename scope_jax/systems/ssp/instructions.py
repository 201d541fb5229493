"""The prompts of SSP's roles (App. D), filled in."""

from __future__ import annotations

from typing import Any

from scope_jax import dialects, parsing, templates
from scope_jax.config import Config
from scope_jax.data import rng
from scope_jax.systems.ssp.records import Slot

EXAMPLES = ("example1", "example2", "example3")
DIALECT = ("search", "results")  # what a search looks like, and where its results are


def _dialect(cfg: Config) -> dict[str, str]:
    words = dialects.load(cfg.model.dialect).words
    return {"search": words.call, "results": words.results}


def _safe(cfg: Config, text: str) -> str:
    return parsing.neutralise(text, dialects.load(cfg.model.dialect).tags)


def for_proposer(cfg: Config, slot: Slot, step: int) -> str:
    """Write a question for the slot's answer; the example questions are drawn anew for each row of each step."""
    text = templates.load(cfg.ssp.prompts, "proposer", known=("answer", "n", *DIALECT, *EXAMPLES), required=("answer",))
    values: dict[str, Any] = {"answer": _safe(cfg, slot.golds[0]), "n": slot.searches} | _dialect(cfg)
    if wanted := [name for name in EXAMPLES if name in templates.variables(text)]:
        lines = templates.load(cfg.ssp.prompts, "examples", known=(), required=()).splitlines()
        order = rng("ssp examples", cfg.seed, step, slot.item).permutation(len(lines))
        values |= {name: lines[order[place % len(lines)]] for place, name in enumerate(wanted)}
    return templates.fill(text, values)


def for_solver(cfg: Config, question: str) -> str:
    """Answer a question with searches."""
    text = templates.load(cfg.ssp.prompts, "solver", known=("question", *DIALECT), required=("question",))
    return templates.fill(text, {"question": _safe(cfg, question)} | _dialect(cfg))


def for_verification(cfg: Config, question: str, materials: str) -> str:
    """Answer a question from materials, without a search."""
    names = ("materials", "question")
    text = templates.load(cfg.ssp.prompts, "rag", known=names, required=names)
    return templates.fill(text, {"materials": materials, "question": _safe(cfg, question)})
