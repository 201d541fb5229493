"""The responder answers a question without documents, to test whether the question needs them, and then with all
documents of the cluster, where those that the questioner did not read are distractors (section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scope_jax.config import Config
from scope_jax.games.spell import instructions, rules
from scope_jax.games.spell.conversation import agent
from scope_jax.games.spell.options import options
from scope_jax.games.spell.records import Asked, Group, Order, Question, Response
from scope_jax.games.spell.rules import UNGROUNDED
from scope_jax.play import grading
from scope_jax.play.searching import reply_text
from scope_jax.play.tools import Rollout, Tools


@dataclass(frozen=True)
class Case:
    """One reply to a question, to be checked by the rule."""

    task: str
    question: Question
    reply: str


@dataclass(frozen=True)
class Reading:
    """A question to answer from documents, given as they stand in the prompt. place: as in `Group`."""

    place: int
    task: str
    question: Question
    documents: str


def check(cfg: Config, tools: Tools, cases: Sequence[Case]) -> grading.Grades:
    """R_rule(y, a) of each case: by the rule, or by [judge] in its place, with its judgements (section 5.6).

    The judge sees the conclusion, or the whole reply if there is none; it gets no request for an empty reply.
    """
    if options(cfg).rule == "match":
        reads = options(cfg).rule_reads
        right = [rules.matches(c.task, c.reply, rules.conclusion_of(c.reply), c.question.answers, reads) for c in cases]
        return grading.Grades(right, [()] * len(cases))
    to_grade = [
        grading.Case(c.question.whole, rules.conclusion_of(c.reply) or c.reply.strip() or None, c.question.answers)
        for c in cases
    ]
    return grading.grade("judge", options(cfg).prompts, tools.judge, to_grade)


def fits(cfg: Config, tools: Tools, order: Order) -> bool:
    """True if the cluster's documents, with an empty question, fit into the responder's prompt."""
    documents = instructions.documents_of(cfg, order.cluster["documents"])
    messages = instructions.for_responder(cfg, order.task, Question("", ""), documents)
    return tools.prompt_tokens(messages) <= options(cfg).responder.max_prompt_tokens


def filter_grounded(cfg: Config, tools: Tools, asked: Sequence[Asked]) -> tuple[list[Asked], grading.Grades]:
    """(`asked`, with a reason on each question that is answered correctly without documents, Alg. 1 l.11, l.12; the
    grades of these answers)."""
    places = [place for place, one in enumerate(asked) if not one.reason]
    if not options(cfg).grounding_filter or not places:
        return list(asked), grading.Grades([], [])
    nothing = instructions.nothing(cfg)
    readings = [_reading(asked[place], nothing) for place in places]
    rollouts = [_rollout(cfg, reading) for reading in readings]
    groups = tools.play("grounding", rollouts, agent(cfg, options(cfg).responder))
    replies = [reply_text(completion) for (completion,) in groups]
    grades = check(cfg, tools, [Case(r.task, r.question, y) for r, y in zip(readings, replies, strict=True)])
    filtered = list(asked)
    for place, reply, right, judged in zip(places, replies, grades.correct, grades.judgements, strict=True):
        filtered[place] = replace(asked[place], reason=UNGROUNDED if right else "", blind=reply, judged=judged)
    return filtered, grades


def respond(cfg: Config, tools: Tools, asked: Sequence[Asked]) -> tuple[list[Group], list[Asked], grading.Grades]:
    """({y_i} ~ π^res(· | C, q), i = 1…G, for each question without a reason, checked by the rule; the updated `asked`;
    the grades of the answers).

    A question that does not fit into the responder's prompt with the documents gets no answers, and a reason that says
    so.
    """
    places = [place for place, one in enumerate(asked) if not one.reason]
    readings = [
        _reading(asked[place], instructions.documents_of(cfg, asked[place].order.cluster["documents"]))
        for place in places
    ]
    answered, grades = answer(cfg, tools, readings)
    groups, after = [], list(asked)
    for place, group in zip(places, answered, strict=True):
        if group is None:
            after[place] = replace(asked[place], reason="documents_too_long")
        else:
            groups.append(group)
    return groups, after, grades


def answer(cfg: Config, tools: Tools, readings: Sequence[Reading]) -> tuple[list[Group | None], grading.Grades]:
    """(G answers to each question, checked by the rule, None if its documents do not fit into the prompt; the grades
    of all answers)."""
    card = options(cfg).responder
    rollouts = [_rollout(cfg, reading) for reading in readings]
    answered = tools.play("responder", rollouts, agent(cfg, card), card.samples)
    cases = [
        Case(r.task, r.question, reply_text(c)) for r, group in zip(readings, answered, strict=True) for c in group
    ]
    grades = check(cfg, tools, cases)
    checked = iter(zip(grades.correct, grades.judgements, strict=True))
    groups: list[Group | None] = []
    for reading, rollout, completions in zip(readings, rollouts, answered, strict=True):
        responses = tuple(
            Response(completion, rules.conclusion_of(reply_text(completion)), rule=right, judged=judged)
            for completion, (right, judged) in zip(
                completions, checked, strict=False
            )  # takes its own from the iterator
        )
        fits = bool(completions[0].turns)
        groups.append(
            Group(reading.place, reading.task, reading.question, rollout.messages, responses) if fits else None
        )
    return groups, grades


def _reading(asked: Asked, documents: str) -> Reading:
    assert asked.question is not None  # since it has no reason for rejection
    return Reading(asked.order.place, asked.order.task, asked.question, documents)


def _rollout(cfg: Config, reading: Reading) -> Rollout:
    messages = instructions.for_responder(cfg, reading.task, reading.question, reading.documents)
    return Rollout(f"{reading.place}", messages)
