"""The responder: without the documents, to find out whether a question needs them; then with all of the cluster, of
which those that the questioner did not read distract (section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scope_jax.config import Config
from scope_jax.learner.types import Judgement
from scope_jax.play import grading
from scope_jax.play.tools import Prompt, Tools
from scope_jax.systems.spell import instructions, rules
from scope_jax.systems.spell.records import Asked, Group, Question, Response
from scope_jax.systems.spell.rules import UNGROUNDED
from scope_jax.systems.spell.talking import said, talk


@dataclass(frozen=True)
class Case:
    """One reply to one question, to be checked by the rule."""

    task: str
    question: Question
    said: str


def check(cfg: Config, tools: Tools, cases: Sequence[Case]) -> list[tuple[bool, tuple[Judgement, ...]]]:
    """(R_rule(y, a), what an outside judge said) of each case: by the rule, or by [judge] in its place (section 5.6).

    The judge sees the conclusion, or all that was said where there is none; of nothing it is not asked.
    """
    if cfg.spell.rule == "match":
        return [
            (
                rules.matches(c.task, c.said, rules.conclusion_of(c.said), c.question.answer, cfg.spell.rule_reads),
                (),
            )
            for c in cases
        ]
    put = [
        grading.Case(c.question.whole, rules.conclusion_of(c.said) or c.said.strip() or None, (c.question.answer,))
        for c in cases
    ]
    grades = grading.grade("judge", cfg.spell.prompts, tools.judge, put)
    return list(zip(grades.correct, grades.judgements, strict=True))


def filter_grounded(cfg: Config, tools: Tools, asked: Sequence[Asked]) -> list[Asked]:
    """`asked` with a reason on each question that is answered rightly without any document (Alg. 1 l.11, l.12)."""
    places = [place for place, one in enumerate(asked) if not one.reason]
    if not cfg.spell.grounding_filter or not places:
        return list(asked)
    nothing = instructions.nothing(cfg)
    prompts = [_prompt(cfg, tools, asked[place], nothing) for place in places]
    groups = talk(cfg, tools, "grounding", cfg.spell.responder, prompts, 1)
    replies = [said(completion) for (completion,) in groups]
    checked = check(cfg, tools, [_case(asked[place], reply) for place, reply in zip(places, replies, strict=True)])
    filtered = list(asked)
    for place, reply, (right, judged) in zip(places, replies, checked, strict=True):
        filtered[place] = replace(asked[place], reason=UNGROUNDED if right else "", blind=reply, judged=judged)
    return filtered


def respond(cfg: Config, tools: Tools, asked: Sequence[Asked]) -> tuple[list[Group], list[Asked]]:
    """({y_i} ~ π^res(· | C, q), i = 1…G, for each question without a reason, checked by the rule; `asked` anew).

    A question whose documents do not fit into the responder's prompt is not answered, and gets that for its reason.
    """
    places = [place for place, one in enumerate(asked) if not one.reason]
    prompts = [
        _prompt(cfg, tools, asked[place], instructions.documents_of(cfg, asked[place].order.cluster["documents"]))
        for place in places
    ]
    card = cfg.spell.responder
    answered = talk(cfg, tools, "responder", card, prompts, card.samples)
    cases = [_case(asked[place], said(c)) for place, own in zip(places, answered, strict=True) for c in own]
    checked = iter(check(cfg, tools, cases))
    groups, after = [], list(asked)
    for place, prompt, own in zip(places, prompts, answered, strict=True):
        marks = [next(checked) for _ in own]
        if not own[0].turns:
            after[place] = replace(asked[place], reason="documents_too_long")
            continue
        responses = [
            Response(completion, rules.conclusion_of(said(completion)), rule=right, judged=judged)
            for completion, (right, judged) in zip(own, marks, strict=True)
        ]
        groups.append(Group(asked[place], prompt.messages, tuple(responses)))
    return groups, after


def _prompt(cfg: Config, tools: Tools, asked: Asked, documents: str) -> Prompt:
    assert asked.question is not None  # it has no reason
    messages = instructions.for_responder(cfg, asked.order.task, asked.question, documents)
    return Prompt(tools.encode_prompt(messages), f"{asked.order.place}", messages)


def _case(asked: Asked, reply: str) -> Case:
    assert asked.question is not None
    return Case(asked.order.task, asked.question, reply)
