"""The recorded runs of the real model as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.real_model.bootstrap import Scores, estimate

HEADS = ("runs", "exam", "rows", "seeds", "before", "after", "difference [95 %]")

Run = Mapping[str, Any]


def scores(runs: Mapping[str, Run], exam: str, place: int) -> Scores:
    """The scores of one exam of each seed. place: 0 for the first exam of a run, -1 for the last."""
    by_seed = []
    for run in runs.values():
        steps = sorted(run["exams"][exam], key=int)
        by_seed.append(run["exams"][exam][steps[place]])
    return np.asarray(by_seed)


def row(task: str, runs: Mapping[str, Run], exam: str) -> list[str]:
    """The cells of one exam: means with the errors of `bootstrap` over rows and seeds, in per cent, or in points of a
    game."""
    accuracy = next(iter(runs.values()))["measure"] == "accuracy"
    scale, digits, unit = (100, 1, " %") if accuracy else (1, 2, "")
    before, after = (scale * scores(runs, exam, place) for place in (0, -1))
    change = estimate(after - before)
    means = [f"{one.mean:.{digits}f} ± {one.error:.{digits}f}{unit}" for one in (estimate(before), estimate(after))]
    difference = f"{change.mean:+.{digits}f} ± {change.error:.{digits}f}"
    interval = f"[{change.low:.{digits}f}, {change.high:.{digits}f}]"
    return [task, exam, str(before.shape[1]), ", ".join(runs), *means, f"{difference} {interval}"]


def page(results: Mapping[str, Mapping[str, Run]]) -> str:
    """The table of all exams, and which code ran. results: runs by task and seed."""
    lines = [HEADS, ["---"] * len(HEADS)]
    for task, runs in results.items():
        exams = next(iter(runs.values()))["exams"]
        lines += [row(task, runs, exam) for exam in exams]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    code = [f"{task} {', '.join(sorted({run['code'] for run in runs.values()}))}" for task, runs in results.items()]
    return f"{table}\n\nCode: {'; '.join(code)}."
