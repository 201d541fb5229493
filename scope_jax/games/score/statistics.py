"""T_t: the training statistics for the meta-harness, one record of plain data for each step since its last refresh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from scope_jax.config import Config
from scope_jax.games.score.options import options
from scope_jax.games.score.records import Draft, Report
from scope_jax.play.rewards import mean

Record = dict[str, Any]


def shares(cfg: Config, report: Report) -> tuple[float, list[float]]:
    """(the base score, the scores of the other dimensions) of an assessed report, as shares of `max_score`."""
    assert report.assessment is not None
    scores = {name: value / options(cfg).max_score for name, value in report.assessment.scores.items()}
    return scores[report.rubric.base], [scores[name] for name in report.rubric.weights]


def counts(cfg: Config, report: Report) -> bool:
    """Whether a report has a reward. Without a valid assessment it has one if there is no report or the assessment is
    too shallow (Algorithm 1 l.23): 0. If the assessment is invalid, `score.malformed` decides (Figure 2)."""
    return (
        report.assessment is not None or report.reason in ("no_report", "shallow") or options(cfg).malformed == "zero"
    )


def spread(cfg: Config, reports: Sequence[Report]) -> float | None:
    """Mean over queries of the standard deviation of their assessed reports' base scores; None if no query has two."""
    groups: dict[int, list[float]] = {}
    for report in reports:
        if report.assessment is not None:
            groups.setdefault(report.place, []).append(shares(cfg, report)[0])
    return _mean([float(np.std(group)) for group in groups.values() if len(group) > 1])


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def record(
    cfg: Config, step: int, drafts: Sequence[Draft], reports: Sequence[Report], consistency: Sequence[float]
) -> Record:
    """The statistics of one step; a mean of no values is None."""
    assessed = [report for report in reports if report.assessment is not None]
    given = [shares(cfg, report) for report in assessed]
    cited = [report.assessment.citations for report in assessed if report.assessment and report.assessment.citations]
    total = sum(sum(counts.values()) for counts in cited)
    used = Counter(name for report in reports for name in report.rubric.dimensions)
    return {
        "step": step,
        "reward": _mean([report.reward for report in reports if counts(cfg, report)]),
        "base_score": _mean([base for base, _ in given]),
        "dimension_score": _mean([value for _, others in given for value in others]),
        "spread": spread(cfg, reports),
        "assessed": len(assessed) / len(reports),
        "depth": _mean([float(report.depth) for report in assessed]),
        "consistency": _mean(consistency),
        "valid_rubrics": _mean([float(not draft.reason) for draft in drafts]),
        "citations_supported": sum(counts["supported"] for counts in cited) / total if total else None,
        "dimensions": dict(used),
    }


def recent(records: Sequence[Record], name: str) -> float | None:
    """Mean of a statistic over the records in which it is not None."""
    return _mean([record[name] for record in records if record[name] is not None])
