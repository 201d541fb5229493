"""What a step of SPELL holds, from documents to votes, and its history memory (section 4.1), as plain data.

A questioner reads the documents of the remembered questions of its cluster and task, and m new ones, so its context
grows until L questions are remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from scope_jax.games.spell.options import SpellSection
from scope_jax.grading.rewards import mean
from scope_jax.learner.types import Judgement, Reply
from scope_jax.play.samples import Sample

History = dict[str, list[dict[str, Any]]]  # plain `Entry`s by "cluster/task", the latest last


@dataclass(frozen=True)
class Question:
    """A question with its accepted answers."""

    text: str
    """Without the options."""
    answer: str
    """The reference; of a multiple-choice question a letter."""
    options: tuple[str, ...] = ()
    """The texts of A, B, C, D; () if it is not multiple choice."""
    aliases: tuple[str, ...] = ()
    """Other accepted answers, only of a given question."""

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
    """A solvable question in the history memory (C_l, q_l, a_l)."""

    documents: tuple[str, ...]
    """Ids of the documents that it counts as written from."""
    question: str
    """With its options."""
    answer: str
    """The reference."""

    def plain(self) -> dict[str, Any]:
        return {"documents": list(self.documents), "question": self.question, "answer": self.answer}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Entry:
        return Entry(tuple(plain["documents"]), plain["question"], plain["answer"])


@dataclass(frozen=True)
class Order:
    """What the questioner is asked for: a question of one task from documents of a cluster."""

    position: int
    """In the stream of clusters; identifies the order."""
    cluster: Mapping[str, Any]
    """A row of the stream."""
    task: str
    """Of the question."""
    key: str
    """Of the history memory for this cluster and task."""
    new: tuple[str, ...]
    """Ids of the documents drawn for this question."""
    history: tuple[Entry, ...]
    """The remembered questions, the latest last."""
    restarts: bool = False
    """The history is not used, and is cleared when this question is added to it."""

    @property
    def documents(self) -> list[Mapping[str, str]]:
        """The documents of the questioner's context: those of the history and the new ones, in the cluster's order."""
        shown = {*self.new, *(key for entry in self.history for key in entry.documents)}
        return [document for document in self.cluster["documents"] if document["id"] in shown]


@dataclass(frozen=True)
class QuestionDraft:
    """One episode of the questioner."""

    order: Order
    """What it is asked for."""
    sample: Sample
    """Its reply, without a turn if the questioner was not asked: the cluster's documents alone exceed the responder's
    prompt."""
    question: Question | None
    """None if it is malformed."""
    reason: str
    """Why its question is rejected, one of `rules.REASONS`; "" if the responder gets it."""
    blind: str | None = None
    """The responder's reply without the documents; None if not requested."""
    judgements: tuple[Judgement, ...] = ()
    """An external judge's, of that reply."""
    reward: float = 0.0
    """Eq. (7), once it is known."""


@dataclass(frozen=True)
class ReadingTask:
    """A question that the responder answers from documents."""

    position: int
    """In the stream of clusters, or of given questions."""
    task: str
    """Of the question."""
    question: Question
    """With its accepted answers, which are not shown."""
    documents: str
    """As they stand in the prompt."""


@dataclass(frozen=True)
class UncheckedAnswer:
    """An answer of the responder before it is checked."""

    reading: ReadingTask
    """What was asked."""
    sample: Sample
    """The episode."""


@dataclass(frozen=True)
class Verification:
    """One judgment of the verifier."""

    sample: Sample
    """The episode."""
    verdict: bool | None
    """v_ij; None without a valid verdict."""

    @property
    def judgement(self) -> Judgement:
        return Judgement("verifier", "", (Reply(self.sample.text),), self.verdict)


@dataclass(frozen=True)
class ResponderAnswer:
    """One answer of the responder, y_i."""

    sample: Sample
    """The episode."""
    answer: str | None
    """Its conclusion, or None."""
    rule: bool
    """R_rule(y_i, a)."""
    judgements: tuple[Judgement, ...] = ()
    """An external judge's, in place of the rule."""
    verifications: tuple[Verification, ...] = ()
    """The verifier's judgments."""
    vote: bool = False
    """v_i of Eq. (4)."""

    @property
    def reward(self) -> float:
        """r_i = max(R_rule(y_i, a), v_i) (Eq. (6))."""
        return float(self.rule or self.vote)


@dataclass(frozen=True)
class AnswerGroup:
    """The responder's answers to one question, {y_i}."""

    position: int
    """In the stream of clusters, or of given questions."""
    task: str
    """Of the question."""
    question: Question
    """What was asked."""
    responses: tuple[ResponderAnswer, ...]
    """G of them."""

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


@dataclass(frozen=True)
class SolvableQuestion:
    """A question that is added to the history memory."""

    key: str
    """Of the history memory for its cluster and task."""
    entry: Entry
    """What is added."""
    restarts: bool
    """The earlier entries are removed."""


@dataclass(frozen=True)
class Round:
    """What one round of drawing brings."""

    proposals: Sequence[QuestionDraft]
    """The questions, one for each cluster that suits a task; none in the mode "rlvr"."""
    groups: Sequence[AnswerGroup]
    """The answers to those that reached the responder."""
    solvable: Sequence[SolvableQuestion]
    """The questions for the history memory, in order."""


@dataclass(frozen=True)
class SpellOutcome:
    """What happened in a step, from which the memory after it follows."""

    clusters: int
    """Number of clusters, or given questions, drawn."""
    solvable: tuple[SolvableQuestion, ...]
    """The questions for the history memory, in order."""


@dataclass(frozen=True)
class Selection:
    """The samples to train on; questions and their groups are identified by their position in the stream."""

    responder: frozenset[int]
    """The first N groups with both correct and wrong answers."""
    questioner: frozenset[int]
    """Their questions, and as many questions without a positive reward."""
    verifier: frozenset[tuple[int, int]]
    """(position, number of the answer)."""


def accepts(card: SpellSection, success: float) -> bool:
    """True if a question with this success rate is added to the history: r_que > 0 (Alg. 1 l.20), or also at rate 1 if
    `history_accepts` is "solved"."""
    return card.history > 0 and (0.0 < success < 1.0 or (success == 1.0 and card.history_accepts == "solved"))


def solvable(card: SpellSection, order: Order, question: Question) -> SolvableQuestion:
    """A question as it is remembered, with the documents that it counts as written from."""
    read = [document["id"] for document in order.documents]
    entry = Entry(tuple(read) if card.history_documents == "seen" else order.new, question.whole, question.answer)
    return SolvableQuestion(order.key, entry, order.restarts)


def push(card: SpellSection, history: History, questions: Sequence[SolvableQuestion]) -> History:
    """The history memory with these questions, which keeps the latest L of each cluster and task (Alg. 1 l.21)."""
    after = dict(history)
    for question in questions:
        before = [] if question.restarts else after.get(question.key, [])
        after[question.key] = [*before, question.entry.plain()][-card.history :]
    return after
