"""What a step of SCOPE holds, and the memory of a run: iteration, stage, step within the stage, tasks.

challenger ──► tasks ──► solver ──► next iteration          curated prompts: solver only
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from scope_jax.config import Config
from scope_jax.games.scope import rules
from scope_jax.games.scope.options import ScopeSection, options
from scope_jax.games.scope.rules import Format, ParsedTurn
from scope_jax.learner.types import Judgement
from scope_jax.play.rubrics import Criterion, Graded, rubric_of
from scope_jax.play.samples import Sample
from scope_jax.play.step import Memory, Step

Entry = dict[str, Any]  # a task of the memory: question, rubric, document, task_type, score


@dataclass(frozen=True)
class TaskOrder:
    """What a challenger is asked for: a task from a document."""

    index: int
    """Its position in the step."""
    key: str
    """Identifies the document."""
    document: str
    """Title and text."""
    kind: str
    """The type of the task."""
    searches: int
    """The expected number of searches."""


@dataclass(frozen=True)
class TaskDraft:
    """One challenger episode."""

    order: TaskOrder
    """What was asked for."""
    sample: Sample
    """The challenger's episode."""
    format: Format
    """The parts of r_fmt(o^C)."""
    task: str | None
    """q; None if there is none."""
    rejected: str
    """Why its task is invalid, one of `rules.REASONS`; "" if it is valid."""
    gates: Mapping[str, bool | None] = field(default_factory=dict)
    """Verdict by gate; empty if not judged."""
    rubric: tuple[Criterion, ...] = ()
    """𝒢; empty if there is none."""
    judgements: tuple[Judgement, ...] = ()
    """The judge's replies about it."""


@dataclass(frozen=True)
class RubricTask:
    """A task for the solver, with the rubric that grades it."""

    index: int
    """That of its draft, or its position in the batch."""
    question: str
    """q."""
    rubric: tuple[Criterion, ...]
    """𝒢."""


@dataclass(frozen=True)
class TaskAttempt:
    """One solver episode."""

    sample: Sample
    """The solver's episode."""
    turns: tuple[ParsedTurn, ...]
    """Its turns, as the rules see them."""
    answer: str | None
    """a; None if there is none."""
    tokens: int
    """Length of the answer."""
    graded: Graded
    """Its verdicts and g(o, 𝒢)."""


@dataclass(frozen=True)
class AttemptedTask:
    """The solver's attempts at one task."""

    task: RubricTask
    """What was asked."""
    attempts: tuple[TaskAttempt, ...]
    """In the order of their samples."""
    mean: float | None = None
    """ḡ, their mean score; None if none of them counts."""


class ScopeOutcome(TypedDict):
    """What happened in a step, for the memory."""

    rows: int
    """Rows of the stream that were used."""
    tasks: list[Entry]
    """Tasks that were kept."""
    scores: list[float]
    """Of a solver step: the mean ḡ of its tasks, unless none has one."""


# --------------------------------------------------------------------------------------------------------------- tasks
def retain(card: ScopeSection, drafts: Sequence[TaskDraft], attempted: Sequence[AttemptedTask]) -> list[Entry]:
    """The tasks with ℓ ≤ ḡ ≤ u, one per document (App. G)."""
    tasks: dict[str, Entry] = {}
    for group in attempted:
        order = drafts[group.task.index].order
        if rules.in_window(group.mean, card.window) and order.key not in tasks:
            tasks[order.key] = {
                "question": group.task.question,
                "rubric": [criterion.plain() for criterion in group.task.rubric],
                "document": order.key,
                "task_type": order.kind,
                "score": group.mean,
            }
    return list(tasks.values())


def rubric_task(task: Mapping[str, Any], index: int) -> RubricTask:
    """The task of an entry of the memory, or of a row of `schemas.tasks`."""
    return RubricTask(index, task["question"], rubric_of(task))


def sample_tasks(step: Step[ScopeSection]) -> list[Entry]:
    """(q, 𝒢) ~ 𝒯: the tasks of this solver step, drawn without replacement until all have been used.

    A step has `solver_batch` tasks, or all tasks if there are fewer.
    """
    tasks, place = step.memory["tasks"], step.memory["place"]
    size = min(step.card.solver_batch, len(tasks))
    sampled = []
    for position in range(place * size, (place + 1) * size):
        epoch, index = divmod(position, len(tasks))
        order = step.rng("scope tasks", step.memory["iteration"], epoch).permutation(len(tasks))
        sampled.append(tasks[order[index]])
    return sampled


# -------------------------------------------------------------------------------------------------------------- stages
def start(cfg: Config) -> Memory:
    """Before the first step. drawn: rows of the stream used; measured: the solver's mean scores in this iteration."""
    return {"drawn": 0, **_opened(cfg, 1)}


def _opened(cfg: Config, iteration: int) -> Memory:
    """The memory at the start of an iteration, without `drawn`; iterations count from 1."""
    frozen_after = options(cfg).freeze_challenger_after
    if options(cfg).mode == "curated":
        stage = "solver"
    else:
        stage = "tasks" if frozen_after is not None and iteration > frozen_after else "challenger"
    return {"iteration": iteration, "stage": stage, "place": 0, "tasks": [], "measured": []}


def rows_needed(card: ScopeSection, stage: str) -> int:
    """Number of data rows that a step of a stage uses."""
    if stage == "solver":
        return card.solver_batch if card.mode == "curated" else 0
    return card.challenger_batch if stage == "challenger" else card.generation_batch


def after_step(cfg: Config, memory: Memory, outcome: ScopeOutcome) -> Memory:
    """The memory after a step: at the next place of its stage, or at the start of the next one."""
    after = {
        "drawn": memory["drawn"] + outcome["rows"],
        "place": memory["place"] + 1,
        "tasks": [*memory["tasks"], *outcome["tasks"]],
        "measured": [*memory["measured"], *outcome["scores"]],
    }
    return _moved_on(cfg, memory | after)


def adopted(cfg: Config, memory: Memory, before: Config) -> Memory:
    """Converts the memory of a run with card `before` for a run with `cfg`: an iteration that has not begun is set up
    again by `cfg`; one in progress continues in its stage, unless that is already complete under `cfg`."""
    iteration = memory["iteration"]
    not_begun = all(memory[key] == value for key, value in _opened(before, iteration).items())
    return memory | _opened(cfg, iteration) if not_begun else _moved_on(cfg, memory)


def _moved_on(cfg: Config, memory: Memory) -> Memory:
    """The memory at the start of the next stage, if the current one is complete.

    Task generation ends when the target or the maximum number of batches is reached. If it has found no task, the
    iteration ends without solver steps.
    """
    card, place = options(cfg), memory["place"]
    match memory["stage"]:
        case "challenger":
            return memory | {"stage": "tasks", "place": 0} if place >= card.steps_per_iteration else memory
        case "tasks":
            memory = memory | {"tasks": memory["tasks"][: card.target_tasks]}
            if len(memory["tasks"]) < card.target_tasks and place < card.max_batches:
                return memory
            if memory["tasks"]:
                return memory | {"stage": "solver", "place": 0}
        case _:
            if place < card.steps_per_iteration:
                return memory
    return memory | _opened(cfg, memory["iteration"] + 1)
