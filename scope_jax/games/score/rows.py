"""The results of a step of SCORE: episodes and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_jax.config import Config
from scope_jax.games.score import conversation, rules, statistics
from scope_jax.games.score.evaluator import Query
from scope_jax.games.score.harness import Harness
from scope_jax.games.score.options import options
from scope_jax.games.score.records import Call, Draft, Report
from scope_jax.games.score.refreshing import MODEL, Refresh
from scope_jax.learner.types import Datum, Episode, Judgement, Metrics, transcript
from scope_jax.play import searching, settings
from scope_jax.play.collapse import collapse_metrics
from scope_jax.play.rewards import mean, means, shares


# ------------------------------------------------------------------------------------------------------------ episodes
def solver_episodes(
    cfg: Config, queries: Sequence[Query], reports: Sequence[Report], calls: Sequence[Call]
) -> list[Episode]:
    """An episode for each report, with reward R_s; the reports of a query form a group.

    With DPO only the best and the worst report of a group are trained.
    """
    call_of = {i: call for call in calls for i in call.reports}
    made = [_report(cfg, queries[report.place], report, call_of.get(i)) for i, report in enumerate(reports)]
    made = _compared(made)
    return _paired(made) if options(cfg).solver.loss.objective == "dpo" else made


def _compared(episodes: Sequence[Episode]) -> list[Episode]:
    """Without the only episode of a group that is trained, which has nothing to be compared with."""
    counts = Counter(episode.group for episode in episodes if episode.trained)
    return [replace(one, trained=one.trained and counts[one.group] > 1) for one in episodes]


def _paired(episodes: Sequence[Episode]) -> list[Episode]:
    """Of each group only the best and the worst episode are trained, the first ones if tied; none if all are equal."""
    groups: dict[str, list[int]] = {}
    for i, episode in enumerate(episodes):
        if episode.trained:
            groups.setdefault(episode.group, []).append(i)
    chosen: set[int] = set()
    for places in groups.values():
        best = max(places, key=lambda i: episodes[i].reward)
        worst = min(places, key=lambda i: episodes[i].reward)
        chosen |= {best, worst} if episodes[best].reward > episodes[worst].reward else set()
    return [episode if i in chosen else replace(episode, trained=False) for i, episode in enumerate(episodes)]


def _report(cfg: Config, query: Query, report: Report, call: Call | None) -> Episode:
    assessment = report.assessment
    parts: dict[str, float] = {"assessed": float(assessment is not None), "depth": float(report.depth)}
    if assessment is not None:
        parts |= {f"score_{name}": value for name, value in assessment.scores.items()}
    played = bool(report.completion.turns)
    return Episode(
        role="solver",
        policy=conversation.policy_of(cfg, "solver"),
        group=f"solver/{report.place}",
        datums=Datum.from_completion(report.completion),
        reward=report.reward,
        parts=parts,
        trained="solver" in options(cfg).train and played and statistics.counts(cfg, report),
        temperature=options(cfg).solver.sampling.temperature,
        text={
            "prompt": report.prompt.text,
            "turns": transcript(report.completion),
            "question": query["question"],
            "prediction": report.text,
            "conclusion": report.conclusion,
            "rubric": {"base": report.rubric.base, "weights": dict(report.rubric.weights)},
            "rejected": report.reason,
            "citations": None if assessment is None or assessment.citations is None else dict(assessment.citations),
            "assessment": None if call is None else transcript(call.completion),
        },
    )


def evaluator_episodes(cfg: Config, drafts: Sequence[Draft], rewards: Sequence[float], step: int) -> list[Episode]:
    """An episode for each rubric call, with reward R_e, 0 for a malformed rubric.

    Between updates (U > 1) episodes have no tokens to train on: their rewards only move the baseline b_t (Algorithm 2
    l.11).
    """
    updates = (step + 1) % options(cfg).update_every == 0
    learns = "evaluator" in options(cfg).train
    made = []
    for draft, reward in zip(drafts, rewards, strict=True):
        made.append(
            Episode(
                role="evaluator",
                policy=conversation.policy_of(cfg, "evaluator"),
                group=f"evaluator/{draft.name}",
                datums=Datum.from_completion(draft.completion) if updates or not learns else (),
                reward=reward,
                parts={"valid": float(not draft.reason)},
                trained=learns and bool(draft.completion.turns),
                temperature=options(cfg).evaluator.sampling.temperature,
                text={
                    "prompt": draft.prompt.text,
                    "turns": transcript(draft.completion),
                    "rubric": {"base": draft.rubric.base, "weights": dict(draft.rubric.weights)},
                    "rejected": draft.reason,
                },
            )
        )
    return made


def harness_episodes(cfg: Config, state: Mapping[str, Any], refreshes: Sequence[Refresh]) -> list[Episode]:
    """The harness in force in the step, and each attempt to replace it with its outcome, for the report."""
    made = [settings.record(MODEL, state["value"], by=state["by"], since=state["since"])]
    for one in refreshes:
        replies = () if one.reply is None else (Judgement(MODEL, "refresh", (one.reply,), not one.problem),)
        attempt = settings.Attempt(one.at, one.problem, replies)
        value, since = one.state["value"], one.state["since"]
        made.append(settings.record(MODEL, value, by=options(cfg).harness.driver, since=since, attempt=attempt))
    return made


# ------------------------------------------------------------------------------------------------------------- metrics
def evaluator_rewards(cfg: Config, drafts: Sequence[Draft], consistency: Sequence[float]) -> list[float]:
    """R_e of each rubric call: C_i of its query, or the mean over the batch; 0 for a malformed rubric."""
    values = list(consistency) if options(cfg).rubric_scope == "query" else [mean(consistency)] * len(drafts)
    return [0.0 if draft.reason else value for draft, value in zip(drafts, values[: len(drafts)], strict=True)]


def measure(
    cfg: Config,
    drafts: Sequence[Draft],
    reports: Sequence[Report],
    calls: Sequence[Call],
    consistency: Sequence[float],
) -> Metrics:
    """The metrics of a step; a mean of no values is left out."""
    record = statistics.record(cfg, 0, drafts, reports, consistency)
    numbers = {
        "solver/reward": record["reward"],
        "solver/base_score": record["base_score"],
        "solver/dimension_score": record["dimension_score"],
        "solver/score_spread": record["spread"],
        "solver/assessed": record["assessed"],
        "evaluator/depth": record["depth"],
        "evaluator/consistency": record["consistency"],
        "evaluator/valid": record["valid_rubrics"],
        "evaluator/citations_supported": record["citations_supported"],
    }
    values = {"solver/report": [float(report.text is not None) for report in reports]}
    values |= searching.episode_stats(
        "solver",
        [report.completion for report in reports],
        [conversation.searches_run(cfg, report.completion) for report in reports],
    )
    values["scoring/nudged"] = [float(call.nudged) for call in calls]
    scored = [call.completion for call in calls]
    values |= searching.episode_stats(
        "scoring", scored, [conversation.searches_run(cfg, completion) for completion in scored]
    )
    values |= searching.lengths("evaluator", [draft.completion for draft in drafts])
    refused = [report.reason for report in reports]
    found = shares("rejected/", refused, rules.REPORT_REASONS)
    found |= shares("rejected/rubric_", [draft.reason for draft in drafts], rules.RUBRIC_REASONS)
    texts: dict[int, list[str]] = {}
    for report in reports:
        texts.setdefault(report.place, []).extend([] if report.text is None else [report.text])
    found |= {f"solver/{name}": value for name, value in collapse_metrics(list(texts.values())).items()}
    return means(values) | {name: value for name, value in numbers.items() if value is not None} | found


def measure_harness(harness: Harness, state: Mapping[str, Any], after: Mapping[str, Any]) -> Metrics:
    """The harness in force in the step, and how often it was and could not be refreshed up to the end of the step."""
    limits, process = harness.dimension_constraints, harness.process_constraints
    return {
        "harness/dimensions": float(limits.k),
        "harness/min_tool_calls": float(process.min_number_of_tool_call),
        "harness/since": float(state["since"]),
        "harness/refreshed": float(after["refreshed"]),
        "harness/invalid": float(after["invalid"]),
    }
