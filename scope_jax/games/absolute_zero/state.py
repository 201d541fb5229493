"""What a step of Absolute Zero and its memory hold: tasks, the buffers of them, proposals, answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from scope_jax.data.keys import drawn
from scope_jax.games.absolute_zero.options import Kind
from scope_jax.grading.rewards import mean
from scope_jax.play.samples import Sample


class Draft(TypedDict):
    """What a proposer writes of a task."""

    program: str
    """With a function f."""
    inputs: list[str]
    """The arguments of its calls as text; of an induction several calls, else one."""
    message: str
    """A hint at the program of an induction; "" in other tasks."""


class Task(Draft):
    """A valid task, plain data as in memory and in the rows of exams."""

    outputs: list[str]
    """The values of the calls as text."""
    step: int
    """The step that it is from, counted from 1; 0: the seeding."""


Buffers = Mapping[str, Sequence[Task]]  # by kind; the oldest task first


class AbsoluteZeroOutcome(TypedDict):
    """What a step adds to the buffers."""

    first_buffers: Buffers | None
    """Those that the seeding has filled, in the first step; None in later ones."""
    tasks: Buffers
    """The step's valid tasks."""


@dataclass(frozen=True)
class TaskProposal:
    """A reply of the proposer."""

    kind: Kind
    """Of the task that it was asked for."""
    sample: Sample
    """The reply."""
    draft: Draft | None
    """What it proposes; None if it breaks a rule."""
    task: Task | None = None
    """The same with the outputs of its program; None: it is not valid, or has not been run yet."""


@dataclass(frozen=True)
class SolverProblem:
    """A task for the solver."""

    kind: Kind
    """What is asked for."""
    task: Task
    """What it is about."""
    proposal: str = ""
    """The name of the rollout that has proposed it in this step; "" if it is not new."""


@dataclass(frozen=True)
class AnswerCase:
    """A reply of the solver to be graded."""

    problem: SolverProblem
    """What was asked."""
    reply: str
    """All that was answered."""


@dataclass(frozen=True)
class ProgramAttempt:
    """An answer of the solver to a problem."""

    problem: SolverProblem
    """What was asked."""
    sample: Sample
    """The answer."""
    grade: float | None = None
    """1 right, 0 wrong; None: there is none, it is in a bad form, or it has not been graded yet."""


def identity(count: int) -> Task:
    """The task that the first ones are written after, with `count` calls."""
    values = [str(value) for value in range(count)]
    return Task(program="def f(a):\n    return a", inputs=values, outputs=values, message="", step=0)


def task_of(row: Mapping[str, Any]) -> Task:
    """The task of a row of an exam."""
    return Task(program=row["program"], inputs=row["inputs"], outputs=row["outputs"], message=row["message"], step=0)


def new_problems(proposals: Sequence[TaskProposal]) -> list[SolverProblem]:
    """The tasks of valid proposals, in order."""
    return [SolverProblem(one.kind, one.task, one.sample.rollout) for one in proposals if one.task is not None]


def solve_rates(estimates: Sequence[ProgramAttempt]) -> dict[str, float]:
    """p, the share of right answers to each new task, by the name of the rollout that has proposed it."""
    grades: dict[str, list[float]] = {}
    for attempt in estimates:
        grades.setdefault(attempt.problem.proposal, []).append(attempt.grade or 0.0)
    return {proposal: mean(values) for proposal, values in grades.items()}


def add_to_buffers(buffers: Buffers, new: Buffers, most: int) -> dict[str, list[Task]]:
    """The buffers with new tasks; of more than `most` tasks of a kind the oldest are left out."""
    return {kind: [*buffers[kind], *tasks][-most:] for kind, tasks in new.items()}


def without_repetition(tasks: Sequence[Task]) -> list[Task]:
    """Of tasks with the same program and inputs the last one, at the place of the first."""
    distinct = {(task["program"], *task["inputs"]): task for task in tasks}
    return list(distinct.values())


def choose_for_solver(buffer: Sequence[Task], count: int, step: int, rng: np.random.Generator) -> list[Task]:
    """`count` tasks of a buffer, or all if there are fewer: those of a step first, the rest drawn from the others."""
    of_step = drawn([task for task in buffer if task["step"] == step], count, rng)
    others = drawn([task for task in buffer if task["step"] != step], count - len(of_step), rng)
    return of_step + others
