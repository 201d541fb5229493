"""Plots the metrics of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from scope_jax.errors import writing
from scope_jax.report.panels import Panel, series

# Okabe and Ito's colour-blind-safe palette, darkest first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
INK, FAINT = "#333333", "#D9D9D9"


def smooth(values: Sequence[float], window: int) -> np.ndarray:
    """Moving average over the last `window` values (fewer at the beginning)."""
    sums = np.cumsum(np.concatenate([[0.0], np.asarray(values, float)]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _colours(lines: Sequence[dict[str, Any]], panels: Sequence[Panel]) -> dict[str, str]:
    """One colour per label, the same in every panel; labels share a colour only if no panel shows both."""
    shown = [sorted(series(lines, panel)) for panel in panels]
    colours: dict[str, str] = {}
    for name in dict.fromkeys(name for names in shown for name in names):
        beside = {colours.get(other) for names in shown if name in names for other in names}
        free = [colour for colour in COLOURS if colour not in beside] or COLOURS
        colours[name] = min(free, key=lambda colour: list(colours.values()).count(colour))
    return colours


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


def draw(lines: Sequence[dict[str, Any]], panels: Sequence[Panel], picture: Path, columns: int = 2) -> None:
    """Writes a picture of the panels in rows of `columns`. lines: the records of metrics.jsonl, at least one."""
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "svg.fonttype": "none"}):
        figure = Figure(
            figsize=(10, 3.1 * rows), layout=ConstrainedLayoutEngine(h_pad=0.09, w_pad=0.06), facecolor="white"
        )
        FigureCanvasAgg(figure)
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(places, panels, strict=False):
            _draw(axes, panel, lines, _colours(lines, panels))
        for axes in places[len(panels) :]:
            axes.remove()
        figure.supxlabel("training step", fontsize=10, color=INK)
        picture.parent.mkdir(exist_ok=True)
        partial = picture.with_name(f"{picture.stem}.partial.png")
        with writing(picture):
            figure.savefig(partial, dpi=150)
    os.replace(partial, picture)
