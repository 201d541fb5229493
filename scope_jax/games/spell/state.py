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
class QuestionerContext:
    """X^que: what the questioner is asked for, a question of one task from documents of a cluster."""

    position: int
    """In the stream of clusters; identifies the context and what follows from it."""
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
        """The documents that it shows: those of the history and the new ones, in the cluster's order."""
        shown = {*self.new, *(key for entry in self.history for key in entry.documents)}
        return [document for document in self.cluster["documents"] if document["id"] in shown]


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
class Verification:
    """One judgment of the verifier about an answer."""

    sample: Sample
    """The episode."""
    verdict: bool | None
    """v_ij; None without a valid verdict."""
    reward: float = 0.0
    """r_ij (Eq. (5)), once it is known."""

    @property
    def judgement(self) -> Judgement:
        return Judgement("verifier", "", (Reply(self.sample.text),), self.verdict)


@dataclass(frozen=True)
class ResponderAnswer:
    """One answer of the responder, y_i."""

    reading: ReadingTask
    """What was asked."""
    number: int
    """i, from 0."""
    sample: Sample
    """The episode."""
    conclusion: str | None
    """What it concludes; None if it does not."""
    rule: bool = False
    """R_rule(y_i, a), once it is checked."""
    judgements: tuple[Judgement, ...] = ()
    """An external judge's, in place of the rule."""
    verifications: tuple[Verification, ...] = ()
    """The verifier's: G, or none without a conclusion."""
    vote: bool = False
    """v_i (Eq. (4)), once it is known."""

    @property
    def name(self) -> str:
        """Of the verifier's rollout about it."""
        return f"{self.reading.position} answer {self.number}"

    @property
    def conflicting(self) -> bool:
        """True if the rewards of its verifications differ; otherwise they give no learning signal (App. C.3)."""
        return len({verification.reward for verification in self.verifications}) > 1

    @property
    def reward(self) -> float:
        """r_i = max(R_rule(y_i, a), v_i) (Eq. (6))."""
        return float(self.rule or self.vote)


@dataclass(frozen=True)
class AnswerGroup:
    """The responder's answers to one question, {y_i}."""

    reading: ReadingTask
    """What was asked."""
    answers: tuple[ResponderAnswer, ...]
    """G of them."""

    @property
    def mean(self) -> float:
        """r̄, the success rate."""
        return mean([answer.reward for answer in self.answers])

    @property
    def mixed(self) -> bool:
        """True if some answers are correct and some wrong: std({r_i}) > 0."""
        return 0.0 < self.mean < 1.0


@dataclass(frozen=True)
class QuestionDraft:
    """One episode of the questioner, and what has become of its question."""

    context: QuestionerContext
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
    group: AnswerGroup | None = None
    """The answers to it; None without any."""
    reward: float = 0.0
    """r^que (Eq. (7)), once it is known."""


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
    verifier: frozenset[str]
    """Names of the answers whose verifications are chosen."""


def accepts(card: SpellSection, success: float) -> bool:
    """True if a question with this success rate is added to the history: r_que > 0 (Alg. 1 l.20), or also at rate 1 if
    `history_accepts` is "solved"."""
    return card.history > 0 and (0.0 < success < 1.0 or (success == 1.0 and card.history_accepts == "solved"))


def solvable_questions(card: SpellSection, drafts: Sequence[QuestionDraft]) -> list[SolvableQuestion]:
    """The questions that are added to the history."""
    return [
        solvable(card, draft.context, draft.group.reading.question)
        for draft in drafts
        if draft.group is not None and accepts(card, draft.group.mean)
    ]


def solvable(card: SpellSection, context: QuestionerContext, question: Question) -> SolvableQuestion:
    """A question as it is remembered, with the documents that it counts as written from."""
    read = [document["id"] for document in context.documents]
    entry = Entry(tuple(read) if card.history_documents == "seen" else context.new, question.whole, question.answer)
    return SolvableQuestion(context.key, entry, context.restarts)


def push(card: SpellSection, history: History, questions: Sequence[SolvableQuestion]) -> History:
    """The history memory with these questions, which keeps the latest L of each cluster and task (Alg. 1 l.21)."""
    after = dict(history)
    for question in questions:
        before = [] if question.restarts else after.get(question.key, [])
        after[question.key] = latest([*before, question.entry.plain()], card.history)
    return after


def latest(entries: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The last `count` of a cluster and task's entries, or all if there are fewer."""
    return list(entries[max(len(entries) - count, 0) :])
