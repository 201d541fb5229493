"""The records of one step of SPICE, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollouts.types import Completion
from scope_jax.play.rewards import mean
from scope_jax.text.messages import Messages

Stage = Literal["format", "task"]
MULTIPLE_CHOICE = "multiple-choice"

REASONS = (
    "prompt_too_long",
    "refused",  # by an endpoint
    # first stage:
    "format_no_json",  # the reply is no JSON object, or more than that
    "format_flags",  # not exactly one of the two formats, or one that the card leaves out
    "format_type",  # of a free-form answer: none, or one that the card leaves out
    # second stage:
    "task_no_json",  # the reply does not end with a JSON object
    "no_question",  # missing, empty, or no text
    "no_answer",  # missing, empty, a list or an object
    "options",  # not A to D, each once and all different, or the right one is none of them
    "answer_type",  # another one than was asked for
    "answer_form",  # not written as its type is
    "question_too_long",  # for the reasoner's prompt
)


@dataclass(frozen=True)
class Document:
    """A segment of a document that tasks are written from; `place` in the batch. Without a corpus its text is empty."""

    place: int
    key: str
    text: str


@dataclass(frozen=True)
class Task:
    """What the reasoner is to solve; kind: MULTIPLE_CHOICE (the question holds the options) or a type of answer."""

    kind: str
    question: str
    answer: str


@dataclass(frozen=True)
class Said:
    """What a challenger said in one stage; text: outside of its thoughts. An outside model has no completion."""

    stage: Stage
    prompt: Messages
    text: str
    completion: Completion | None
    refused: bool = False


@dataclass(frozen=True)
class Attempt:
    """The `number`-th attempt at a task from a document: valid, or the reason why it is not."""

    document: Document
    number: int
    said: tuple[Said, ...]
    task: Task | None
    reason: str

    @property
    def valid(self) -> bool:
        return self.task is not None


@dataclass(frozen=True)
class Tried:
    """The reasoner's answers to the task of an attempt: completion, prediction, right or wrong, each of length K."""

    attempt: Attempt
    task: Task
    name: str
    prompt: Messages
    completions: tuple[Completion, ...]
    predictions: tuple[str | None, ...]
    correct: tuple[bool, ...] = ()

    @property
    def pass_rate(self) -> float:
        """p, the share of right answers."""
        return mean([float(right) for right in self.correct])
