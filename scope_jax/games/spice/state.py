"""What a step of SPICE holds: document segments, attempts to write a task, the tasks and the answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scope_jax.grading.rewards import mean
from scope_jax.play.samples import Sample
from scope_jax.text.messages import Messages

Stage = Literal["format", "task"]
MULTIPLE_CHOICE = "multiple-choice"


@dataclass(frozen=True)
class Segment:
    """A document segment from which tasks are written."""

    index: int
    """In the batch."""
    key: str
    """Id of the row; empty without a corpus."""
    text: str
    """With its tags neutralised; empty without a corpus."""


@dataclass(frozen=True)
class ReasonerTask:
    """A task for the reasoner."""

    kind: str
    """MULTIPLE_CHOICE or an answer type."""
    question: str
    """Of a multiple-choice task with the options."""
    answer: str
    """The right answer; a letter for multiple choice."""


@dataclass(frozen=True)
class StageReply:
    """The challenger's reply in one stage of an attempt."""

    stage: Stage
    """Choosing the format, or writing the task."""
    prompt: Messages
    """What it replies to."""
    text: str
    """Without thinking; empty if an external model's reply was cut."""
    sample: Sample | None
    """The challenger's completion; None for an external model."""
    refused: bool = False
    """True if an endpoint rejected the request."""


@dataclass(frozen=True)
class ChallengerAttempt:
    """An attempt to write a task from a document."""

    document: Segment
    """What the task is about."""
    number: int
    """Among the attempts at this document."""
    replies: tuple[StageReply, ...] = ()
    """One for each stage that took place."""
    kind: str = ""
    """The kind of task chosen in the first stage; "" if none was."""
    task: ReasonerTask | None = None
    """None if the attempt is invalid, or before the second stage."""
    reason: str = ""
    """Why it is invalid, one of `rules.REASONS`; "" if it is not."""

    @property
    def key(self) -> tuple[int, int]:
        """Document and number, which identify it in a step."""
        return self.document.index, self.number

    @property
    def valid(self) -> bool:
        return self.task is not None


@dataclass(frozen=True)
class ReasonerAnswer:
    """One answer of the reasoner."""

    sample: Sample
    """The reasoner's episode."""
    prediction: str | None
    """â; None without one."""
    correct: bool = False
    """1[â = a*]; False before it is graded."""


@dataclass(frozen=True)
class Answers:
    """The reasoner's K answers to the task of an attempt."""

    attempt: ChallengerAttempt
    """Whose task it is."""
    task: ReasonerTask
    """That task."""
    answers: tuple[ReasonerAnswer, ...]
    """In the order of their samples."""

    @property
    def pass_rate(self) -> float:
        """p, the share of correct answers."""
        return mean([float(answer.correct) for answer in self.answers])


@dataclass(frozen=True)
class DocumentPlayed:
    """What was sampled about a document; nothing is graded yet."""

    attempts: Sequence[ChallengerAttempt]
    """All of them."""
    kept: Sequence[ChallengerAttempt]
    """Those of T_C."""
    chosen: Sequence[ChallengerAttempt]
    """That of T_R, if there is one."""
    answers: Sequence[Answers]
    """To the tasks that are measured."""
    again: Sequence[Answers]
    """New ones to the task of T_R."""
