"""SPELL's roles (section 4.1): the questioner asks about some documents of a cluster, the responder answers from all of
them, the verifier judges each answer against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scope_jax.config import Config
from scope_jax.data import rows
from scope_jax.data.keys import drawn
from scope_jax.games.spell import messages, rules, state
from scope_jax.games.spell.options import SpellRoleSection, SpellSection, options
from scope_jax.games.spell.state import (
    AnswerGroup,
    Entry,
    History,
    Question,
    QuestionDraft,
    QuestionerContext,
    ReadingTask,
    ResponderAnswer,
    Verification,
)
from scope_jax.play import judging
from scope_jax.play.chains import Waiting
from scope_jax.play.game import ACTOR
from scope_jax.play.prompting import Prompt
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.samples import sample_of
from scope_jax.play.searching import cut_off
from scope_jax.play.step import Step
from scope_jax.rollouts.types import Completion, Row
from scope_jax.text.parsing import finished_lines

QUESTIONER, RESPONDER, VERIFIER, JUDGE = "questioner", "responder", "verifier", "judge"
_NONE = np.zeros(0, np.int32)
UNSAMPLED = Completion((Row(_NONE, _NONE, _NONE.astype(bool), _NONE.astype(np.float32)),), (), "overflow")


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
def draw_contexts(
    step: Step[SpellSection], history: History, clusters: Sequence[Mapping[str, Any]], first: int
) -> list[QuestionerContext]:
    """The context of each cluster, at positions `first` onwards of the stream, that suits a task of the card."""
    contexts = [draw_context(step, history, cluster, position) for position, cluster in enumerate(clusters, first)]
    return [context for context in contexts if context is not None]


def draw_context(
    step: Step[SpellSection], history: History, cluster: Mapping[str, Any], position: int
) -> QuestionerContext | None:
    """X^que of the cluster at a position of the stream (Alg. 1 l.7 to l.9): a task, new documents, the history.

    Both are drawn with (seed, position). New documents are those from which no remembered question was written: m of
    them, or all if there are fewer, in the cluster's order. None if the cluster suits no task with a share above 0.
    """
    card = step.card
    task = _task(step, cluster, position)
    if task is None:
        return None
    key = f"{cluster['id']}/{task}"
    known = tuple(Entry.of(entry) for entry in state.latest(history.get(key, ()), card.history))
    seen = {document for entry in known for document in entry.documents}
    ids = [document["id"] for document in cluster["documents"]]
    unseen = [document for document in ids if document not in seen]
    restarts = not unseen and card.all_seen == "reset"
    if restarts:
        known = ()
        unseen = ids
    indices = drawn(range(len(unseen)), card.documents, step.rng("spell documents", position))
    new = tuple(unseen[index] for index in sorted(indices))
    return QuestionerContext(position, cluster, task, key, new, known, restarts)


def _task(step: Step[SpellSection], cluster: Mapping[str, Any], position: int) -> str | None:
    weights: Mapping[str, float] = {**step.card.tasks}
    tasks = rules.allowed_tasks(weights, step.card.families, cluster["family"])
    if not tasks:
        return None
    shares = np.array([weights[task] for task in tasks])
    return tasks[int(step.rng("spell task", position).choice(len(tasks), p=shares / shares.sum()))]


def ask(step: Step[SpellSection], context: QuestionerContext) -> Waiting[QuestionDraft]:
    """(q, a) ~ π^que(· | X^que), with a reason if it is malformed or its prompt was too long.

    No question is asked about a cluster whose documents alone exceed the responder's prompt; its episode has no turns,
    as that of a prompt that is too long.
    """
    rollout = Rollout(f"{context.position}", messages.for_questioner(step.cfg, context))
    if not _fits_the_responder(step, context):
        unsampled = sample_of(UNSAMPLED, step.roles[QUESTIONER], rollout.name, rollout.messages, QUESTIONER)
        return QuestionDraft(context, unsampled, None, "documents_too_long")
    ((sample,),) = yield from step.sample(QUESTIONER, [rollout])
    if not sample.turns:
        return QuestionDraft(context, sample, None, "prompt_too_long")
    limit = step.card.max_answer_tokens
    question, reason = rules.question_of(sample.content, context.task, step.tools.tokens, limit)
    return QuestionDraft(context, sample, question, reason)


def _fits_the_responder(step: Step[SpellSection], context: QuestionerContext) -> bool:
    """True if the cluster's documents, with an empty question, fit into the responder's prompt."""
    documents = messages.documents_of(step.cfg, context.cluster["documents"])
    prompt = messages.for_responder(step.cfg, context.task, Question("", ""), documents)
    return step.tools.prompt_tokens(prompt) <= step.card.responder.max_prompt_tokens


def reward_question(card: SpellSection, draft: QuestionDraft) -> float:
    """r^que (Eq. (7)), by the success rate of the answers; 0 for a question without answers."""
    if draft.reason in rules.MALFORMED:
        return card.malformed_reward
    if draft.reason == rules.UNGROUNDED:
        return card.ungrounded_reward
    if draft.group is None:
        return 0.0
    return rules.questioner_reward(card.questioner_reward, draft.group.mean, card.target, card.width)


# ----------------------------------------------------------------------------------------------------------- responder
def filter_grounded(step: Step[SpellSection], draft: QuestionDraft) -> Waiting[QuestionDraft]:
    """The draft, with a reason if its question is answered correctly without documents (Alg. 1 l.11, l.12)."""
    if not step.card.grounding_filter or draft.reason:
        return draft
    reading = _reading(draft, messages.nothing(step.cfg))
    (blind,) = yield from _sample_answers(step, reading, samples=1, key="grounding")
    reason = rules.UNGROUNDED if blind.rule else ""
    return replace(draft, reason=reason, blind=blind.sample.content, judgements=blind.judgements)


def respond(step: Step[SpellSection], draft: QuestionDraft) -> Waiting[QuestionDraft]:
    """The draft with {y_i} ~ π^res(· | C, q), i = 1…G, checked by the rule; with a reason if the question does not fit
    into the responder's prompt with the documents."""
    documents = messages.documents_of(step.cfg, draft.context.cluster["documents"])
    group = yield from answer(step, _reading(draft, documents))
    return replace(draft, group=group, reason="documents_too_long" if group is None else "")


def given_question(cfg: Config, row: rows.Row, position: int) -> ReadingTask:
    """What the responder reads in the mode "given-questions", from the row at a position of the stream."""
    reference, *aliases = row["answers"]
    question = Question(row["question"], reference, tuple(row["options"]), tuple(aliases))
    return ReadingTask(position, messages.task_of(row), question, messages.shown(cfg, row["context"]))


def answer(step: Step[SpellSection], reading: ReadingTask) -> Waiting[AnswerGroup | None]:
    """G answers to a question, checked by the rule; None if it does not fit into the prompt with its documents."""
    answers = yield from _sample_answers(step, reading, samples=step.card.responder.samples)
    return AnswerGroup(reading, tuple(answers)) if answers[0].sample.turns else None


def _sample_answers(
    step: Step[SpellSection], reading: ReadingTask, *, samples: int, key: str = ""
) -> Waiting[list[ResponderAnswer]]:
    """`samples` answers of the responder to a question, checked by the rule. key: as in `Step.sample`."""
    prompt = messages.for_responder(step.cfg, reading.task, reading.question, reading.documents)
    (group,) = yield from step.sample(RESPONDER, [Rollout(f"{reading.position}", prompt)], samples=samples, key=key)
    answers = [
        ResponderAnswer(reading, number, sample, rules.conclusion_of(sample.content))
        for number, sample in enumerate(group)
    ]
    if step.card.rule == "match":
        return check(step, answers)
    return (yield from step.gather(f"{key} rule", partial(check, step), answers))


def check(step: Step[SpellSection], answers: Sequence[ResponderAnswer]) -> list[ResponderAnswer]:
    """The answers with R_rule(y, a): by the rule, or by [judge] in its place, with its judgements (section 5.6).

    The judge sees the conclusion, or the whole reply if there is none; it gets no request for an empty reply.
    """
    if step.card.rule == "match":
        return [replace(each, rule=_matches(step.card, each)) for each in answers]
    cases = [
        judging.Case(
            each.reading.question.whole,
            each.conclusion or each.sample.content.strip() or None,
            each.reading.question.answers,
        )
        for each in answers
    ]
    grades = step.grade("judge", cases)
    return [
        replace(each, rule=correct, judgements=judgements)
        for each, correct, judgements in zip(answers, grades.correct, grades.judgements, strict=True)
    ]


def _matches(card: SpellSection, answer: ResponderAnswer) -> bool:
    task = answer.reading.task
    references = answer.reading.question.answers
    said = answer.sample.content
    return rules.matches(task, said, answer.conclusion, references, card.rule_reads, card.containment)


def _reading(draft: QuestionDraft, documents: str) -> ReadingTask:
    assert draft.question is not None  # since it has no reason for rejection
    return ReadingTask(draft.context.position, draft.context.task, draft.question, documents)


def exam_conclusion(completion: Completion) -> str | None:
    """The answer that an exam grades: the conclusion; of a reply that was cut, one of a finished line."""
    text = completion.content
    return rules.conclusion_of(finished_lines(text) if cut_off(completion) else text)


# ------------------------------------------------------------------------------------------------------------ verifier
def verify(step: Step[SpellSection], group: AnswerGroup) -> Waiting[AnswerGroup]:
    """The group with {v_ij} ~ π^ver(· | q, y_i, a) on every answer that has a conclusion (Alg. 1 l.16, l.17).

    An answer without a conclusion is not verified: the rule alone decides. A prompt that is too long has no
    verifications.
    """
    if not step.card.verify:
        return group
    question = group.reading.question
    rollouts = [
        Rollout(each.name, messages.for_verifier(step.cfg, question, each.conclusion, question.answer))
        for each in group.answers
        if each.conclusion is not None
    ]
    samples = yield from step.sample(VERIFIER, rollouts, samples=step.card.verifier.samples)
    verifications = {
        rollout.name: tuple(Verification(sample, rules.verdict_of(sample.content)) for sample in same if sample.turns)
        for rollout, same in zip(rollouts, samples, strict=True)
    }
    answers = [replace(each, verifications=verifications.get(each.name, ())) for each in group.answers]
    return replace(group, answers=tuple(answers))


def reward_answers(card: SpellSection, group: AnswerGroup) -> AnswerGroup:
    """The group with v_i, on which r_i depends, and {r_ij} (Eq. (4) to Eq. (6))."""
    return replace(group, answers=tuple(_with_vote(card, each) for each in group.answers))


def _with_vote(card: SpellSection, answer: ResponderAnswer) -> ResponderAnswer:
    vote = rules.vote([each.verdict for each in answer.verifications], card.vote)
    verifications = tuple(
        replace(each, reward=rules.verifier_reward(each.verdict, vote, card.malformed_judgment))
        for each in answer.verifications
    )
    return replace(answer, verifications=verifications, vote=vote)
