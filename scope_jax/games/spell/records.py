"""The records of one step of SPELL, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from scope_jax.learner.types import Judgement, Reply
from scope_jax.play.rewards import mean
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

LETTERS = ("A", "B", "C", "D")  # labels of a questioner's options


@dataclass(frozen=True)
class Question:
    """A question, its reference answer, and the options if it is multiple choice."""

    text: str
    answer: str
    options: tuple[str, ...] = ()  # texts of A, B, C, D
    aliases: tuple[str, ...] = ()  # other accepted answers, only of a given question

    @property
    def answers(self) -> tuple[str, ...]:
        """All accepted answers, the reference first."""
        return (self.answer, *self.aliases)

    @property
    def whole(self) -> str:
        """The question with its options."""
        lines = [f"({letter}) {option}" for letter, option in zip(ascii_uppercase, self.options, strict=False)]
        return "\n".join([self.text, *lines])


@dataclass(frozen=True)
class Entry:
    """A solvable question in the history memory, with the ids of its source documents (C_l, q_l, a_l)."""

    documents: tuple[str, ...]
    question: str
    answer: str

    def plain(self) -> dict[str, Any]:
        return {"documents": list(self.documents), "question": self.question, "answer": self.answer}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Entry:
        return Entry(tuple(plain["documents"]), plain["question"], plain["answer"])


@dataclass(frozen=True)
class Order:
    """What the questioner is asked for: a question of one task from documents of a cluster.

    place: position in the stream of clusters, identifies the order. key: key of the history memory for this cluster
    and task. new: ids of the documents drawn for this question. restarts: the history is not used, and is cleared when
    this question is added to it.
    """

    place: int
    cluster: Mapping[str, Any]
    task: str
    key: str
    new: tuple[str, ...]
    history: tuple[Entry, ...]
    restarts: bool = False

    @property
    def documents(self) -> list[Mapping[str, str]]:
        """The documents of the questioner's context: those of the history and the new ones, in the cluster's order."""
        shown = {*self.new, *(key for entry in self.history for key in entry.documents)}
        return [document for document in self.cluster["documents"] if document["id"] in shown]


@dataclass(frozen=True)
class Asked:
    """One episode of the questioner.

    reason: why its question is rejected, "" if the responder gets it. blind: the responder's reply without the
    documents, None if not requested. judged: an external judge's judgements of that reply. reward: Eq. (7), once it is
    known.
    """

    order: Order
    prompt: Messages
    completion: Completion
    question: Question | None
    reason: str
    blind: str | None = None
    judged: tuple[Judgement, ...] = ()
    reward: float = 0.0


@dataclass(frozen=True)
class Judged:
    """One judgment of the verifier, v_ij: True, False, or None without a valid verdict."""

    completion: Completion
    verdict: bool | None

    @property
    def judgement(self) -> Judgement:
        text = "".join(turn.text for turn in self.completion.turns)
        return Judgement("verifier", "", (Reply(text),), self.verdict)


@dataclass(frozen=True)
class Response:
    """One answer of the responder, y_i.

    answer: its conclusion, or None. rule: R_rule(y_i, a). judgments: the verifier's, empty if it was not asked.
    vote: v_i of Eq. (4). judged: an external judge's judgements, used in place of the rule.
    """

    completion: Completion
    answer: str | None
    rule: bool = False
    prompt: Messages | None = None  # of the verifier
    judgments: tuple[Judged, ...] = ()
    vote: bool = False
    judged: tuple[Judgement, ...] = ()

    @property
    def reward(self) -> float:
        """r_i = max(R_rule(y_i, a), v_i) (Eq. (6))."""
        return float(self.rule or self.vote)


@dataclass(frozen=True)
class Group:
    """The responder's answers to one question, {y_i}. place: position in the stream of clusters or of questions."""

    place: int
    task: str
    question: Question
    prompt: Messages
    responses: tuple[Response, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(response.reward for response in self.responses)

    @property
    def mean(self) -> float:
        """r̄, the success rate."""
        return mean(self.rewards)

    @property
    def mixed(self) -> bool:
        """True if some answers are correct and some wrong: std({r_i}) > 0."""
        return 0.0 < self.mean < 1.0
