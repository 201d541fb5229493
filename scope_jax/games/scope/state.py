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
from scope_jax.games.scope.rules import ParsedTurn
from scope_jax.learner.types import Judgement
from scope_jax.play.rubrics import UNGRADED, Criterion, Graded, rubric_of
from scope_jax.play.samples import Sample
from scope_jax.play.step import Memory, Step

Entry = dict[str, Any]  # a task of the memory: question, rubric, document


@dataclass(frozen=True)
class RewardSum:
    """A reward, and what it is the sum of."""

    value: float
    """R."""
    parts: Mapping[str, float]
    """Its terms, and what they follow from."""


NO_REWARD = RewardSum(0.0, {})  # of what has not been rewarded yet


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

    index: int
    """Its position in the step."""
    order: TaskOrder
    """What was asked for."""
    sample: Sample
    """The challenger's episode."""
    turns: tuple[ParsedTurn, ...]
    """Its turns, as the rules see them."""
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
    solver_mean: float | None = None
    """ḡ of its task; None if it has no score, and before the solver's attempts."""
    reward: RewardSum = NO_REWARD
    """R_C."""


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
    graded: Graded = UNGRADED
    """Its verdicts and g(o, 𝒢)."""
    reward: RewardSum = NO_REWARD
    """R_S."""


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
def retain(card: ScopeSection, drafts: Sequence[TaskDraft]) -> list[Entry]:
    """The tasks with ℓ ≤ ḡ ≤ u, one per document (App. G)."""
    tasks: dict[str, Entry] = {}
    for draft in drafts:
        document = draft.order.key
        if rules.in_window(draft.solver_mean, card.window) and document not in tasks:
            rubric = [criterion.plain() for criterion in draft.rubric]
            tasks[document] = {"question": draft.task, "rubric": rubric, "document": document}
    return list(tasks.values())


def rubric_task(task: Mapping[str, Any], index: int) -> RubricTask:
    """The task of an entry of the memory, or of a row of `schemas.tasks`."""
    return RubricTask(index, task["question"], rubric_of(task))


def sample_tasks(step: Step[ScopeSection]) -> list[Entry]:
    """(q, 𝒢) ~ 𝒯: the tasks of this solver step, drawn without replacement until all have been used.

    A step has `solver_batch` tasks, or all tasks if there are fewer.
    """
    tasks = step.memory["tasks"]
    size = min(step.card.solver_batch, len(tasks))
    first = step.memory["place"] * size
    shuffled: list[Entry] = []  # every epoch has an order of its own
    for epoch in range((first + size - 1) // len(tasks) + 1):
        order = step.rng("scope tasks", step.memory["iteration"], epoch).permutation(len(tasks))
        shuffled += [tasks[index] for index in order]
    return shuffled[first : first + size]


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
