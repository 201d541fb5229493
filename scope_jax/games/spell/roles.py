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


def ask(step: Step[SpellSection], contexts: Sequence[QuestionerContext]) -> list[QuestionDraft]:
    """(q, a) ~ π^que(· | X^que) for each context, with a reason if it is malformed or its prompt was too long.

    No question is asked about a cluster whose documents alone exceed the responder's prompt.
    """
    fitting = [context for context in contexts if _fits_the_responder(step, context)]
    groups = step.play(QUESTIONER, [_rollout(step, context) for context in fitting])
    samples = {context.position: sample for context, (sample,) in zip(fitting, groups, strict=True)}
    return [_read_question(step, context, samples.get(context.position)) for context in contexts]


def _rollout(step: Step[SpellSection], context: QuestionerContext) -> Rollout:
    return Rollout(f"{context.position}", messages.for_questioner(step.cfg, context))


def _fits_the_responder(step: Step[SpellSection], context: QuestionerContext) -> bool:
    """True if the cluster's documents, with an empty question, fit into the responder's prompt."""
    documents = messages.documents_of(step.cfg, context.cluster["documents"])
    prompt = messages.for_responder(step.cfg, context.task, Question("", ""), documents)
    return step.tools.prompt_tokens(prompt) <= step.card.responder.max_prompt_tokens


def _read_question(step: Step[SpellSection], context: QuestionerContext, sample: Sample | None) -> QuestionDraft:
    """sample: None if the questioner was not asked; its episode then has no turns, as that of a prompt too long."""
    if sample is None:
        rollout = _rollout(step, context)
        unsampled = sample_of(UNSAMPLED, step.roles[QUESTIONER], rollout.name, rollout.messages, QUESTIONER)
        return QuestionDraft(context, unsampled, None, "documents_too_long")
    if not sample.turns:
        return QuestionDraft(context, sample, None, "prompt_too_long")
    limit = step.card.max_answer_tokens
    question, reason = rules.question_of(sample.content, context.task, step.tools.tokens, limit)
    return QuestionDraft(context, sample, question, reason)


def reward_questions(card: SpellSection, drafts: Sequence[QuestionDraft]) -> list[QuestionDraft]:
    """The drafts with r^que (Eq. (7)), by the success rate of their answers; 0 for a question without answers."""
    return [replace(draft, reward=_reward(card, draft)) for draft in drafts]


def _reward(card: SpellSection, draft: QuestionDraft) -> float:
    if draft.reason in rules.MALFORMED:
        return card.malformed_reward
    if draft.reason == rules.UNGROUNDED:
        return card.ungrounded_reward
    if draft.group is None:
        return 0.0
    return rules.questioner_reward(card.questioner_reward, draft.group.mean, card.target, card.width)


# ----------------------------------------------------------------------------------------------------------- responder
def filter_grounded(step: Step[SpellSection], drafts: Sequence[QuestionDraft]) -> list[QuestionDraft]:
    """The drafts, with a reason on each question that is answered correctly without documents (Alg. 1 l.11, l.12)."""
    if not step.card.grounding_filter or all(draft.reason for draft in drafts):
        return list(drafts)
    nothing = messages.nothing(step.cfg)
    readings = [_reading(draft, nothing) for draft in drafts if not draft.reason]
    groups = _sample_answers(step, readings, samples=1, key="grounding")
    blind = {group.reading.position: group.answers[0] for group in groups}
    return [_with_blind(draft, blind.get(draft.context.position)) for draft in drafts]


def _with_blind(draft: QuestionDraft, blind: ResponderAnswer | None) -> QuestionDraft:
    """A draft with the answer that the responder gave without the documents, if it was asked."""
    if blind is None:
        return draft
    reason = rules.UNGROUNDED if blind.rule else ""
    return replace(draft, reason=reason, blind=blind.sample.content, judgements=blind.judgements)


def respond(step: Step[SpellSection], drafts: Sequence[QuestionDraft]) -> list[AnswerGroup]:
    """{y_i} ~ π^res(· | C, q), i = 1…G, for each question without a reason, checked by the rule."""
    readings = [
        _reading(draft, messages.documents_of(step.cfg, draft.context.cluster["documents"]))
        for draft in drafts
        if not draft.reason
    ]
    return answer(step, readings)


def with_groups(drafts: Sequence[QuestionDraft], groups: Sequence[AnswerGroup]) -> list[QuestionDraft]:
    """The drafts with the answers to them; a question that got none does not fit into the responder's prompt with the
    documents, and gets a reason."""
    by_position = {group.reading.position: group for group in groups}
    after = []
    for draft in drafts:
        group = by_position.get(draft.context.position)
        unread = group is None and not draft.reason
        after.append(replace(draft, group=group, reason="documents_too_long" if unread else draft.reason))
    return after


def given_question(cfg: Config, row: rows.Row, position: int) -> ReadingTask:
    """What the responder reads in the mode "given-questions", from the row at a position of the stream."""
    reference, *aliases = row["answers"]
    question = Question(row["question"], reference, tuple(row["options"]), tuple(aliases))
    return ReadingTask(position, messages.task_of(row), question, messages.shown(cfg, row["context"]))


def answer(step: Step[SpellSection], readings: Sequence[ReadingTask]) -> list[AnswerGroup]:
    """G answers to each question, checked by the rule; a question whose documents do not fit into the prompt has no
    group."""
    groups = _sample_answers(step, readings, samples=step.card.responder.samples)
    return [group for group in groups if group.answers[0].sample.turns]


def _sample_answers(
    step: Step[SpellSection], readings: Sequence[ReadingTask], *, samples: int, key: str = ""
) -> list[AnswerGroup]:
    """`samples` answers of the responder to each question, checked by the rule. key: as in `Step.play`."""
    rollouts = [
        Rollout(
            f"{reading.position}",
            messages.for_responder(step.cfg, reading.task, reading.question, reading.documents),
        )
        for reading in readings
    ]
    groups = step.play(RESPONDER, rollouts, samples=samples, key=key)
    answers = [
        ResponderAnswer(reading, number, sample, rules.conclusion_of(sample.content))
        for reading, group in zip(readings, groups, strict=True)
        for number, sample in enumerate(group)
    ]
    answers = check(step, answers)
    return [
        AnswerGroup(reading, tuple(answers[place * samples : (place + 1) * samples]))
        for place, reading in enumerate(readings)
    ]


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
def verify(step: Step[SpellSection], groups: Sequence[AnswerGroup]) -> list[AnswerGroup]:
    """The groups with {v_ij} ~ π^ver(· | q, y_i, a) on every answer that has a conclusion (Alg. 1 l.16, l.17).

    An answer without a conclusion is not verified: the rule alone decides. A prompt that is too long has no
    verifications.
    """
    if not step.card.verify:
        return list(groups)
    rollouts = []
    for group in groups:
        question = group.reading.question
        for each in group.answers:
            if each.conclusion is not None:
                prompt = messages.for_verifier(step.cfg, question, each.conclusion, question.answer)
                rollouts.append(Rollout(each.name, prompt))
    samples = step.play(VERIFIER, rollouts, samples=step.card.verifier.samples)
    verifications = {
        rollout.name: tuple(Verification(sample, rules.verdict_of(sample.content)) for sample in same if sample.turns)
        for rollout, same in zip(rollouts, samples, strict=True)
    }
    return [
        replace(
            group,
            answers=tuple(replace(each, verifications=verifications.get(each.name, ())) for each in group.answers),
        )
        for group in groups
    ]


def reward_answers(card: SpellSection, groups: Sequence[AnswerGroup]) -> list[AnswerGroup]:
    """The groups with v_i, on which r_i depends, and {r_ij} (Eq. (4) to Eq. (6))."""
    return [replace(group, answers=tuple(_with_vote(card, each) for each in group.answers)) for group in groups]


def _with_vote(card: SpellSection, answer: ResponderAnswer) -> ResponderAnswer:
    vote = rules.vote([each.verdict for each in answer.verifications], card.vote)
    verifications = tuple(
        replace(each, reward=rules.verifier_reward(each.verdict, vote, card.malformed_judgment))
        for each in answer.verifications
    )
    return replace(answer, verifications=verifications, vote=vote)
