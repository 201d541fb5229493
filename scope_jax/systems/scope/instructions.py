"""The prompts of SCOPE's roles (App. H), filled in. Foreign text is made safe before it enters a prompt.

Challenger and solver are given the search as a tool, and may have a system message; the judge has neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

from scope_jax.config import Config
from scope_jax.systems.scope.records import Order
from scope_jax.text import dialects, parsing, templates
from scope_jax.text.messages import Messages

SEARCHING = ("challenger", "solver")  # roles that may search
SOURCES = "\n\n---\n\n"  # between the documents a rubric is written from (released code)


def shown(cfg: Config, text: str) -> str:
    """`text` with all tags that mean something in square brackets: what is quoted asks, answers and scores nothing."""
    return _neutral(text, dialects.load(cfg.model.dialect).tags)


@lru_cache(maxsize=4096)  # an answer is shown once for each criterion, and may be long
def _neutral(text: str, tags: tuple[str, ...]) -> str:
    return parsing.neutralise(text, tags)


def _syntax(cfg: Config) -> dict[str, str]:
    """What a search looks like, and where its results are."""
    words = dialects.load(cfg.model.dialect).words
    return {"search": words.call, "results": words.results}


@cache  # a step fills the grader's prompt many thousand times
def _template(folder: str, name: str, known: tuple[str, ...], required: tuple[str, ...]) -> str:
    return templates.load(folder, name, known=known, required=required)


def _prompt(cfg: Config, name: str, values: Mapping[str, object], required: tuple[str, ...]) -> str:
    return templates.fill(_template(cfg.scope.prompts, name, tuple(values), required), values)


def _messages(cfg: Config, role: str, values: Mapping[str, object], required: tuple[str, ...]) -> Messages:
    """What a role that may search is told."""
    values, tools = {**values, **_syntax(cfg)}, dialects.load(cfg.model.dialect).tools
    template = templates.load_messages(cfg.scope.prompts, role, known=tuple(values), required=required, tools=tools)
    return templates.fill_messages(template, values)


def for_challenger(cfg: Config, order: Order) -> Messages:
    """Write a task of one type from a document."""
    values = {
        "document": shown(cfg, order.document),
        "task_type": order.kind.replace("_", " "),
        "description": _prompt(cfg, f"type_{order.kind}", {}, ()),
        "searches": order.searches,
    }
    return _messages(cfg, "challenger", values, ("document",))


def for_solver(cfg: Config, question: str) -> Messages:
    """Answer a task with searches, of which there can be one less than turns."""
    values = {"task": shown(cfg, question), "searches": cfg.scope.solver.max_turns - 1}
    return _messages(cfg, "solver", values, ("task",))


def for_gate(cfg: Config, gate: str, task: str, document: str) -> str:
    """Is the task sound? gate: "entity" or "relevance"."""
    required = ("task", "document") if gate == "relevance" else ("task",)
    return _prompt(cfg, f"gate_{gate}", {"task": shown(cfg, task), "document": shown(cfg, document)}, required)


def for_rubric_writer(cfg: Config, task: str, sources: Sequence[str]) -> str:
    """Write the rubric of a task from the source document and what the challenger read."""
    values = {
        "task": shown(cfg, task),
        "documents": SOURCES.join(shown(cfg, text) for text in sources),
        "min_rubrics": cfg.scope.min_rubrics,
        "max_rubrics": cfg.scope.max_rubrics,
    }
    return _prompt(cfg, "rubric_writer", values, ("task", "documents"))


def for_grader(cfg: Config, task: str, answer: str, criterion: str) -> str:
    """Does the answer meet one criterion?"""
    values = {"task": shown(cfg, task), "answer": shown(cfg, answer), "criterion": shown(cfg, criterion)}
    return _prompt(cfg, "grader", values, ("answer", "criterion"))


def nudge(cfg: Config, kind: str) -> str:
    """What is added to a question whose reply could not be read; kind: "score" or "rubrics"."""
    return _prompt(cfg, f"nudge_{kind}", {}, ())


def not_run(cfg: Config) -> str:
    """What a policy is told about a search in a wrong form."""
    return _prompt(cfg, "search_not_run", _syntax(cfg), ())


def turns_left(cfg: Config, left: int) -> str:
    """How many turns a challenger has left for searches, or that its task is due."""
    return _prompt(cfg, "turns_left", {"left": left}, ("left",)) if left > 0 else _prompt(cfg, "turns_over", {}, ())
