"""The records of one step of SCOPE, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scope_jax.games.scope.rules import Format, ParsedTurn
from scope_jax.learner.types import Judgement
from scope_jax.play.rubrics import Criterion, rubric_of
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages


@dataclass(frozen=True)
class Order:
    """What a challenger is asked for: a task of type `kind` from a document, with `searches` searches expected."""

    index: int
    key: str  # identifies the document
    document: str
    kind: str
    searches: int


@dataclass(frozen=True)
class Draft:
    """One challenger episode. rejected: why its task is invalid, "" if it is valid."""

    order: Order
    sample: int
    prompt: Messages
    completion: Completion
    turns: tuple[ParsedTurn, ...]
    format: Format
    task: str | None
    rejected: str = ""
    gates: Mapping[str, bool | None] = field(default_factory=dict)  # verdict by gate; empty if not judged
    rubric: tuple[Criterion, ...] = ()
    judgements: tuple[Judgement, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A task for the solver, with the rubric that grades it."""

    name: str
    question: str
    rubric: tuple[Criterion, ...]


def problem_of(task: Mapping[str, Any], name: str) -> Problem:
    """A problem from a task in the memory or from a row of `schemas.tasks`."""
    return Problem(name, task["question"], rubric_of(task))


@dataclass(frozen=True)
class Attempt:
    """One solver episode. verdicts: one per criterion (None: no valid verdict); score: Eq. (1), or None."""

    completion: Completion
    turns: tuple[ParsedTurn, ...]
    answer: str | None
    tokens: int  # length of the answer
    verdicts: tuple[bool | None, ...] = ()
    score: float | None = None
    judgements: tuple[Judgement, ...] = ()


@dataclass(frozen=True)
class Solved:
    """The solver's attempts at one problem."""

    problem: Problem
    prompt: Messages
    attempts: tuple[Attempt, ...]


REASONS = ("no_task", "entity", "relevance", "no_rubrics")  # for rejecting a draft, in the order of the checks
