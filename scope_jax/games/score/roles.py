"""What SCORE's roles do (section 3.4): rubrics, reports, assessments of the reports, new meta-harnesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_jax.config import Config, SamplingSection
from scope_jax.games.score import messages, meta_harness, rules
from scope_jax.games.score.meta_harness import Harness, HarnessError
from scope_jax.games.score.options import ScoreRole, options
from scope_jax.games.score.state import Constraints, Refresh, Report, Review, Rubric, RubricDraft, Statistics
from scope_jax.learner.types import Reply
from scope_jax.play import searching
from scope_jax.play.game import ACTOR
from scope_jax.play.judge_client import JudgeError
from scope_jax.play.tools import BASE, Agent, Rollout, Tools
from scope_jax.retrieval.rows import Row
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects, parsing

REPORT, ASSESSMENT = "answer", "report_evaluations"  # final tags of the episodes with searches
MODEL = "harness"  # name of the external model, and of the records for the report


def policy_of(cfg: Config, role: ScoreRole) -> str:
    """The policy of a role: the shared actor, a policy of its own, or the base if that would not be trained."""
    if options(cfg).policies == "shared":
        return ACTOR
    return role if role in options(cfg).train else BASE


def searches_run(cfg: Config, completion: Completion) -> int:
    """Number of searches of an episode that were run. A list of queries in one search, which Listing 4 forbids, is run
    but counts as one."""
    dialect = dialects.load(cfg.model.dialect)
    texts = searching.answered_contents(completion)
    return sum(one.query is not None for text in texts for one in searching.searches(text, dialect))


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
    fixed, limits, pool = fixed_rubric(cfg), harness.dimension_constraints, harness.dimension_pool
    if harness == meta_harness.default(cfg):
        return fixed
    order = dict.fromkeys((*limits.must_include, *fixed.weights, *pool))
    names = [name for name in order if name in pool and name != harness.base][: limits.k - 1]
    weights = {name: fixed.weights.get(name, limits.weight_min) for name in names}
    return Rubric(
        harness.base, {name: min(max(w, limits.weight_min), limits.weight_max) for name, w in weights.items()}
    )


def sample_rubrics(
    cfg: Config, tools: Tools, harness: Harness, constraints: Constraints, queries: Sequence[Row]
) -> tuple[list[RubricDraft], list[Rubric]]:
    """(H_t, w_t) ~ π_e: (the rubric calls, one for the step or one per query; the rubric of each query)."""
    card = options(cfg)
    if card.rubric == "fixed":
        return [], [fixed_rubric(cfg)] * len(queries)
    about: dict[tuple[int, ...], str | None] = {tuple(range(len(queries))): None}  # by the indices of the queries
    if card.rubric_scope == "query":
        about = {(i,): query["question"] for i, query in enumerate(queries)}
    rollouts = {
        indices: Rollout(f"{indices[0]}", messages.for_rubric(cfg, harness, constraints, query))
        for indices, query in about.items()
    }
    agent = _evaluator(cfg, card.evaluator.sampling, stop=("</dimensions>",))
    groups = tools.play("rubric", list(rollouts.values()), agent)
    drafts = []
    for (indices, rollout), (completion,) in zip(rollouts.items(), groups, strict=True):
        rubric, reason = None, "prompt_too_long"
        if completion.turns:
            text = searching.contents(completion)[-1]
            rubric, reason = rules.rubric_of(text, harness, constraints if card.scheduler.enforce else None)
        rubric = rubric or substitute(cfg, harness)
        drafts.append(RubricDraft(indices, rollout.messages, completion, rubric, reason))
    return drafts, [draft.rubric for draft in drafts for _ in draft.queries]


def _evaluator(cfg: Config, sampling: SamplingSection, **fields: Any) -> Agent:
    """The evaluator with one of its sampling tables. fields: those of `Agent`."""
    card = options(cfg).evaluator
    limits = {"max_prompt_tokens": card.max_prompt_tokens, "tempered": card.loss.tempered}
    return Agent(policy_of(cfg, "evaluator"), sampling, **limits, **fields)


# -------------------------------------------------------------------------------------------------------------- solver
def write_reports(cfg: Config, tools: Tools, queries: Sequence[Row], rubrics: Sequence[Rubric]) -> list[Report]:
    """y_i^k ~ π_s(· | q_i, H, w), k = 1…K, not yet assessed; the reports of a query are adjacent."""
    card = options(cfg).solver
    rollouts = [
        Rollout(f"{i}", messages.for_solver(cfg, query["question"], rubrics[i])) for i, query in enumerate(queries)
    ]
    agent = Agent.of_role(card, policy_of(cfg, "solver"), **searching.until(REPORT))
    reports = []
    for i, group in enumerate(tools.play("solver", rollouts, agent, card.samples)):
        for completion in group:
            text = report_of(completion)
            conclusion = None if text is None else rules.conclusion_of(text, options(cfg).conclusion)
            reason = "no_report" if text is None else ""
            reports.append(Report(i, rollouts[i].messages, completion, rubrics[i], text, conclusion, reason=reason))
    return reports


def report_of(completion: Completion) -> str | None:
    """The report: content of the last closed `<answer>`; None without one or when it is empty."""
    return parsing.last(searching.contents(completion), REPORT) or None


# ---------------------------------------------------------------------------------------------- evaluator: assessments
def assess(
    cfg: Config, tools: Tools, harness: Harness, queries: Sequence[Row], reports: Sequence[Report]
) -> tuple[list[Report], list[Review]]:
    """(the reports with their assessments, or with the reason why one has none; the evaluator's conversations).

    A conversation is about `score.reports_per_call` reports of one query. One without a valid assessment of each of
    them is held once more, with a nudge in its prompt, and counts if its reports are assessed then.
    """
    rollouts = {}  # by the indices of their reports
    for i, query in enumerate(queries):
        written = [index for index, report in enumerate(reports) if report.query == i and report.text is not None]
        for at in range(0, len(written), options(cfg).reports_per_call):
            indices = tuple(written[at : at + options(cfg).reports_per_call])
            texts = [reports[index].text or "" for index in indices]
            prompt = messages.for_scoring(cfg, harness, query["question"], reports[indices[0]].rubric, texts)
            rollouts[indices] = Rollout(f"{i} report {indices[0]}", prompt)
    reviews = _review(cfg, tools, harness, rollouts, reports)
    if invalid := [indices for indices, review in reviews.items() if review.reasons & rules.INVALID]:
        nudge = messages.nudge(cfg)
        again = {}
        for indices in invalid:
            first = rollouts[indices]
            prompt = replace(first.messages, user=f"{first.messages.user}\n\n{nudge}")
            again[indices] = Rollout(f"{first.name} again", prompt)
        for indices, second in _review(cfg, tools, harness, again, reports).items():
            fails = second.reasons & {*rules.INVALID, "assessment_too_long"}
            reviews[indices] = replace(reviews[indices] if fails else second, nudged=True)
    assessed = {index: report for review in reviews.values() for index, report in review.reports.items()}
    return [assessed.get(index, report) for index, report in enumerate(reports)], list(reviews.values())


def _review(
    cfg: Config,
    tools: Tools,
    harness: Harness,
    rollouts: Mapping[tuple[int, ...], Rollout],
    reports: Sequence[Report],
) -> dict[tuple[int, ...], Review]:
    """The evaluator's conversations, by the indices of their reports."""
    agent = _evaluator(
        cfg,
        options(cfg).evaluator.assessment,
        max_turns=options(cfg).evaluator.max_turns,
        **searching.until(ASSESSMENT),
    )
    groups = tools.play("scoring", list(rollouts.values()), agent)
    reviews = {}
    for indices, (completion,) in zip(rollouts, groups, strict=True):
        assessed = _read(cfg, harness, completion, [reports[index] for index in indices])
        reviews[indices] = Review(dict(zip(indices, assessed, strict=True)), completion)
    return reviews


def _read(cfg: Config, harness: Harness, completion: Completion, reports: Sequence[Report]) -> list[Report]:
    """l.22, l.23: the reports of a conversation, each with its assessment and R_s, or with the reason why it has none.

    An assessment may be malformed, and harness and depth gate may reject it.
    """
    if not completion.turns:
        return [replace(report, reason="assessment_too_long") for report in reports]
    card, depth = options(cfg), searches_run(cfg, completion)
    text = searching.contents(completion)[-1]
    assessments = rules.assessments_of(text, len(reports), reports[0].rubric, card.max_score)
    if assessments is None:
        return [replace(report, reason="assessment_malformed", depth=depth) for report in reports]
    unit = card.max_score if card.score_unit == "share" else 1
    assessed = []
    for report, assessment in zip(reports, assessments, strict=True):
        if reason := rules.unmet(assessment, depth, harness, card.min_depth):
            assessed.append(replace(report, reason=reason, depth=depth))
        else:
            scores = {name: value / unit for name, value in assessment.scores.items()}
            reward = rules.report_reward(scores[report.rubric.base], report.rubric.weights, scores)
            assessed.append(replace(report, assessment=assessment, depth=depth, reward=reward))
    return assessed


# -------------------------------------------------------------------------------------------------------- meta-harness
def probe(cfg: Config, tools: Tools, state: Mapping[str, Any], step: int) -> list[Refresh]:
    """Before the first step, with the driver "endpoint": a failed refresh if the endpoint is down; otherwise none.

    The user is told, and the run starts with the card's harness. state: the harness part of the memory.
    """
    if step > 0 or options(cfg).harness.driver != "endpoint":
        return []
    problem = tools.probe(MODEL)
    if not problem:
        return []
    tools.tell(f"{problem.rstrip('.')}; the run starts with the meta-harness of the card.")
    return [_failure(state, 0, problem)]


def refresh(cfg: Config, tools: Tools, state: Mapping[str, Any], records: Sequence[Statistics], step: int) -> Refresh:
    """Harness.Generate: M_t, from the statistics since the last refresh; by rules, an external model, or a file.

    A failure never ends the run: the harness in force stays, the user is told, and the failure is counted.
    """
    before = meta_harness.validate(cfg, state["value"])
    reply = None
    try:
        match options(cfg).harness.driver:
            case "endpoint":
                reply = ask_for_harness(cfg, tools, before, records)
                after = meta_harness.parse(cfg, reply.text)
            case "replay":
                after = meta_harness.replay(cfg, before, step + 1)
            case _:
                after = meta_harness.by_rules(cfg, before, records)
    except HarnessError as error:
        problem, start = str(error), f"step {state['since']}" if state["since"] else "the start"
        tools.tell(
            f"step {step + 1}: no new meta-harness: {problem.rstrip('.')}; the one in force since {start} stays."
        )
        return _failure(state, step + 1, problem, reply)
    new = {**state, "refreshed": state["refreshed"] + 1}
    if after != before:
        new |= {"value": after.plain(), "by": options(cfg).harness.driver, "since": step + 1}
    return Refresh(step + 1, new, "", reply)


def _failure(state: Mapping[str, Any], at: int, problem: str, reply: Reply | None = None) -> Refresh:
    """The harness in force stays, and the failure is counted."""
    return Refresh(at, {**state, "invalid": state["invalid"] + 1}, problem, reply)


def ask_for_harness(cfg: Config, tools: Tools, before: Harness, records: Sequence[Statistics]) -> Reply:
    """The external model's reply; raises HarnessError if there is none."""
    try:
        (reply,) = tools.judge([messages.for_harness(cfg, before, records)], by=MODEL)
    except JudgeError as error:
        raise HarnessError(f"no reply: {error}") from None
    if reply.refused:
        raise HarnessError(f"the request was refused: {reply.refused}")
    if reply.cut:
        raise HarnessError(f"the reply was cut: {reply.cut}")
    return Reply(reply.text[: meta_harness.LARGEST + 1])
