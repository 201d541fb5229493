"""The prompts of SCOPE's roles (App. H), filled in. Untrusted text is neutralised before it enters a prompt.

Challenger and solver have the search tool and an optional system message; the judge has neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from scope_jax.config import Config
from scope_jax.games.scope.options import ScopeSection, options
from scope_jax.games.scope.state import TaskOrder
from scope_jax.play.prompting import Prompt, shown
from scope_jax.text.messages import Messages

CHALLENGER = Prompt(
    "challenger", ("document", "task_type", "description", "searches"), required=("document",), searches=True
)
SOLVER = Prompt("solver", ("task", "searches"), required=("task",), searches=True)
NOT_RUN = Prompt("search_not_run", searches=True, system=False)  # the observation after a malformed search
TURNS_LEFT = Prompt("turns_left", ("left",), system=False)
TURNS_OVER = Prompt("turns_over", system=False)
GATE_PROMPTS = {
    "entity": Prompt("gate_entity", ("task", "document"), required=("task",), system=False),
    "relevance": Prompt("gate_relevance", ("task", "document"), system=False),
}
RUBRIC_WRITER = Prompt(
    "rubric_writer",
    ("task", "documents", "min_rubrics", "max_rubrics"),
    required=("task", "documents"),
    system=False,
)
RUBRICS_NUDGE = Prompt("nudge_rubrics", system=False)
SOURCES = "\n\n---\n\n"  # separates the documents from which a rubric is written (released code)


def of_challenger(card: ScopeSection) -> tuple[Prompt, ...]:
    """The challenger's prompts under a card."""
    kinds = [description(kind) for kind, share in card.task_types.items() if share > 0]
    turns = (TURNS_LEFT, TURNS_OVER) if card.dynamic_turns else ()
    return (CHALLENGER, *kinds, NOT_RUN, *turns)


def description(kind: str) -> Prompt:
    """The file that describes a type of task."""
    return Prompt(f"type_{kind}", system=False)


def for_challenger(cfg: Config, order: TaskOrder) -> Messages:
    """Prompt to write a task of one type from a document."""
    return CHALLENGER.messages(
        cfg,
        document=shown(cfg, order.document),
        task_type=order.kind.replace("_", " "),
        description=description(order.kind).text(cfg),
        searches=order.searches,
    )


def turns_left(cfg: Config, left: int) -> str:
    """Tells a challenger how many turns it has left for searches, or that it must write its task now."""
    return TURNS_LEFT.text(cfg, left=left) if left > 0 else TURNS_OVER.text(cfg)


def for_solver(cfg: Config, question: str, max_turns: int | None = None) -> Messages:
    """Prompt to answer a task with searches, at most one fewer than the turns; None: those of training."""
    turns = max_turns or options(cfg).solver.max_turns
    return SOLVER.messages(cfg, task=shown(cfg, question), searches=turns - 1)


def for_gate(cfg: Config, gate: str, task: str, document: str) -> str:
    """Prompt of a quality gate. gate: "entity" or "relevance"."""
    return GATE_PROMPTS[gate].text(cfg, task=shown(cfg, task), document=shown(cfg, document))


def for_rubric_writer(cfg: Config, task: str, sources: Sequence[str]) -> str:
    """Prompt to write the rubric of a task from the source document and the results the challenger read."""
    return RUBRIC_WRITER.text(
        cfg,
        task=shown(cfg, task),
        documents=SOURCES.join(shown(cfg, text) for text in sources),
        min_rubrics=options(cfg).min_rubrics,
        max_rubrics=options(cfg).max_rubrics,
    )
