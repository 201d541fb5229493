"""The recorded runs of the real model as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.real_model.bootstrap import Scores, estimate

HEADS = ("runs", "exam", "rows", "seeds", "before, %", "after, %", "difference [95 %]")

Run = Mapping[str, Any]


def scores(runs: Mapping[str, Run], exam: str, place: int) -> Scores:
    """The scores of one exam of each seed. place: 0 for the first exam of a run, -1 for the last."""
    by_seed = []
    for run in runs.values():
        steps = sorted(run["exams"][exam], key=int)
        by_seed.append(run["exams"][exam][steps[place]])
    return np.asarray(by_seed)


def row(task: str, runs: Mapping[str, Run], exam: str) -> list[str]:
    """The cells of one exam: means in per cent, with the errors of `bootstrap` over rows and seeds."""
    before, after = scores(runs, exam, 0), scores(runs, exam, -1)
    change = estimate(after - before)
    means = [f"{100 * one.mean:.1f} ± {100 * one.error:.1f}" for one in (estimate(before), estimate(after))]
    difference = f"{100 * change.mean:+.1f} ± {100 * change.error:.1f}"
    interval = f"[{100 * change.low:.1f}, {100 * change.high:.1f}]"
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
