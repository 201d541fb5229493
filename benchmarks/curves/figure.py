"""The figure and the table of docs/one_curve.md: means over seeds with standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from benchmarks.curves import task

matplotlib.use("Agg")
from matplotlib import pyplot

Curves = Mapping[str, Mapping[str, Mapping[str, Any]]]  # name of a curve → seed → its run
COLOURS = {
    "scope-jax": "#2f7ed8",
    "TRL": "#e07b1a",
    "TRL, our completions": "#b3261e",
    "Tunix": "#2a9d5c",
    "Tunix, one key": "#a05fc4",
}
INK = "#808080"  # readable on white and on dark pages
WINDOW = 5  # steps whose rewards are averaged


def ordered(curves: Curves) -> list[tuple[str, Mapping[str, Mapping[str, Any]]]]:
    """The curves that have runs, ours first."""
    return [(name, curves[name]) for name in COLOURS if curves.get(name)]


def means(runs: Mapping[str, Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard error) over seeds, in percent: of every exam, or of the rewards of every WINDOW steps."""
    values = 100 * np.array([run[name] for run in runs.values()])
    if name != "exam":
        values = values.reshape(len(values), -1, WINDOW).mean(axis=2)
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def draw(curves: Curves, path: Path) -> None:
    """Reward and exam by step, a band of one standard error around each mean."""
    style: dict[Any, Any] = {
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context({**style, "svg.fonttype": "none", "svg.hashsalt": "one curve", "font.size": 10}):
        pictures, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
        titles = {
            "reward": f"Reward in training, means of {WINDOW} steps",
            "exam": "Held-out sums answered right, greedily",
        }
        for axis, (name, title) in zip(axes, titles.items(), strict=True):
            steps = np.arange(0, task.STEPS + 1, task.EVERY)
            if name != "exam":
                steps = np.arange(0, task.STEPS, WINDOW) + (WINDOW + 1) / 2
            for curve, runs in ordered(curves):
                mean, error = means(runs, name)
                axis.plot(steps, mean, color=COLOURS[curve], label=curve, linestyle="--" if "," in curve else "-")
                axis.fill_between(steps, mean - error, mean + error, color=COLOURS[curve], alpha=0.25, linewidth=0)
            axis.set(title=title, xlabel="step", xlim=(0, task.STEPS))
            axis.grid(color=INK, alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("%")
        axes[1].legend(frameon=False, loc="lower right", labelcolor=INK)
        pictures.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(pictures)


def table(curves: Curves) -> str:
    """Markdown: the last exam, mean ± standard error; of each peer its difference from ours, and the largest one of all
    steps in standard errors of it."""
    lines = [
        "| system | seeds | exam at the end, % | difference from scope-jax | largest difference, in standard errors |",
        "|---|---|---|---|---|",
    ]
    for curve, runs in ordered(curves):
        mean, error = means(runs, "exam")
        cells = ["–", "–"]
        if curve != "scope-jax":
            pairs = differences(runs, curves["scope-jax"])
            last, last_error = pairs[-1]
            largest = max(abs(difference) / spread for difference, spread in pairs)
            cells = [f"{last:+.1f} ± {last_error:.1f}", f"{largest:.1f} (of {len(pairs)} differences)"]
        lines.append(f"| {curve} | {len(runs)} | {mean[-1]:.1f} ± {error[-1]:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(
    runs: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Mapping[str, Any]]
) -> list[tuple[float, float]]:
    """(difference of the means, its standard error) of each window of rewards, then of each exam but the first, which
    is of the same weights."""
    pairs: list[tuple[float, float]] = []
    for name, first in (("reward", 0), ("exam", 1)):
        (mean, error), (our_mean, our_error) = means(runs, name), means(ours, name)
        pairs += zip((mean - our_mean)[first:], np.hypot(error, our_error)[first:], strict=True)
    return pairs
