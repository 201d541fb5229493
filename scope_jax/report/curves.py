"""Plots the metrics of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from scope_jax.files import replaced
from scope_jax.report.panels import Panel, series, with_errors

# Okabe and Ito's colour-blind-safe palette, darkest first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES: tuple[Any, ...] = ("solid", "dashed", "dotted", "dashdot", (0, (1, 3)), (0, (5, 1, 1, 1, 1, 1)))
INK, FAINT = "#333333", "#D9D9D9"
BELOW = 18  # points from the axis to the legend below its numbers
LEGEND = 64  # characters that a legend has room for in a line, with 7 for each of its curves


def smooth(values: Sequence[float], window: int) -> np.ndarray:
    """Moving average over the last `window` values (fewer at the beginning)."""
    sums = np.cumsum(np.concatenate([[0.0], np.asarray(values, float)]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def smooth_errors(errors: Sequence[float], window: int) -> np.ndarray:
    """The standard errors of `smooth`'s means of independent values; NaN where one of these has none."""
    squares, known = np.square(np.asarray(errors, float)), np.isfinite(errors)
    counts = np.minimum(np.arange(1, len(errors) + 1), window)
    found = np.sqrt(np.maximum(smooth(np.where(known, squares, 0.0).tolist(), window), 0.0) / counts)
    return np.where(smooth(known.astype(float).tolist(), window) > 1 - 1e-9, found, np.nan)


def _colours(lines: Sequence[dict[str, Any]], panels: Sequence[Panel]) -> dict[str, str]:
    """One colour per label, the same in every panel; labels share a colour only if no panel shows both."""
    shown = [sorted(series(lines, panel)) for panel in panels]
    colours: dict[str, str] = {}
    for name in dict.fromkeys(name for names in shown for name in names):
        beside = {colours.get(other) for names in shown if name in names for other in names}
        free = [colour for colour in COLOURS if colour not in beside] or COLOURS
        colours[name] = min(free, key=lambda colour: list(colours.values()).count(colour))
    return colours


class PlainLog(LogFormatter):
    """Labels the ticks that LogFormatter labels, as plain numbers: 0.6, not 6e-01."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _frame(axes: Axes, panel: Panel, last: int) -> None:
    """Title, scales and limits of a panel; last: the last step shown."""
    axes.set_title(panel.title, loc="left", fontsize=11, color=INK, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlim(-0.02 * max(last, 1), 1.02 * max(last, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.share:
        axes.set_ylim(-0.03, 1.03)


def _scale(axes: Axes, panel: Panel) -> None:
    """Scale and lower limit, once the curves are drawn."""
    if panel.log and np.isfinite(axes.dataLim.minposy):  # infinite: no value is positive
        axes.set_yscale("log")
        axes.tick_params(axis="y", which="minor", colors=INK, labelsize=9)
        axes.yaxis.set_major_formatter(PlainLog())
        axes.yaxis.set_minor_formatter(PlainLog())
    elif not panel.share:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


def _say_empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=INK, fontsize=9)


def _draw(axes: Axes, panel: Panel, lines: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    _frame(axes, panel, lines[-1]["step"])
    found = with_errors(lines, panel)
    if not found:
        _say_empty(axes)
        return
    shown: list[Line2D] = []  # given to the legend, which leaves out names with an underscore first by itself
    for name, (steps, values, errors) in sorted(found.items()):
        colour, window = colours[name], 1 if panel.of_exams else max(1, len(values) // 10)
        curve, error = smooth(values, window), smooth_errors(errors, window)
        if window == 1:
            shown += axes.plot(steps, values, color=colour, linewidth=1.8, marker="o", markersize=4, label=name)
        else:
            axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.3)
            shown += axes.plot(steps, curve, color=colour, linewidth=2, label=f"{name} (mean of {window} steps)")
        if np.isfinite(error).any():  # a value without a standard error has no band
            axes.fill_between(steps, curve - error, curve + error, color=colour, alpha=0.2, linewidth=0)
    _scale(axes, panel)
    _legend(axes, shown)


def _wrapped(label: str) -> str:
    """A label in lines that a legend has room for, broken after the plus signs of an update's roles."""
    words = label.replace("+", "+ ")
    return textwrap.fill(words, LEGEND - 7, break_long_words=False, break_on_hyphens=False).replace("+ ", "+")


def _legend(axes: Axes, shown: Sequence[Line2D]) -> None:
    """What the curves are, below the panel, where it covers none of them."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    labels = [_wrapped(str(line.get_label())) for line in shown]
    longest = max(len(part) for label in labels for part in label.splitlines())
    axes.legend(
        shown,
        labels,
        fontsize=8,
        frameon=False,
        labelcolor=INK,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        bbox_transform=axes.transAxes + ScaledTranslation(0.0, -BELOW / 72, figure.dpi_scale_trans),
        borderaxespad=0.0,
        borderpad=0.2,
        columnspacing=1.2,
        ncols=max(1, LEGEND // (longest + 7)),
    )


def _draw_together(axes: Axes, panel: Panel, runs: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """One colour per run, one line style per metric."""
    _frame(axes, panel, max(lines[-1]["step"] for lines in runs.values()))
    found = [series(lines, panel) for lines in runs.values()]
    labels = sorted({label for own in found for label in own})
    if not labels:
        _say_empty(axes)
        return
    for own, colour in zip(found, COLOURS, strict=False):
        for label, style in zip(labels, cycle(STYLES)):
            steps, values = own.get(label, ([], []))
            window = 1 if panel.of_exams else max(1, len(values) // 10)
            axes.plot(
                steps,
                smooth(values, window) if values else [],
                color=colour,
                linestyle=style,
                linewidth=1.8,
                marker="o" if panel.of_exams or len(values) < 3 else "",
                markersize=4,
            )
    _scale(axes, panel)
    shown = [Line2D([], [], color=INK, linestyle=style, label=label) for label, style in zip(labels, cycle(STYLES))]
    _legend(axes, shown)


def draw_together(
    runs: Mapping[str, Sequence[dict[str, Any]]], panels: Sequence[Panel], picture: Path, columns: int = 2
) -> None:
    """As `draw`, of several runs by name, at most as many as there are colours; values are moving averages."""
    with _figure(len(panels), columns, picture, 0.35) as (figure, places):
        for axes, panel in zip(places, panels, strict=True):
            _draw_together(axes, panel, runs)
        keys = [
            Line2D([], [], color=colour, linewidth=2.5, label=name) for name, colour in zip(runs, COLOURS, strict=False)
        ]
        figure.legend(
            handles=keys, loc="outside upper left", ncols=len(keys), fontsize=10, frameon=False, labelcolor=INK
        )


def draw(
    lines: Sequence[dict[str, Any]],
    panels: Sequence[Panel],
    picture: Path,
    columns: int = 2,
    before: Sequence[Panel] = (),
) -> None:
    """Writes a picture of the panels in rows of `columns`. lines: the records of metrics.jsonl, at least one. before:
    panels of another picture, whose labels have the same colours here."""
    with _figure(len(panels), columns, picture) as (_, places):
        for axes, panel in zip(places, panels, strict=True):
            _draw(axes, panel, lines, _colours(lines, [*before, *panels]))


@contextmanager
def _figure(count: int, columns: int, picture: Path, above: float = 0.0) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with places for `count` panels, saved as `picture` afterwards. above: inches for a legend."""
    rows = -(-count // columns)
    # parse_math: a $ in the name of a run or role is a $
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(
            figsize=(10, 3.1 * rows + above), layout=ConstrainedLayoutEngine(h_pad=0.09, w_pad=0.06), facecolor="white"
        )
        FigureCanvasAgg(figure)
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        yield figure, places[:count]
        for axes in places[count:]:
            axes.remove()
        figure.supxlabel("training step", fontsize=10, color=INK)
        with replaced(picture) as partial:
            figure.savefig(partial, dpi=150, format="png")
