"""What a step of SCORE and its memory hold: rubrics, reports, assessments; the scheduler's counts; statistics.

The memory is {"scheduler", "harness", "statistics"}, see `update_stats`, `meta_harness.initial_state` and
`step_statistics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scope_jax.games.score.meta_harness import Harness, Refresh
from scope_jax.games.score.options import ScoreSchedulerSection, ScoreSection
from scope_jax.grading.rewards import mean
from scope_jax.play.rollouts import Rollout
from scope_jax.play.samples import Sample

Statistics = dict[str, Any]  # of one step, see `step_statistics`


@dataclass(frozen=True)
class Rubric:
    """(H, w)."""

    base: str
    """The base dimension, which has no weight."""
    weights: Mapping[str, float]
    """The weights of the other dimensions, in order."""

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The base first."""
        return (self.base, *self.weights)

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {"base": self.base, "weights": dict(self.weights)}


@dataclass(frozen=True)
class RubricDraft:
    """The evaluator's call for a rubric."""

    queries: tuple[int, ...]
    """The queries, by index in the batch, whose reports are judged by it."""
    sample: Sample
    """What was sampled."""
    rubric: Rubric
    """The rubric in use, which is not the evaluator's if the reply was malformed."""
    reason: str
    """Why the reply was malformed, "" if it was not."""
    consistency: float = 0.0
    """R_eval, the mean of C_i over its queries, once it is known."""

    @property
    def reward(self) -> float:
        """R_e: R_eval, 0 for a malformed rubric."""
        return 0.0 if self.reason else self.consistency


@dataclass(frozen=True)
class Query:
    """A question of the batch, q_i, with the rubric that its reports are judged by."""

    index: int
    """In the batch."""
    question: str
    """What a report is wanted on."""
    rubric: Rubric
    """(H, w)."""


@dataclass(frozen=True)
class Assessment:
    """The evaluator's assessment of one report."""

    scores: Mapping[str, float]
    """Points by dimension."""
    verification: str = ""
    """What was verified."""
    gap_analysis: str = ""
    """What the report lacks."""
    citations: Mapping[str, int] | None = None
    """Number of citations by verdict; None: not checked."""


@dataclass(frozen=True)
class Report:
    """One rollout of the solver, y_i^k."""

    index: int
    """In the step."""
    query: Query
    """What it reports on."""
    sample: Sample
    """The whole rollout."""
    text: str | None
    """The report, None if there is none."""
    conclusion: str | None
    """The part that is compared with other reports."""
    scoring: Sample | None = None
    """The evaluator's rollout that assesses it, perhaps with other reports of its query; None before, and without a
    report."""
    nudged: bool = False
    """The evaluator was asked twice, as its first rollout had no valid assessment."""
    assessment: Assessment | None = None
    """None if there is no valid one."""
    reason: str = ""
    """Why there is no valid assessment."""
    depth: int = 0
    """Number of searches of its assessment."""
    reward: float = 0.0
    """R_s."""


@dataclass(frozen=True)
class QueryPlayed:
    """What was sampled about a query."""

    draft: RubricDraft | None
    """Its rubric; None if it is that of all queries."""
    reports: Sequence[Report]
    """Assessed."""


@dataclass(frozen=True)
class ScoringRequest:
    """What the evaluator is asked: to assess reports on one query."""

    reports: tuple[Report, ...]
    """Not yet assessed."""
    rollout: Rollout
    """The scoring prompt with their texts."""


@dataclass(frozen=True)
class Constraints:
    """What the scheduler asks of a rubric: (R_t, A_t) and hints."""

    required: tuple[str, ...] = ()
    """Dimensions that it should have."""
    avoided: tuple[str, ...] = ()
    """Dimensions that it should not have."""
    hints: tuple[str, ...] = ()
    """Dimensions to explore."""


@dataclass(frozen=True)
class RubricUse:
    """That a rubric was used in a step."""

    dimensions: tuple[str, ...]
    """Its dimensions."""
    consistency: float
    """How consistent the reports under it were."""


@dataclass(frozen=True)
class ScoreOutcome:
    """What happened in a step, from which the memory after it follows."""

    uses: tuple[RubricUse, ...]
    """The rubrics of the evaluator's calls."""
    statistics: Statistics
    """Of the step."""
    probe: Refresh | None
    """Before the first step, if the model that writes harnesses cannot be reached."""
    refresh: Refresh | None
    """The attempt to refresh the meta-harness, every M steps."""

    @property
    def refreshes(self) -> list[Refresh]:
        """Both, as far as they happened."""
        return [refresh for refresh in (self.probe, self.refresh) if refresh is not None]


def by_query(reports: Sequence[Report]) -> list[list[Report]]:
    """The reports of each query."""
    groups: dict[int, list[Report]] = {}
    for report in reports:
        groups.setdefault(report.query.index, []).append(report)
    return list(groups.values())


def with_consistency(drafts: Sequence[RubricDraft], consistency: Sequence[float]) -> list[RubricDraft]:
    """The rubric calls with R_eval, from C_i by query (Algorithm 2 l.8)."""
    return [replace(draft, consistency=mean([consistency[i] for i in draft.queries])) for draft in drafts]


# ----------------------------------------------------------------------------------------------------------- scheduler
# The paper names the scheduler's calls (Algorithm 1 l.8, l.34) but not what they do.
def get_constraints(card: ScoreSchedulerSection, scheduler: Mapping[str, Any], harness: Harness) -> Constraints:
    """(R_t, A_t) and hints, from the pool in force; a rubric of k dimensions can always meet them."""
    limits = harness.dimension_constraints
    pool = harness.dimension_pool
    used = scheduler["dimensions"]
    free = [name for name in pool if name not in limits.must_include]
    uses = {name: used[name]["uses"] if name in used else 0 for name in free}
    last = {name: used[name]["last"] if name in used else 0 for name in free}

    def inconsistent(name: str) -> bool:
        return uses[name] >= card.min_uses and used[name]["consistency"] < scheduler["mean"] - card.margin

    worst = sorted(filter(inconsistent, free), key=lambda name: used[name]["consistency"])
    avoided = worst[: min(card.avoided, len(pool) - limits.k)]
    left = [name for name in free if name not in avoided]
    # sorted() is stable: where two are equal the order of the pool decides
    stale = [n for n in sorted(left, key=last.__getitem__) if scheduler["step"] - last[n] >= card.patience]
    required = stale[: min(card.required, limits.k - len(limits.must_include))]
    rare = sorted((name for name in left if name not in required), key=uses.__getitem__)
    return Constraints(tuple(required), tuple(avoided), tuple(rare[: card.hints]))


def update_stats(
    card: ScoreSchedulerSection, scheduler: Mapping[str, Any], uses: Sequence[RubricUse]
) -> dict[str, Any]:
    """The scheduler's part of the memory after a step in which these rubrics were used.

    {"step", "mean", "dimensions": {name: {"uses", "last", "consistency"}}}. `last` is the number of steps played when
    the dimension was last used; `mean` and `consistency` are moving averages with decay `score.scheduler.decay`.
    """
    step = scheduler["step"] + 1
    average = scheduler["mean"]
    dimensions = {name: dict(values) for name, values in scheduler["dimensions"].items()}
    for use in uses:
        average = _moving_average(average, use.consistency, card.decay)
        for name in use.dimensions:
            before = dimensions.get(name, {"uses": 0, "consistency": None})
            consistency = _moving_average(before["consistency"], use.consistency, card.decay)
            dimensions[name] = {"uses": before["uses"] + 1, "last": step, "consistency": consistency}
    return {"step": step, "mean": average, "dimensions": dimensions}


def _moving_average(average: float | None, value: float, decay: float) -> float:
    """The moving average after one more value; it starts with the first."""
    return value if average is None else decay * average + (1 - decay) * value


# ---------------------------------------------------------------------------------------------------------- statistics
def score_shares(report: Report, max_score: int) -> tuple[float, list[float]]:
    """(the base score, the scores of the other dimensions) of an assessed report, as shares of `max_score`."""
    assert report.assessment is not None
    scores = {name: value / max_score for name, value in report.assessment.scores.items()}
    rubric = report.query.rubric
    return scores[rubric.base], [scores[name] for name in rubric.weights]


def has_reward(card: ScoreSection, report: Report) -> bool:
    """Whether a report has a reward. Without a valid assessment it has one if there is no report or the assessment is
    too shallow (Algorithm 1 l.23): 0. If the assessment is invalid, `score.malformed` decides (Figure 2)."""
    return report.assessment is not None or report.reason in ("no_report", "shallow") or card.malformed == "zero"


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def step_statistics(
    card: ScoreSection,
    number: int,
    drafts: Sequence[RubricDraft],
    reports: Sequence[Report],
    consistency: Sequence[float],
) -> Statistics:
    """What T_t, the training statistics for the meta-harness, holds of one step; a mean of no values is None.

    spread: mean over queries of the standard deviation of their assessed reports' base scores.
    """
    groups = [[report for report in group if report.assessment is not None] for group in by_query(reports)]
    assessed = [report for group in groups for report in group]
    scores = [score_shares(report, card.max_score) for report in assessed]
    bases = [[score_shares(report, card.max_score)[0] for report in group] for group in groups]
    cited = [report.assessment.citations for report in assessed if report.assessment and report.assessment.citations]
    total = sum(sum(counts.values()) for counts in cited)
    return {
        "step": number,
        "reward": _mean([report.reward for report in reports if has_reward(card, report)]),
        "base_score": _mean([base for base, _ in scores]),
        "dimension_score": _mean([value for _, others in scores for value in others]),
        "spread": _mean([float(np.std(group)) for group in bases if len(group) > 1]),
        "assessed": len(assessed) / len(reports),
        "depth": _mean([float(report.depth) for report in assessed]),
        "consistency": _mean(consistency),
        "valid_rubrics": _mean([float(not draft.reason) for draft in drafts]),
        "citations_supported": sum(counts["supported"] for counts in cited) / total if total else None,
        "dimensions": dict(Counter(name for report in reports for name in report.query.rubric.dimensions)),
    }
