"""Plots the curves of a run from its metrics file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from scope_jax.config import Config, load_card
from scope_jax.errors import writing
from scope_jax.run.metrics import read_lines

# Okabe and Ito's colour-blind-safe palette, darkest first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
INK, FAINT = "#333333", "#D9D9D9"


@dataclass(frozen=True)
class Panel:
    """One chart of the metrics with these names; a name that begins with a slash is a suffix. share: values in 0..1.

    of_exams: matches evaluation metrics only; otherwise training metrics only. log: logarithmic scale.
    """

    title: str
    names: tuple[str, ...]
    share: bool
    of_exams: bool = False
    log: bool = False


PANELS: dict[str, tuple[Panel, ...]] = {  # by game; the first panel shows the measure of its exams
    "ssp": (
        Panel("Held-out accuracy", ("/accuracy",), True, of_exams=True),
        Panel("Mean reward", ("/reward",), False),
        Panel("Valid questions", ("/valid",), True),
        Panel("Searches per episode", ("/searches",), False),
        Panel("Gradient norm before the clip", ("/grad_norm",), False, log=True),
    ),
    "scope": (
        Panel("Held-out rubric score", ("/score",), True, of_exams=True),
        Panel(
            "Mean rubric score of tasks",
            ("estimate/task_score", "creation/solver/task_score", "solver/task_score"),
            True,
        ),
        Panel("Mean reward", ("challenger/reward", "solver/reward"), False),
        Panel("Searches per rollout", ("challenger/searches", "solver/searches"), False),
        Panel("Drafts: gates passed, accepted, kept", ("gates/passed", "challenger/valid", "tasks/yield"), True),
        Panel("Tokens of an answer", ("estimate/answer_tokens", "solver/answer_tokens"), False),
        Panel("Gradient norm before the clip", ("challenger/grad_norm", "solver/grad_norm"), False, log=True),
    ),
    "spice": (
        Panel("Held-out accuracy", ("/accuracy",), True, of_exams=True),
        Panel("Pass rate of tasks", ("challenger/pass_rate", "reasoner/reward"), True),
        Panel("Challenger's reward", ("challenger/reward",), False),
        Panel("Valid attempts, documents with a task", ("challenger/valid", "challenger/documents"), True),
        Panel("Attempts at a document", ("challenger/attempts",), False),
        Panel("Gradient norm before the clip", ("/grad_norm",), False, log=True),
    ),
}

OWN_GAME = (  # for a game defined in a file
    Panel("Held-out accuracy", ("/accuracy",), True, of_exams=True),
    Panel("Mean reward", ("/reward",), False),
    Panel("Gradient norm before the clip", ("/grad_norm",), False, log=True),
)


def panels_of(cfg: Config) -> tuple[Panel, ...]:
    """The panels for a run with this card."""
    return PANELS.get(cfg.system, OWN_GAME)


def _short(name: str, panel: Panel) -> str | None:
    """The label of a metric in the panel's legend; None if it is not in the panel."""
    if name.startswith("eval/") != panel.of_exams:
        return None
    for wanted in panel.names:
        if wanted.startswith("/") and name.endswith(wanted):
            return name.removesuffix(wanted).removeprefix("eval/")
        if name == wanted:
            alike = len({other.rpartition("/")[2] for other in panel.names}) == 1
            return name.rpartition("/")[0] if alike else name
    return None


def series(lines: Sequence[dict[str, Any]], panel: Panel) -> dict[str, tuple[list[int], list[float]]]:
    """(steps, values) of each metric in the panel, by its label; missing values are left out."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for line in lines:
        for name, value in line.items():
            short = _short(name, panel)
            if short is None or value is None:
                continue
            steps, values = found.setdefault(short, ([], []))
            steps.append(line["step"])
            values.append(value)
    return found


def smooth(values: Sequence[float], window: int) -> np.ndarray:
    """Moving average over the last `window` values (fewer at the beginning)."""
    sums = np.cumsum(np.concatenate([[0.0], np.asarray(values, float)]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _colours(lines: Sequence[dict[str, Any]], panels: Sequence[Panel]) -> dict[str, str]:
    """One colour per label, the same in every panel."""
    names: list[str] = []
    for panel in panels:
        names += [name for name in sorted(series(lines, panel)) if name not in names]
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def _draw(axes: Axes, panel: Panel, lines: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    axes.set_title(panel.title, loc="left", fontsize=11, color=INK, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlim(-0.02 * max(lines[-1]["step"], 1), 1.02 * max(lines[-1]["step"], 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.share:
        axes.set_ylim(-0.03, 1.03)
    found = series(lines, panel)
    if not found:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=INK, fontsize=9)
        return
    for name, (steps, values) in sorted(found.items()):
        colour, window = colours[name], max(1, len(values) // 10)
        if panel.of_exams or window == 1:
            axes.plot(steps, values, color=colour, linewidth=1.8, marker="o", markersize=4, label=name)
        else:
            axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.3)
            axes.plot(
                steps, smooth(values, window), color=colour, linewidth=2, label=f"{name} (mean of {window} steps)"
            )
    if panel.log:
        axes.set_yscale("log")
    elif not panel.share:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="best")


def draw_curves(run: Path) -> Path:
    """Draws the game's panels into `report/curves.png` in the run folder, and returns its path.

    Raises FileNotFoundError for a run without metrics.
    """
    lines = read_lines(run / "metrics.jsonl")
    if not lines:
        raise FileNotFoundError(f"{run} has no metrics.jsonl with a finished step; give a run folder.")
    panels = panels_of(load_card(run / "config.toml"))
    rows = -(-len(panels) // 2)
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "svg.fonttype": "none"}):
        figure = Figure(
            figsize=(10, 3.1 * rows), layout=ConstrainedLayoutEngine(h_pad=0.09, w_pad=0.06), facecolor="white"
        )
        FigureCanvasAgg(figure)
        places = list(figure.subplots(rows, 2).flat)
        for axes, panel in zip(places, panels, strict=False):
            _draw(axes, panel, lines, _colours(lines, panels))
        for axes in places[len(panels) :]:
            axes.remove()
        figure.supxlabel("training step", fontsize=10, color=INK)
        picture = run / "report" / "curves.png"
        picture.parent.mkdir(exist_ok=True)
        partial = picture.with_name("curves.partial.png")
        with writing(picture):
            figure.savefig(partial, dpi=150)
    os.replace(partial, picture)
    return picture
