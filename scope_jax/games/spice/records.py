"""The records of one step of SPICE, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scope_jax.play.rewards import mean
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

Stage = Literal["format", "task"]
MULTIPLE_CHOICE = "multiple-choice"

REASONS = (
    "prompt_too_long",
    "refused",  # the endpoint rejected the request
    # first stage:
    "format_no_json",  # the reply is not a single JSON object
    "format_flags",  # not exactly one of the two formats, or a format that the card excludes
    "format_type",  # a free-form answer without a type, or of a type that the card excludes
    # second stage:
    "task_no_json",  # the reply does not end with a JSON object
    "no_question",  # missing, empty, or not text
    "no_answer",  # missing, empty, a list or an object
    "options",  # not A to D, each once and all different, or the correct letter is not one of them
    "answer_type",  # not the requested type
    "answer_form",  # not in the format of its type
    "question_too_long",  # the question does not fit into the reasoner's prompt
)


@dataclass(frozen=True)
class Document:
    """A document segment from which tasks are written. place: index in the batch. Without a corpus, text is empty."""

    place: int
    key: str
    text: str


@dataclass(frozen=True)
class Task:
    """A task for the reasoner. kind: MULTIPLE_CHOICE (the question includes the options) or an answer type."""

    kind: str
    question: str
    answer: str


@dataclass(frozen=True)
class StageReply:
    """A challenger's reply in one stage; text: without thinking. completion: None for an external model."""

    stage: Stage
    prompt: Messages
    text: str
    completion: Completion | None
    refused: bool = False


@dataclass(frozen=True)
class Attempt:
    """The `number`-th attempt to write a task from a document; reason: why it is invalid, "" if valid."""

    document: Document
    number: int
    replies: tuple[StageReply, ...]
    task: Task | None
    reason: str

    @property
    def valid(self) -> bool:
        return self.task is not None


@dataclass(frozen=True)
class Tried:
    """The reasoner's K answers to the task of an attempt; completions, predictions and correct have length K."""

    attempt: Attempt
    task: Task
    name: str
    prompt: Messages
    completions: tuple[Completion, ...]
    predictions: tuple[str | None, ...]
    correct: tuple[bool, ...] = ()

    @property
    def pass_rate(self) -> float:
        """p, the share of correct answers."""
        return mean([float(right) for right in self.correct])
