"""T_t: the training statistics that the meta-harness is refreshed from, one plain record for each step since then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from scope_jax.config import Config
from scope_jax.play.rewards import mean
from scope_jax.systems.score.records import Draft, Report

Record = dict[str, Any]


def shares(cfg: Config, report: Report) -> tuple[float, list[float]]:
    """(the base score, the scores of the other dimensions) of an assessed report, as shares of the most points."""
    assert report.assessment is not None
    scores = {name: value / cfg.score.max_score for name, value in report.assessment.scores.items()}
    return scores[report.rubric.base], [scores[name] for name in report.rubric.weights]


def spread(cfg: Config, reports: Sequence[Report]) -> float | None:
    """Mean over queries of the standard deviation of the base scores of their assessed reports; None without two."""
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
    """One step; a mean over nothing is None."""
    assessed = [report for report in reports if report.assessment is not None]
    given = [shares(cfg, report) for report in assessed]
    cited = [report.assessment.citations for report in assessed if report.assessment and report.assessment.citations]
    total = sum(sum(counts.values()) for counts in cited)
    used = Counter(name for report in reports for name in report.rubric.dimensions)
    return {
        "step": step,
        "reward": _mean([report.reward for report in reports]),
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
    """The mean of a number over the records that have it."""
    return _mean([record[name] for record in records if record[name] is not None])
