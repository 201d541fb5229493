"""SCORE's roles (section 3.4): the solver writes reports, the evaluator rubrics and assessments; new meta-harnesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config, SamplingSection
from scope_jax.games.score import messages, meta_harness, rules
from scope_jax.games.score.meta_harness import Harness, HarnessError, Refresh
from scope_jax.games.score.options import ScoreRole, ScoreSection, options
from scope_jax.games.score.state import (
    Constraints,
    Query,
    Report,
    Rubric,
    RubricDraft,
    ScoringRequest,
    Statistics,
)
from scope_jax.grading.judge_client import JudgeError
from scope_jax.learner.types import Reply
from scope_jax.play import searching
from scope_jax.play.chains import Waiting
from scope_jax.play.game import ACTOR
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.samples import Sample
from scope_jax.play.step import Step
from scope_jax.play.tools import BASE
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects, parsing

SOLVER, EVALUATOR, SCORING = "solver", "evaluator", "scoring"
HARNESS = "harness"  # the external model, and the records for the report
REPORT, ASSESSMENT = "answer", "report_evaluations"  # final tags of the episodes with searches


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """The solver, the evaluator of rubrics unless they are fixed, the same evaluator when it assesses reports, and the
    external model that writes harnesses, if the card's driver is "endpoint"."""
    card = options(cfg)
    evaluator = () if card.rubric == "fixed" else (evaluator_role(cfg),)
    harness = ()
    if card.harness.driver == "endpoint" and card.harness.endpoint is not None:
        endpoint = card.harness.endpoint
        harness = (Role(HARNESS, endpoint, prompts=(messages.HARNESS,), table="score.harness.endpoint"),)
    return (solver_role(cfg), *evaluator, scoring_role(cfg), *harness)


def solver_role(cfg: Config) -> Role:
    """It searches, and writes a report on a query under a rubric."""
    card = options(cfg)
    agent = Agent.of_role(card.solver, _policy_of(card, "solver"))
    return Role(
        SOLVER,
        searching.with_searches(agent, REPORT),
        loss=card.solver.loss if SOLVER in card.train else None,
        prompts=(messages.SOLVER,),
        table="score.solver",
        searches=lambda completion: searches_run(cfg, completion),
        rejections=rules.REPORT_REASONS,
    )


def evaluator_role(cfg: Config) -> Role:
    """It writes rubrics, on which it is trained."""
    card = options(cfg)
    return Role(
        EVALUATOR,
        replace(_evaluator(card, card.evaluator.sampling), stop=("</dimensions>",)),
        loss=card.evaluator.loss if EVALUATOR in card.train else None,
        weight=card.evaluator_scale,
        prompts=(messages.RUBRIC_QUERY if card.rubric_scope == "query" else messages.RUBRIC,),
        table="score.evaluator",
        rejections=rules.RUBRIC_REASONS,
    )


def scoring_role(cfg: Config) -> Role:
    """The evaluator when it searches and assesses reports, which is not trained."""
    card = options(cfg)
    agent = replace(_evaluator(card, card.evaluator.assessment), max_turns=card.evaluator.max_turns)
    return Role(
        SCORING,
        searching.with_searches(agent, ASSESSMENT),
        prompts=(messages.SCORING, messages.NUDGE) if messages.has_nudge(cfg) else (messages.SCORING,),
        table="score.evaluator",
        searches=lambda completion: searches_run(cfg, completion),
    )


def _evaluator(card: ScoreSection, sampling: SamplingSection) -> Agent:
    """The evaluator in single turns, with one of its sampling tables."""
    limit = card.evaluator.max_prompt_tokens
    policy = _policy_of(card, "evaluator")
    return Agent(policy, sampling, max_prompt_tokens=limit, tempered=card.evaluator.loss.tempered)


def _policy_of(card: ScoreSection, role: ScoreRole) -> str:
    """The policy of a role: the shared actor, a policy of its own, or the base if that would not be trained."""
    if card.policies == "shared":
        return ACTOR
    return role if role in card.train else BASE


def searches_run(cfg: Config, completion: Completion) -> int:
    """Number of searches of an episode that were run. A list of queries in one search, which Listing 4 forbids, is run
    but counts as one."""
    dialect = dialects.load(cfg.model.dialect)
    texts = searching.answered_contents(completion)
    return sum(search.valid for text in texts for search in searching.searches(text, dialect))


# -------------------------------------------------------------------------------------------------- evaluator: rubrics
def fixed_rubric(cfg: Config) -> Rubric:
    """The card's fixed rubric: for the static evaluator, and for exams."""
    weights = {name: weight for name, weight in options(cfg).fixed_rubric.items() if weight}
    return Rubric(options(cfg).harness.must_include[0], weights)


def substitute(cfg: Config, harness: Harness) -> Rubric:
    """What takes the place of a malformed rubric: the fixed one; as much of it as a refreshed harness admits.

    Then it has the harness's base, k − 1 other dimensions (those that the harness requires, those of the fixed rubric,
    and others of the pool, in this order), and weights within the harness's bounds.
    """
    fixed = fixed_rubric(cfg)
    if harness == meta_harness.default(cfg):
        return fixed
    limits = harness.dimension_constraints
    pool = harness.dimension_pool
    order = dict.fromkeys((*limits.must_include, *fixed.weights, *pool))
    names = [name for name in order if name in pool and name != harness.base][: limits.k - 1]
    weights = {name: fixed.weights.get(name, limits.weight_min) for name in names}
    return Rubric(
        harness.base, {name: min(max(w, limits.weight_min), limits.weight_max) for name, w in weights.items()}
    )


def sample_rubric(
    step: Step[ScoreSection],
    harness: Harness,
    constraints: Constraints,
    queries: tuple[int, ...],
    question: str | None = None,
) -> Waiting[RubricDraft]:
    """(H_t, w_t) ~ π_e for the queries of these places. question: the query, if it is for one."""
    prompt = messages.for_rubric(step.cfg, harness, constraints, question)
    rollout = Rollout(f"{queries[0]}", prompt)
    ((sample,),) = yield from step.sample(EVALUATOR, [rollout], key="rubric", label=EVALUATOR)
    rubric = None
    reason = "prompt_too_long"
    if sample.turns:
        text = searching.contents(sample)[-1]
        rubric, reason = rules.rubric_of(text, harness, constraints if step.card.scheduler.enforce else None)
    return RubricDraft(queries, sample, rubric or substitute(step.cfg, harness), reason)


# -------------------------------------------------------------------------------------------------------------- solver
def write_reports(step: Step[ScoreSection], query: Query) -> Waiting[list[Report]]:
    """y_i^k ~ π_s(· | q_i, H, w), k = 1…K, on a query, not yet assessed."""
    rollout = Rollout(f"{query.index}", messages.for_solver(step.cfg, query.question, query.rubric))
    (group,) = yield from step.sample(SOLVER, [rollout], samples=step.card.solver.samples)
    reports: list[Report] = []
    for index, sample in enumerate(group, query.index * len(group)):
        text = report_of(sample)
        conclusion = None if text is None else rules.conclusion_of(text, step.card.conclusion)
        reason = "no_report" if text is None else ""
        reports.append(Report(index, query, sample, text, conclusion, reason=reason))
    return reports


def report_of(completion: Completion) -> str | None:
    """The report: content of the last closed `<answer>`; None without one or when it is empty."""
    return parsing.last(searching.contents(completion), REPORT) or None


# ---------------------------------------------------------------------------------------------- evaluator: assessments
def assess(step: Step[ScoreSection], harness: Harness, reports: Sequence[Report]) -> Waiting[list[Report]]:
    """The reports on a query with the evaluator's assessments, `score.reports_per_call` in each request.

    A request without a valid assessment of each of its reports is made once more, with a nudge in its prompt; the
    second reply counts if its reports are assessed then.
    """
    requests = _scoring_requests(step, harness, reports)
    first = yield from _score(step, harness, requests)
    after = {report.index: report for group in first for report in group}
    invalid = [
        request
        for request in requests
        if any(after[report.index].reason in rules.INVALID for report in request.reports)
    ]
    if invalid:
        nudge = messages.nudge(step.cfg)
        second = yield from _score(step, harness, [_with_nudge(request, nudge) for request in invalid])
        for group in second:
            fails = any(report.reason in {*rules.INVALID, "assessment_too_long"} for report in group)
            for report in group:
                after[report.index] = replace(after[report.index] if fails else report, nudged=True)
    return [after.get(report.index, report) for report in reports]


def _scoring_requests(step: Step[ScoreSection], harness: Harness, reports: Sequence[Report]) -> list[ScoringRequest]:
    """The requests about the reports on a query that there are."""
    size = step.card.reports_per_call
    requests = []
    written = [report for report in reports if report.text is not None]
    for at in range(0, len(written), size):
        together = tuple(written[at : at + size])
        query = together[0].query
        texts = [report.text or "" for report in together]
        prompt = messages.for_scoring(step.cfg, harness, query.question, query.rubric, texts)
        requests.append(ScoringRequest(together, Rollout(f"{query.index} report {together[0].index}", prompt)))
    return requests


def _with_nudge(request: ScoringRequest, nudge: str) -> ScoringRequest:
    before = request.rollout
    prompt = replace(before.messages, user=f"{before.messages.user}\n\n{nudge}")
    return replace(request, rollout=Rollout(f"{before.name} again", prompt))


def _score(
    step: Step[ScoreSection], harness: Harness, requests: Sequence[ScoringRequest]
) -> Waiting[list[list[Report]]]:
    """The reports of each request, each with its assessment and R_s, or why it has none (l.22, l.23)."""
    groups = yield from step.sample(SCORING, [request.rollout for request in requests])
    return [_read(step, harness, sample, request.reports) for request, (sample,) in zip(requests, groups, strict=True)]


def _read(step: Step[ScoreSection], harness: Harness, sample: Sample, reports: Sequence[Report]) -> list[Report]:
    """The reports after the evaluator's rollout about them, whose assessments may be malformed, or rejected by harness
    and depth gate."""
    if not sample.turns:
        return [replace(report, scoring=sample, reason="assessment_too_long") for report in reports]
    card = step.card
    depth = searches_run(step.cfg, sample)
    rubric = reports[0].query.rubric
    assessments = rules.assessments_of(searching.contents(sample)[-1], len(reports), rubric, card.max_score)
    if assessments is None:
        return [replace(report, scoring=sample, reason="assessment_malformed", depth=depth) for report in reports]
    unit = card.max_score if card.score_unit == "share" else 1
    after = []
    for report, assessment in zip(reports, assessments, strict=True):
        if reason := rules.unmet(assessment, depth, harness, card.min_depth):
            after.append(replace(report, scoring=sample, reason=reason, depth=depth))
        else:
            scores = {name: value / unit for name, value in assessment.scores.items()}
            reward = rules.report_reward(scores[rubric.base], rubric.weights, scores)
            after.append(replace(report, scoring=sample, assessment=assessment, depth=depth, reward=reward))
    return after


# -------------------------------------------------------------------------------------------------------- meta-harness
def probe(step: Step[ScoreSection]) -> Refresh | None:
    """Before the first step, with the driver "endpoint": a failed refresh if the endpoint is down; otherwise None.

    The user is told, and the run starts with the card's harness.
    """
    if step.number > 0 or step.card.harness.driver != "endpoint":
        return None
    problem = step.tools.probe(HARNESS)
    if not problem:
        return None
    step.tell(f"{problem.rstrip('.')}; the run starts with the meta-harness of the card.")
    return Refresh(0, problem=problem)


def refresh(step: Step[ScoreSection], before: Harness, records: Sequence[Statistics]) -> Refresh:
    """Harness.Generate: M_t, from the statistics since the last refresh; by rules, an external model, or a file.

    A failure never ends the run: the harness in force stays, the user is told, and the failure is counted.
    """
    at = step.number + 1
    reply = None
    try:
        match step.card.harness.driver:
            case "endpoint":
                reply = ask_for_harness(step, before, records)
                after = meta_harness.parse(step.cfg, reply.text)
            case "replay":
                after = meta_harness.replay(step.cfg, before, at)
            case _:
                after = meta_harness.by_rules(step.cfg, before, records)
    except HarnessError as error:
        since = step.memory["harness"]["since"]
        start = f"step {since}" if since else "the start"
        step.tell(f"step {at}: no new meta-harness: {str(error).rstrip('.')}; the one in force since {start} stays.")
        return Refresh(at, problem=str(error), reply=reply)
    return Refresh(at, None if after == before else after, reply=reply)


def ask_for_harness(step: Step[ScoreSection], before: Harness, records: Sequence[Statistics]) -> Reply:
    """The external model's reply; raises HarnessError if there is none."""
    try:
        (reply,) = step.tools.judge([messages.for_harness(step.cfg, before, records)], by=HARNESS)
    except JudgeError as error:
        raise HarnessError(f"no reply: {error}") from None
    if reply.refused:
        raise HarnessError(f"the request was refused: {reply.refused}")
    if reply.cut:
        raise HarnessError(f"the reply was cut: {reply.cut}")
    return Reply(reply.text[: meta_harness.LARGEST + 1])
