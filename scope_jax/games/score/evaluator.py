"""SCORE's evaluator: the rubric call, which is trained, and the assessment of reports, which is not (section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_jax.config import Config
from scope_jax.games.score import conversation, instructions, rules
from scope_jax.games.score.harness import Harness, default
from scope_jax.games.score.options import options
from scope_jax.games.score.records import Assessment, Call, Constraints, Draft, Report, Rubric
from scope_jax.play import searching
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.text.messages import Messages

Query = Mapping[str, Any]  # a row of data


def fixed_rubric(cfg: Config) -> Rubric:
    """The card's fixed rubric: for the static evaluator, and for exams."""
    weights = {name: weight for name, weight in options(cfg).fixed_rubric.items() if weight}
    return Rubric(options(cfg).harness.must_include[0], weights)


def substitute(cfg: Config, harness: Harness) -> Rubric:
    """What takes the place of a malformed rubric: the fixed one; as much of it as a refreshed harness admits.

    Then it has the harness's base, k − 1 other dimensions (those that the harness requires, those of the fixed rubric,
    and others of the pool, in this order), and weights within the harness's bounds.
    """
    fixed, limits = fixed_rubric(cfg), harness.dimension_constraints
    if harness == default(cfg):
        return fixed
    order = dict.fromkeys((*limits.must_include, *fixed.weights, *harness.pool))
    names = [name for name in order if name in harness.pool and name != harness.base][: limits.k - 1]
    weights = {name: fixed.weights.get(name, limits.weight_min) for name in names}
    return Rubric(
        harness.base, {name: min(max(w, limits.weight_min), limits.weight_max) for name, w in weights.items()}
    )


def sample_rubrics(
    cfg: Config, tools: Tools, harness: Harness, constraints: Constraints, queries: Sequence[Query]
) -> tuple[list[Draft], list[Rubric]]:
    """(H_t, w_t) ~ π_e: (the rubric calls, one for the step or one per query; the rubric of each query)."""
    card = options(cfg)
    if card.rubric == "fixed":
        return [], [fixed_rubric(cfg)] * len(queries)
    about = [row["question"] for row in queries] if card.rubric_scope == "query" else [None]
    asked = [instructions.for_rubric(cfg, harness, constraints, query) for query in about]
    agent = Agent(
        conversation.policy_of(cfg, "evaluator"),
        card.evaluator.sampling,
        stop=("</dimensions>",),
        max_prompt_tokens=card.evaluator.max_prompt_tokens,
        tempered=card.evaluator.loss.tempered,
    )
    groups = tools.play("rubric", [Rollout(f"{place}", messages) for place, messages in enumerate(asked)], agent)
    drafts = []
    for place, (messages, (completion,)) in enumerate(zip(asked, groups, strict=True)):
        rubric, reason = None, "prompt_too_long"
        if completion.turns:
            text = conversation.last_turn(completion)
            rubric, reason = rules.rubric_of(text, harness, constraints if card.scheduler.enforce else None)
        drafts.append(Draft(f"{place}", messages, completion, rubric or substitute(cfg, harness), reason))
    rubrics = [draft.rubric for draft in drafts]
    return drafts, rubrics if card.rubric_scope == "query" else rubrics * len(queries)


def assess(
    cfg: Config, tools: Tools, harness: Harness, queries: Sequence[Query], reports: Sequence[Report]
) -> tuple[list[Report], list[Call]]:
    """(the reports with their assessments, or with the reason why one has none; the evaluator's conversations).

    A conversation is about `score.reports_per_call` reports of one query. One without a valid assessment of each of
    them is held once more, with a nudge in its prompt, and counts if its reports are assessed then.
    """
    card, calls = options(cfg), []
    for place in range(len(queries)):
        own = [i for i, report in enumerate(reports) if report.place == place and report.text is not None]
        calls += [tuple(own[at : at + card.reports_per_call]) for at in range(0, len(own), card.reports_per_call)]
    asked = [_asked(cfg, harness, queries, [reports[i] for i in places]) for places in calls]
    names = [f"{reports[places[0]].place} report {places[0]}" for places in calls]
    made = _assessed(cfg, tools, calls, asked, names)
    read = [_read(cfg, harness, call, reports) for call in made]
    if again := [k for k, own in enumerate(read) if any(report.reason in rules.INVALID for report in own)]:
        nudge = instructions.nudge(cfg)
        nudged = [replace(asked[k], user=f"{asked[k].user}\n\n{nudge}") for k in again]
        second = _assessed(cfg, tools, [calls[k] for k in again], nudged, [f"{names[k]} again" for k in again])
        for k, call in zip(again, second, strict=True):
            own = _read(cfg, harness, call, reports)
            made[k] = replace(made[k], nudged=True)
            if not any(report.reason in (*rules.INVALID, "assessment_too_long") for report in own):
                made[k], read[k] = replace(call, nudged=True), own
    assessed = list(reports)
    for places, own in zip(calls, read, strict=True):
        for i, report in zip(places, own, strict=True):
            assessed[i] = report
    return assessed, made


def _asked(cfg: Config, harness: Harness, queries: Sequence[Query], reports: Sequence[Report]) -> Messages:
    """The scoring prompt about reports of one query."""
    texts = [report.text or "" for report in reports]
    query = queries[reports[0].place]["question"]
    return instructions.for_scoring(cfg, harness, query, reports[0].rubric, texts)


def _assessed(
    cfg: Config, tools: Tools, calls: Sequence[tuple[int, ...]], asked: Sequence[Messages], names: Sequence[str]
) -> list[Call]:
    """The evaluator's conversation about the reports of each call."""
    card = options(cfg).evaluator
    agent = Agent(
        conversation.policy_of(cfg, "evaluator"),
        card.assessment,
        max_turns=card.max_turns,
        max_prompt_tokens=card.max_prompt_tokens,
        stop=searching.stops_of(cfg, conversation.ASSESSMENT),
        respond=searching.responder_of(cfg, tools.search, conversation.ASSESSMENT),
        tempered=card.loss.tempered,
    )
    groups = tools.play("scoring", [Rollout(*each) for each in zip(names, asked, strict=True)], agent)
    return [Call(places, completion) for places, (completion,) in zip(calls, groups, strict=True)]


def _read(cfg: Config, harness: Harness, call: Call, reports: Sequence[Report]) -> list[Report]:
    """The reports of one conversation, each with its assessment and reward, or with the reason why it has none."""
    own = [reports[i] for i in call.reports]
    if not call.completion.turns:
        return [replace(report, reason="assessment_too_long") for report in own]
    depth = conversation.searches_run(cfg, call.completion)
    text = conversation.last_turn(call.completion)
    found = rules.assessments_of(text, len(own), own[0].rubric, options(cfg).max_score)
    if found is None:
        return [replace(report, reason="assessment_malformed", depth=depth) for report in own]
    return [_settled(cfg, harness, report, one, depth) for report, one in zip(own, found, strict=True)]


def _settled(cfg: Config, harness: Harness, report: Report, found: Assessment, depth: int) -> Report:
    """l.22, l.23: the report with R_s, or without an assessment if harness or depth gate reject it."""
    if reason := rules.lacking(found, depth, harness, options(cfg).min_depth):
        return replace(report, reason=reason, depth=depth)
    unit = options(cfg).max_score if options(cfg).score_unit == "share" else 1
    scores = {name: value / unit for name, value in found.scores.items()}
    reward = rules.report_reward(scores[report.rubric.base], report.rubric.weights, scores)
    return replace(report, assessment=found, reason="", depth=depth, reward=reward)
