"""SPELL's roles (section 4.1): the questioner asks about some documents of a cluster, the responder answers from all of
them, the verifier judges each answer against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scope_jax.config import Config
from scope_jax.data.keys import drawn, rng
from scope_jax.games.spell import messages, rules
from scope_jax.games.spell.options import SpellRoleSection, options
from scope_jax.games.spell.state import (
    NOT_ASKED,
    AnswerGroup,
    Entry,
    History,
    Order,
    Question,
    QuestionDraft,
    ReadingTask,
    Response,
    Verification,
)
from scope_jax.play import grading
from scope_jax.play.game import ACTOR
from scope_jax.play.searching import cut_off
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages
from scope_jax.text.parsing import finished_lines


def _agent(cfg: Config, card: SpellRoleSection) -> Agent:
    """The shared actor in single turns, with the sampling settings of a role's table."""
    limit = card.max_prompt_tokens
    return Agent(ACTOR, card.sampling, max_prompt_tokens=limit, tempered=options(cfg).loss.tempered)


# ---------------------------------------------------------------------------------------------------------- questioner
def draw_orders(cfg: Config, history: History, clusters: Sequence[Mapping[str, Any]], first: int) -> list[Order]:
    """An order for each cluster, at positions `first` onwards of the stream, that suits a task of the card."""
    candidates = (draw_order(cfg, history, cluster, position) for position, cluster in enumerate(clusters, first))
    return [candidate for candidate in candidates if candidate is not None]


def draw_order(cfg: Config, history: History, cluster: Mapping[str, Any], position: int) -> Order | None:
    """The order for the cluster at a position of the stream (Alg. 1 l.7, l.8): a task and new documents.

    Both are drawn with (seed, position). New documents are those from which no remembered question was written: m of
    them, or all if there are fewer, in the cluster's order. None if the cluster suits no task with a share above 0.
    """
    card = options(cfg)
    task = _task(cfg, cluster, position)
    if task is None:
        return None
    key = f"{cluster['id']}/{task}"
    known = tuple(Entry.of(entry) for entry in history.get(key, ()))[-card.history :] if card.history else ()
    seen = {document for entry in known for document in entry.documents}
    ids = [document["id"] for document in cluster["documents"]]
    unseen = [document for document in ids if document not in seen]
    restarts = not unseen and card.all_seen == "reset"
    if restarts:
        known, unseen = (), ids
    indices = drawn(range(len(unseen)), card.documents, rng("spell documents", cfg.seed, position))
    new = tuple(unseen[index] for index in sorted(indices))
    return Order(position, cluster, task, key, new, known, restarts)


def _task(cfg: Config, cluster: Mapping[str, Any], position: int) -> str | None:
    weights: Mapping[str, float] = {**options(cfg).tasks}
    tasks = rules.allowed_tasks(weights, options(cfg).families, cluster["family"])
    if not tasks:
        return None
    shares = np.array([weights[task] for task in tasks])
    return tasks[int(rng("spell task", cfg.seed, position).choice(len(tasks), p=shares / shares.sum()))]


def ask(cfg: Config, tools: Tools, orders: Sequence[Order]) -> list[QuestionDraft]:
    """(q, a) ~ π^que(· | X^que) for each order, with a reason if it is malformed or its prompt was too long.

    No question is asked about a cluster whose documents alone exceed the responder's prompt.
    """
    prompts = {order.position: messages.for_questioner(cfg, order) for order in orders}
    fitting = [order.position for order in orders if _fits_the_responder(cfg, tools, order)]
    rollouts = [Rollout(f"{position}", prompts[position]) for position in fitting]
    groups = tools.play("questioner", rollouts, _agent(cfg, options(cfg).questioner))
    completions = {position: completion for position, (completion,) in zip(fitting, groups, strict=True)}
    proposals = []
    for order in orders:
        completion = completions.get(order.position, NOT_ASKED)
        question, reason = None, "documents_too_long" if completion is NOT_ASKED else "prompt_too_long"
        if completion.turns:
            limit = options(cfg).max_answer_tokens
            question, reason = rules.question_of(completion.content, order.task, tools.tokens, limit)
        proposals.append(QuestionDraft(order, prompts[order.position], completion, question, reason))
    return proposals


def _fits_the_responder(cfg: Config, tools: Tools, order: Order) -> bool:
    """True if the cluster's documents, with an empty question, fit into the responder's prompt."""
    documents = messages.documents_of(cfg, order.cluster["documents"])
    prompt = messages.for_responder(cfg, order.task, Question("", ""), documents)
    return tools.prompt_tokens(prompt) <= options(cfg).responder.max_prompt_tokens


def reward(cfg: Config, proposals: Sequence[QuestionDraft], groups: Sequence[AnswerGroup]) -> list[QuestionDraft]:
    """The questions with r^que (Eq. (7)), by the success rate of their answers; 0 for a question without answers."""
    success = {group.position: group.mean for group in groups}
    return [replace(each, reward=_reward(cfg, each, success.get(each.order.position))) for each in proposals]


def _reward(cfg: Config, proposal: QuestionDraft, success: float | None) -> float:
    card = options(cfg)
    if proposal.reason in rules.MALFORMED:
        return card.malformed_reward
    if proposal.reason == rules.UNGROUNDED:
        return card.ungrounded_reward
    if success is None:
        return 0.0
    return rules.questioner_reward(card.questioner_reward, success, card.target, card.width)


# ----------------------------------------------------------------------------------------------------------- responder
def filter_grounded(
    cfg: Config, tools: Tools, proposals: Sequence[QuestionDraft]
) -> tuple[list[QuestionDraft], grading.Grades]:
    """(`proposals`, with a reason on each question that is answered correctly without documents, Alg. 1 l.11, l.12; the
    grades of these answers)."""
    open_proposals = [proposal for proposal in proposals if not proposal.reason]
    if not options(cfg).grounding_filter or not open_proposals:
        return list(proposals), grading.Grades([], [])
    nothing = messages.nothing(cfg)
    readings = [_reading(proposal, nothing) for proposal in open_proposals]
    rollouts = [_rollout(cfg, reading) for reading in readings]
    groups = tools.play("grounding", rollouts, _agent(cfg, options(cfg).responder))
    replies = [completion.content for (completion,) in groups]
    grades = check(cfg, tools, list(zip(readings, replies, strict=True)))
    filtered = {proposal.order.position: proposal for proposal in proposals}
    for reading, reply, right, judgements in zip(readings, replies, grades.correct, grades.judgements, strict=True):
        reason = rules.UNGROUNDED if right else ""
        proposal = filtered[reading.position]
        filtered[reading.position] = replace(proposal, reason=reason, blind=reply, judgements=judgements)
    return list(filtered.values()), grades


def respond(
    cfg: Config, tools: Tools, proposals: Sequence[QuestionDraft]
) -> tuple[list[AnswerGroup], list[QuestionDraft], grading.Grades]:
    """({y_i} ~ π^res(· | C, q), i = 1…G, for each question without a reason, checked by the rule; the updated
    `proposals`; the grades of the answers).

    A question that does not fit into the responder's prompt with the documents gets no answers, and a reason that says
    so.
    """
    readings = [
        _reading(proposal, messages.documents_of(cfg, proposal.order.cluster["documents"]))
        for proposal in proposals
        if not proposal.reason
    ]
    groups, grades = answer(cfg, tools, readings)
    unread = {reading.position for reading in readings} - {group.position for group in groups}
    after = [
        replace(proposal, reason="documents_too_long") if proposal.order.position in unread else proposal
        for proposal in proposals
    ]
    return groups, after, grades


def given_question(cfg: Config, row: Mapping[str, Any], position: int) -> ReadingTask:
    """What the responder reads in the mode "rlvr", from the row at a position of the stream."""
    reference, *aliases = row["answers"]
    question = Question(row["question"], reference, tuple(row["options"]), tuple(aliases))
    return ReadingTask(position, messages.task_of(row), question, messages.shown(cfg, row["context"]))


def answer(cfg: Config, tools: Tools, readings: Sequence[ReadingTask]) -> tuple[list[AnswerGroup], grading.Grades]:
    """(G answers to each question, checked by the rule; the grades of all answers).

    A question whose documents do not fit into the prompt has no group.
    """
    card = options(cfg).responder
    rollouts = [_rollout(cfg, reading) for reading in readings]
    sampled = tools.play("responder", rollouts, _agent(cfg, card), card.samples)
    replies = [(reading, completion) for reading, group in zip(readings, sampled, strict=True) for completion in group]
    grades = check(cfg, tools, [(reading, completion.content) for reading, completion in replies])
    responses: dict[int, list[Response]] = {reading.position: [] for reading in readings}
    for (reading, completion), right, judgements in zip(replies, grades.correct, grades.judgements, strict=True):
        conclusion = rules.conclusion_of(completion.content)
        responses[reading.position].append(Response(completion, conclusion, right, judgements))
    groups = [
        AnswerGroup(
            reading.position, reading.task, reading.question, rollout.messages, tuple(responses[reading.position])
        )
        for reading, rollout in zip(readings, rollouts, strict=True)
    ]
    return [group for group in groups if group.responses[0].completion.turns], grades


def check(cfg: Config, tools: Tools, replies: Sequence[tuple[ReadingTask, str]]) -> grading.Grades:
    """R_rule(y, a) of each reply: by the rule, or by [judge] in its place, with its judgements (section 5.6).

    The judge sees the conclusion, or the whole reply if there is none; it gets no request for an empty reply.
    """
    concluded = [(reading, reply, rules.conclusion_of(reply)) for reading, reply in replies]
    if options(cfg).rule == "match":
        reads, containment = options(cfg).rule_reads, options(cfg).containment
        right = [
            rules.matches(reading.task, reply, conclusion, reading.question.answers, reads, containment)
            for reading, reply, conclusion in concluded
        ]
        return grading.Grades(right, [()] * len(replies))
    cases = [
        grading.Case(reading.question.whole, conclusion or reply.strip() or None, reading.question.answers)
        for reading, reply, conclusion in concluded
    ]
    return grading.grade("judge", options(cfg).prompts, tools.judge, cases)


def _reading(proposal: QuestionDraft, documents: str) -> ReadingTask:
    assert proposal.question is not None  # since it has no reason for rejection
    return ReadingTask(proposal.order.position, proposal.order.task, proposal.question, documents)


def _rollout(cfg: Config, reading: ReadingTask) -> Rollout:
    prompt = messages.for_responder(cfg, reading.task, reading.question, reading.documents)
    return Rollout(f"{reading.position}", prompt)


def exam_conclusion(completion: Completion) -> str | None:
    """The answer that an exam grades: the conclusion; of a reply that was cut, one of a finished line."""
    text = completion.content
    return rules.conclusion_of(finished_lines(text) if cut_off(completion) else text)


# ------------------------------------------------------------------------------------------------------------ verifier
def verify(cfg: Config, tools: Tools, groups: Sequence[AnswerGroup]) -> list[AnswerGroup]:
    """The groups with {v_ij} ~ π^ver(· | q, y_i, a) and v_i on every answer that has a conclusion (Alg. 1 l.16, l.17).

    An answer without a conclusion is not verified: the rule alone decides. A prompt that is too long has no judgments.
    """
    if not options(cfg).verify:
        return list(groups)
    prompts = {
        (group.position, i): messages.for_verifier(cfg, group.question, response.answer, group.question.answer)
        for group in groups
        for i, response in enumerate(group.responses)
        if response.answer is not None
    }
    card = options(cfg).verifier
    rollouts = [Rollout(f"{position} answer {i}", prompt) for (position, i), prompt in prompts.items()]
    sampled = dict(zip(prompts, tools.play("verifier", rollouts, _agent(cfg, card), card.samples), strict=True))
    verified = []
    for group in groups:
        keys = [(group.position, i) for i in range(len(group.responses))]
        responses = (
            _with_vote(cfg, response, prompts[key], sampled[key]) if key in prompts else response
            for key, response in zip(keys, group.responses, strict=True)
        )
        verified.append(replace(group, responses=tuple(responses)))
    return verified


def _with_vote(cfg: Config, response: Response, prompt: Messages, completions: Sequence[Completion]) -> Response:
    """An answer with its judgments; a completion without a turn, of a prompt that was too long, is none."""
    judged = tuple(Verification(each, rules.verdict_of(each.content)) for each in completions if each.turns)
    vote = rules.vote([each.verdict for each in judged], options(cfg).vote)
    return replace(response, prompt=prompt, verifications=judged, vote=vote)
