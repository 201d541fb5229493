"""The prompts of SCOPE's roles (App. H), filled in. Foreign text is made safe before it enters a prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from scope_jax import parsing, templates
from scope_jax.config import Config
from scope_jax.systems.scope.records import Order

SOURCES = "\n\n---\n\n"  # between the documents a rubric is written from (released code)
_OWN_TAG = re.compile(r"<\s*(/?)\s*(task|score|scores|rubrics?)\b([^<>]*)>", re.IGNORECASE)


def shown(text: str) -> str:
    """`text` with the game's own tags in square brackets, so that what is quoted asks, answers and scores nothing."""
    return _OWN_TAG.sub(r"[\1\2\3]", parsing.neutralise(text))


def _prompt(cfg: Config, name: str, values: Mapping[str, object], required: Sequence[str]) -> str:
    text = templates.load(cfg.scope.prompts, name, known=tuple(values), required=required)
    return templates.fill(text, values)


def for_challenger(cfg: Config, order: Order, syntax: Mapping[str, str]) -> str:
    """Write a task of one type from a document."""
    values = {
        "document": shown(order.document),
        "task_type": order.kind.replace("_", " "),
        "description": _prompt(cfg, f"type_{order.kind}", {}, ()),
        "searches": order.searches,
    }
    return _prompt(cfg, "challenger", values | syntax, ("document",))


def for_solver(cfg: Config, question: str, syntax: Mapping[str, str]) -> str:
    """Answer a task with searches; told at most one search less than it has turns."""
    values = {"task": shown(question), "searches": cfg.scope.solver.max_turns - 1}
    return _prompt(cfg, "solver", values | syntax, ("task",))


def for_gate(cfg: Config, gate: str, task: str, document: str) -> str:
    """Is the task sound? gate: "entity" or "relevance"."""
    required = ("task", "document") if gate == "relevance" else ("task",)
    return _prompt(cfg, f"gate_{gate}", {"task": shown(task), "document": shown(document)}, required)


def for_rubric_writer(cfg: Config, task: str, sources: Sequence[str]) -> str:
    """Write the rubric of a task from the source document and what the challenger read."""
    values = {
        "task": shown(task),
        "documents": SOURCES.join(shown(text) for text in sources),
        "min_rubrics": cfg.scope.min_rubrics,
        "max_rubrics": cfg.scope.max_rubrics,
    }
    return _prompt(cfg, "rubric_writer", values, ("task", "documents"))


def for_grader(cfg: Config, task: str, answer: str, criterion: str) -> str:
    """Does the answer meet one criterion?"""
    values = {"task": shown(task), "answer": shown(answer), "criterion": shown(criterion)}
    return _prompt(cfg, "grader", values, ("answer", "criterion"))


def nudge(cfg: Config, kind: str) -> str:
    """What is added to a question whose reply could not be read; kind: "score" or "rubrics"."""
    return _prompt(cfg, f"nudge_{kind}", {}, ())


def not_run(cfg: Config, syntax: Mapping[str, str]) -> str:
    """What a policy is told about a search in a wrong form."""
    return _prompt(cfg, "search_not_run", syntax, ())


def turns_left(cfg: Config, left: int) -> str:
    """How many turns a challenger has left for searches, or that its task is due."""
    return _prompt(cfg, "turns_left", {"left": left}, ("left",)) if left > 0 else _prompt(cfg, "turns_over", {}, ())
