"""The prompts of SCOPE's roles (App. H), filled in. Untrusted text is neutralised before it enters a prompt.

Challenger and solver have the search tool and an optional system message; the judge has neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scope_jax.config import Config
from scope_jax.games.scope.options import options
from scope_jax.games.scope.rules import GATES
from scope_jax.games.scope.state import TaskOrder
from scope_jax.play import prompting, rubrics
from scope_jax.play.prompting import shown
from scope_jax.text.messages import Messages

SEARCHING = ("challenger", "solver")  # roles that may search
SOURCES = "\n\n---\n\n"  # separates the documents from which a rubric is written (released code)


def _prompt(cfg: Config, name: str, values: Mapping[str, object], required: tuple[str, ...]) -> str:
    return prompting.filled(options(cfg).prompts, name, values, required)


def _messages(cfg: Config, role: str, values: Mapping[str, object], required: tuple[str, ...]) -> Messages:
    return prompting.for_searcher(cfg, options(cfg).prompts, role, values, required)


def for_challenger(cfg: Config, order: TaskOrder) -> Messages:
    """Prompt to write a task of one type from a document."""
    values = {
        "document": shown(cfg, order.document),
        "task_type": order.kind.replace("_", " "),
        "description": _prompt(cfg, f"type_{order.kind}", {}, ()),
        "searches": order.searches,
    }
    return _messages(cfg, "challenger", values, ("document",))


def for_solver(cfg: Config, question: str, max_turns: int | None = None) -> Messages:
    """Prompt to answer a task with searches, at most one fewer than the turns; None: those of training."""
    values = {"task": shown(cfg, question), "searches": (max_turns or options(cfg).solver.max_turns) - 1}
    return _messages(cfg, "solver", values, ("task",))


def for_gate(cfg: Config, gate: str, task: str, document: str) -> str:
    """Prompt of a quality gate. gate: "entity" or "relevance"."""
    required = ("task", "document") if gate == "relevance" else ("task",)
    return _prompt(cfg, f"gate_{gate}", {"task": shown(cfg, task), "document": shown(cfg, document)}, required)


def for_rubric_writer(cfg: Config, task: str, sources: Sequence[str]) -> str:
    """Prompt to write the rubric of a task from the source document and the results the challenger read."""
    values = {
        "task": shown(cfg, task),
        "documents": SOURCES.join(shown(cfg, text) for text in sources),
        "min_rubrics": options(cfg).min_rubrics,
        "max_rubrics": options(cfg).max_rubrics,
    }
    return _prompt(cfg, "rubric_writer", values, ("task", "documents"))


def nudge(cfg: Config, kind: str) -> str:
    """Text appended to a request whose reply could not be parsed. kind: "score" or "rubrics"."""
    return _prompt(cfg, f"nudge_{kind}", {}, ())


def not_run(cfg: Config) -> str:
    """Observation after a malformed search."""
    return _prompt(cfg, "search_not_run", prompting.search_syntax(cfg), ())


def turns_left(cfg: Config, left: int) -> str:
    """Tells a challenger how many turns it has left for searches, or that it must write its task now."""
    return _prompt(cfg, "turns_left", {"left": left}, ("left",)) if left > 0 else _prompt(cfg, "turns_over", {}, ())


def check_prompts(cfg: Config) -> None:
    """Fills in every prompt that the card's game uses, with sample values; raises PromptError."""
    for_solver(cfg, "")
    not_run(cfg)
    rubrics.check_prompts(cfg, options(cfg).prompts)
    if options(cfg).mode == "curated":
        return
    for kind in options(cfg).task_types:
        for_challenger(cfg, TaskOrder(0, "", "", kind, 1))
    for left in (1, 0):
        turns_left(cfg, left)
    for gate in GATES if options(cfg).quality_gates else ():
        for_gate(cfg, gate, "", "")
    for_rubric_writer(cfg, "", ())
    nudge(cfg, "rubrics")
