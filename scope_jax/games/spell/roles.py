"""SPELL's roles (section 4.1): the questioner asks about some documents of a cluster, the responder answers from all of
them, the verifier judges each answer against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scope_jax.config import Config
from scope_jax.data import rows
from scope_jax.data.keys import drawn
from scope_jax.games.spell import messages, rules
from scope_jax.games.spell.options import SpellRoleSection, SpellSection, options
from scope_jax.games.spell.state import (
    AnswerGroup,
    Entry,
    History,
    Order,
    Question,
    QuestionDraft,
    ReadingTask,
    ResponderAnswer,
    UncheckedAnswer,
    Verification,
)
from scope_jax.play import judging
from scope_jax.play.game import ACTOR
from scope_jax.play.prompting import Prompt
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.samples import Sample, sample_of
from scope_jax.play.searching import cut_off
from scope_jax.play.step import Step
from scope_jax.rollouts.types import Completion, Row
from scope_jax.text.parsing import finished_lines

QUESTIONER, RESPONDER, VERIFIER, JUDGE = "questioner", "responder", "verifier", "judge"
_NONE = np.zeros(0, np.int32)
NOT_ASKED = Completion((Row(_NONE, _NONE, _NONE.astype(bool), _NONE.astype(np.float32)),), (), "overflow")


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """The roles that play under the card, those that are trained first, in the card's order; the judge that takes the
    place of the rule."""
    card = options(cfg)
    played = {RESPONDER: responder_role(cfg)}
    if card.mode == "self-play":
        played[QUESTIONER] = questioner_role(cfg)
    if card.verify:
        played[VERIFIER] = verifier_role(cfg)
    order = dict.fromkeys((*card.train, *played))
    judge = ()
    if cfg.judge is not None and card.rule == "judge":
        judge = (Role(JUDGE, cfg.judge, prompts=(judging.JUDGE,), table="judge"),)
    return (*(played[name] for name in order), *judge)


def questioner_role(cfg: Config) -> Role:
    """It writes a question, with its answer, about documents."""
    card = options(cfg)
    prompts: list[Prompt] = []
    for task in _tasks(card):
        prompts.append(messages.QUESTIONER[task])
        if card.history:
            prompts.append(messages.EARLIER[task])
    return Role(
        QUESTIONER,
        _agent(card, card.questioner),
        loss=card.loss if QUESTIONER in card.train else None,
        advantage=card.questioner_advantage,
        prompts=tuple(prompts),
        table="spell.questioner",
        rejections=rules.REASONS,
    )


def responder_role(cfg: Config) -> Role:
    """It answers a question from all documents of a cluster; in the grounding filter without them."""
    card = options(cfg)
    filters = card.mode == "self-play" and card.grounding_filter
    return Role(
        RESPONDER,
        _agent(card, card.responder),
        loss=card.loss if RESPONDER in card.train else None,
        prompts=(*(messages.RESPONDER[task] for task in _tasks(card)), *((messages.NOTHING,) if filters else ())),
        table="spell.responder",
    )


def verifier_role(cfg: Config) -> Role:
    """It judges whether an answer is equivalent to the reference."""
    card = options(cfg)
    return Role(
        VERIFIER,
        _agent(card, card.verifier),
        loss=card.loss if VERIFIER in card.train else None,
        prompts=(messages.VERIFIER,),
        table="spell.verifier",
    )


def _agent(card: SpellSection, role: SpellRoleSection) -> Agent:
    """The shared actor in single turns, with the sampling settings of a role's table."""
    return Agent(ACTOR, role.sampling, max_prompt_tokens=role.max_prompt_tokens, tempered=card.loss.tempered)


def _tasks(card: SpellSection) -> list[str]:
    """The tasks that have a share, or that exams or given questions may have: the folder has a prompt for them."""
    folder = Path(card.prompts)
    return [
        task
        for task in messages.TASKS
        if card.tasks.get(task) or (folder / f"{messages.RESPONDER[task].name}.txt").is_file()
    ]


# ---------------------------------------------------------------------------------------------------------- questioner
def draw_orders(
    step: Step[SpellSection], history: History, clusters: Sequence[Mapping[str, Any]], first: int
) -> list[Order]:
    """An order for each cluster, at positions `first` onwards of the stream, that suits a task of the card."""
    candidates = [draw_order(step, history, cluster, position) for position, cluster in enumerate(clusters, first)]
    return [candidate for candidate in candidates if candidate is not None]


def draw_order(step: Step[SpellSection], history: History, cluster: Mapping[str, Any], position: int) -> Order | None:
    """The order for the cluster at a position of the stream (Alg. 1 l.7, l.8): a task and new documents.

    Both are drawn with (seed, position). New documents are those from which no remembered question was written: m of
    them, or all if there are fewer, in the cluster's order. None if the cluster suits no task with a share above 0.
    """
    card = step.card
    task = _task(step, cluster, position)
    if task is None:
        return None
    key = f"{cluster['id']}/{task}"
    known = tuple(Entry.of(entry) for entry in history.get(key, ()))[-card.history :] if card.history else ()
    seen = {document for entry in known for document in entry.documents}
    ids = [document["id"] for document in cluster["documents"]]
    unseen = [document for document in ids if document not in seen]
    restarts = not unseen and card.all_seen == "reset"
    if restarts:
        known = ()
        unseen = ids
    indices = drawn(range(len(unseen)), card.documents, step.rng("spell documents", position))
    new = tuple(unseen[index] for index in sorted(indices))
    return Order(position, cluster, task, key, new, known, restarts)


def _task(step: Step[SpellSection], cluster: Mapping[str, Any], position: int) -> str | None:
    weights: Mapping[str, float] = {**step.card.tasks}
    tasks = rules.allowed_tasks(weights, step.card.families, cluster["family"])
    if not tasks:
        return None
    shares = np.array([weights[task] for task in tasks])
    return tasks[int(step.rng("spell task", position).choice(len(tasks), p=shares / shares.sum()))]


def ask(step: Step[SpellSection], orders: Sequence[Order]) -> list[QuestionDraft]:
    """(q, a) ~ π^que(· | X^que) for each order, with a reason if it is malformed or its prompt was too long.

    No question is asked about a cluster whose documents alone exceed the responder's prompt.
    """
    rollouts = {
        order.position: Rollout(f"{order.position}", messages.for_questioner(step.cfg, order)) for order in orders
    }
    fitting = [order.position for order in orders if _fits_the_responder(step, order)]
    groups = step.play(QUESTIONER, [rollouts[position] for position in fitting])
    samples = {position: sample for position, (sample,) in zip(fitting, groups, strict=True)}
    drafts = []
    for order in orders:
        if (sample := samples.get(order.position)) is not None:
            drafts.append(_read_question(step, order, sample))
        else:
            rollout = rollouts[order.position]
            none = sample_of(NOT_ASKED, step.roles[QUESTIONER], rollout.name, rollout.messages, QUESTIONER)
            drafts.append(QuestionDraft(order, none, None, "documents_too_long"))
    return drafts


def _read_question(step: Step[SpellSection], order: Order, sample: Sample) -> QuestionDraft:
    if not sample.turns:
        return QuestionDraft(order, sample, None, "prompt_too_long")
    limit = step.card.max_answer_tokens
    question, reason = rules.question_of(sample.content, order.task, step.tools.tokens, limit)
    return QuestionDraft(order, sample, question, reason)


def _fits_the_responder(step: Step[SpellSection], order: Order) -> bool:
    """True if the cluster's documents, with an empty question, fit into the responder's prompt."""
    documents = messages.documents_of(step.cfg, order.cluster["documents"])
    prompt = messages.for_responder(step.cfg, order.task, Question("", ""), documents)
    return step.tools.prompt_tokens(prompt) <= step.card.responder.max_prompt_tokens


def reward(
    card: SpellSection, proposals: Sequence[QuestionDraft], groups: Sequence[AnswerGroup]
) -> list[QuestionDraft]:
    """The questions with r^que (Eq. (7)), by the success rate of their answers; 0 for a question without answers."""
    success = {group.position: group.mean for group in groups}
    return [replace(each, reward=_reward(card, each, success.get(each.order.position))) for each in proposals]


def _reward(card: SpellSection, proposal: QuestionDraft, success: float | None) -> float:
    if proposal.reason in rules.MALFORMED:
        return card.malformed_reward
    if proposal.reason == rules.UNGROUNDED:
        return card.ungrounded_reward
    if success is None:
        return 0.0
    return rules.questioner_reward(card.questioner_reward, success, card.target, card.width)


# ----------------------------------------------------------------------------------------------------------- responder
def filter_grounded(step: Step[SpellSection], proposals: Sequence[QuestionDraft]) -> list[QuestionDraft]:
    """`proposals`, with a reason on each question that is answered correctly without documents (Alg. 1 l.11, l.12)."""
    if not step.card.grounding_filter or all(proposal.reason for proposal in proposals):
        return list(proposals)
    nothing = messages.nothing(step.cfg)
    readings = [_reading(proposal, nothing) for proposal in proposals if not proposal.reason]
    answers = _attempts(step, readings, samples=1, key="grounding")
    blind = {reading.position: response for reading, (response,) in zip(readings, answers, strict=True)}
    return [_with_blind(proposal, blind.get(proposal.order.position)) for proposal in proposals]


def _with_blind(proposal: QuestionDraft, blind: ResponderAnswer | None) -> QuestionDraft:
    """A question with the answer that the responder gave without the documents, if it was asked."""
    if blind is None:
        return proposal
    reason = rules.UNGROUNDED if blind.rule else ""
    return replace(proposal, reason=reason, blind=blind.sample.content, judgements=blind.judgements)


def respond(step: Step[SpellSection], proposals: Sequence[QuestionDraft]) -> list[AnswerGroup]:
    """{y_i} ~ π^res(· | C, q), i = 1…G, for each question without a reason, checked by the rule."""
    readings = [
        _reading(proposal, messages.documents_of(step.cfg, proposal.order.cluster["documents"]))
        for proposal in proposals
        if not proposal.reason
    ]
    return answer(step, readings)


def reject_unread(proposals: Sequence[QuestionDraft], groups: Sequence[AnswerGroup]) -> list[QuestionDraft]:
    """`proposals`, with a reason on each question that has no answers, since it does not fit into the responder's
    prompt with the documents."""
    read = {group.position for group in groups}
    return [
        proposal
        if proposal.reason or proposal.order.position in read
        else replace(proposal, reason="documents_too_long")
        for proposal in proposals
    ]


def given_question(cfg: Config, row: rows.Row, position: int) -> ReadingTask:
    """What the responder reads in the mode "rlvr", from the row at a position of the stream."""
    reference, *aliases = row["answers"]
    question = Question(row["question"], reference, tuple(row["options"]), tuple(aliases))
    return ReadingTask(position, messages.task_of(row), question, messages.shown(cfg, row["context"]))


def answer(step: Step[SpellSection], readings: Sequence[ReadingTask]) -> list[AnswerGroup]:
    """G answers to each question, checked by the rule; a question whose documents do not fit into the prompt has no
    group."""
    answers = _attempts(step, readings, samples=step.card.responder.samples)
    return [
        AnswerGroup(reading.position, reading.task, reading.question, responses)
        for reading, responses in zip(readings, answers, strict=True)
        if responses[0].sample.turns
    ]


def _attempts(
    step: Step[SpellSection], readings: Sequence[ReadingTask], *, samples: int, key: str = ""
) -> list[tuple[ResponderAnswer, ...]]:
    """`samples` answers of the responder to each question, checked by the rule. key: as in `Step.play`."""
    rollouts = [
        Rollout(
            f"{reading.position}",
            messages.for_responder(step.cfg, reading.task, reading.question, reading.documents),
        )
        for reading in readings
    ]
    groups = step.play(RESPONDER, rollouts, samples=samples, key=key)
    attempts = [
        UncheckedAnswer(reading, sample) for reading, group in zip(readings, groups, strict=True) for sample in group
    ]
    responses = check(step, attempts)
    return [tuple(responses[at : at + samples]) for at in range(0, len(responses), samples)]


def check(step: Step[SpellSection], attempts: Sequence[UncheckedAnswer]) -> list[ResponderAnswer]:
    """The answers with R_rule(y, a): by the rule, or by [judge] in its place, with its judgements (section 5.6).

    The judge sees the conclusion, or the whole reply if there is none; it gets no request for an empty reply.
    """
    conclusions = [rules.conclusion_of(attempt.sample.content) for attempt in attempts]
    if step.card.rule == "match":
        return [
            ResponderAnswer(attempt.sample, conclusion, _matches(step.card, attempt, conclusion))
            for attempt, conclusion in zip(attempts, conclusions, strict=True)
        ]
    cases = [
        judging.Case(
            attempt.reading.question.whole,
            conclusion or attempt.sample.content.strip() or None,
            attempt.reading.question.answers,
        )
        for attempt, conclusion in zip(attempts, conclusions, strict=True)
    ]
    grades = step.grade("judge", cases)
    return [
        ResponderAnswer(attempt.sample, conclusion, right, judgements)
        for attempt, conclusion, right, judgements in zip(
            attempts, conclusions, grades.correct, grades.judgements, strict=True
        )
    ]


def _matches(card: SpellSection, attempt: UncheckedAnswer, conclusion: str | None) -> bool:
    reading = attempt.reading
    answers = reading.question.answers
    return rules.matches(reading.task, attempt.sample.content, conclusion, answers, card.rule_reads, card.containment)


def _reading(proposal: QuestionDraft, documents: str) -> ReadingTask:
    assert proposal.question is not None  # since it has no reason for rejection
    return ReadingTask(proposal.order.position, proposal.order.task, proposal.question, documents)


def exam_conclusion(completion: Completion) -> str | None:
    """The answer that an exam grades: the conclusion; of a reply that was cut, one of a finished line."""
    text = completion.content
    return rules.conclusion_of(finished_lines(text) if cut_off(completion) else text)


# ------------------------------------------------------------------------------------------------------------ verifier
def verify(step: Step[SpellSection], groups: Sequence[AnswerGroup]) -> list[AnswerGroup]:
    """The groups with {v_ij} ~ π^ver(· | q, y_i, a) and v_i on every answer that has a conclusion (Alg. 1 l.16, l.17).

    An answer without a conclusion is not verified: the rule alone decides. A prompt that is too long has no judgments.
    """
    if not step.card.verify:
        return list(groups)
    rollouts = [
        Rollout(
            _about(group, number),
            messages.for_verifier(step.cfg, group.question, response.answer, group.question.answer),
        )
        for group in groups
        for number, response in enumerate(group.responses)
        if response.answer is not None
    ]
    judged = step.play(VERIFIER, rollouts, samples=step.card.verifier.samples)
    samples = {rollout.name: group for rollout, group in zip(rollouts, judged, strict=True)}
    verified = []
    for group in groups:
        responses = [
            _with_vote(step.card, response, samples.get(_about(group, number), ()))
            for number, response in enumerate(group.responses)
        ]
        verified.append(replace(group, responses=tuple(responses)))
    return verified


def _about(group: AnswerGroup, number: int) -> str:
    """The name of the verifier's prompt about an answer."""
    return f"{group.position} answer {number}"


def _with_vote(card: SpellSection, response: ResponderAnswer, samples: Sequence[Sample]) -> ResponderAnswer:
    """An answer with its judgments; a sample without a turn, of a prompt that was too long, is none."""
    judgments = tuple(Verification(sample, rules.verdict_of(sample.content)) for sample in samples if sample.turns)
    vote = rules.vote([judgment.verdict for judgment in judgments], card.vote)
    return replace(response, verifications=judgments, vote=vote)
