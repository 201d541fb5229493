"""The curves of a run as charts of a page: what `templates/charts.html` draws as SVG, and `templates/charts.js` reads.

All coordinates are those of the SVG's view box. A chart has at most about `MOST` points of a curve: of a longer one the
lowest and the highest value of each stretch of steps, so that every peak is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any, NamedTuple

import numpy as np

from scope_jax.report.panels import Panel, series, with_errors, words

COLOURS = 7  # classes c0 to c6 of page.css
DASHES = ("", "7 4", "2 3", "9 3 2 3", "1 5", "12 3 3 3 3 3")
MOST = 400  # points of a curve
LEAST = 1e-300  # the axes divide by numbers and differences of this size
TICKS = 5


class Frame(NamedTuple):
    """The size of a chart, and the edges of the area with its curves."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


FRAME = Frame(width=480, height=210, left=56, right=470, top=8, bottom=184)


@dataclass(frozen=True)
class Curve:
    """What is to be drawn."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    errors: Sequence[float]
    """Standard errors, NaN of values without one."""
    colour: int
    """Its place among the colours."""
    dash: str = ""
    """SVG's dash pattern; "": a solid line."""


@dataclass(frozen=True)
class ChartLine:
    """A curve as it is drawn."""

    label: str
    colour: int
    dash: str
    path: str
    """Of the line: the values, or their moving average."""
    faint: str
    """Path of the values if the line is their average, else ""."""
    dots: tuple[tuple[float, float], ...]
    """Where the values are, of a line without average."""
    band: str
    """Path around the line, one standard error to either side; "" without errors."""
    steps: str
    """Those whose values can be shown, separated by spaces."""
    shown: tuple[str, ...]
    """The value of each, as text."""


@dataclass(frozen=True)
class Chart:
    """A panel as it is drawn."""

    title: str
    lines: tuple[ChartLine, ...]
    last: int
    """The axis of steps goes from 0 to this one."""
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    window: int
    """Steps of the longest moving average; 1: there is none."""


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


# ---------------------------------------------------------------------------------------------------------------- axes
@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, as shares of its length."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value, 0 to 1; what is beyond an end is there."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Round numbers from `low` to `high`, about `TICKS` of them. whole: integers only."""
    rough = (high - low) / TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    distance = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough * (1 - 1e-9))
    distance = max(distance, 1.0) if whole else distance
    first = math.ceil(low / distance - 1e-9)
    return [number * distance for number in range(first, math.floor(high / distance + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Numbers 1, 2 and 5 times a power of ten around these positive ones, of more than three decades the powers alone,
    at most about twice `TICKS`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if len(decades) > 4:
        return [10.0**power for power in decades[:: 1 + len(decades) // (2 * TICKS)]]
    every = [times * 10.0**power for power in decades for times in (1, 2, 5)]
    first = max(place for place, value in enumerate(every) if value <= low * (1 + 1e-9))
    last = min(place for place, value in enumerate(every) if value >= high * (1 - 1e-9))
    return every[first : last + 1] if last > first else every[first : first + 2]


def value_axis(panel: Panel, values: Sequence[float]) -> tuple[Axis, list[float]]:
    """(the axis of a panel with these values, its ticks). Differences below LEAST are not drawn."""
    if panel.share:
        return Axis(0.0, 1.0), [0.0, 0.25, 0.5, 0.75, 1.0]
    if panel.log and (positive := [max(value, LEAST) for value in values if value > 0]):
        found = log_ticks(min(positive), max(positive))
        return Axis(min(found[0], *positive), max(found[-1], *positive), True), found
    low, high = min(0.0, *values), max(0.0, *values)
    if high - low < LEAST:
        low = high = 0.0
    space = 0.05 * (high - low) or 1.0
    axis = Axis(low - space if low < 0 else 0.0, high + space if high > 0 or low == 0 else 0.0)
    return axis, ticks(axis.low, axis.high)


def short(number: float) -> str:
    """A tick's number in at most about seven characters: 1.5e-4, not 0.00015."""
    if number == 0 or 1e-3 <= abs(number) < 1e5:
        return f"{number:.4g}" if abs(number) < 1e4 else f"{number:.0f}"
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def shown(value: float, error: float, share: bool) -> str:
    """A value as text, with its standard error unless that is NaN."""
    beside = f" ± {100 * error:.1f}" if share else f" ± {error:.2g}"
    beside = beside if math.isfinite(error) else ""
    if share:
        return f"{100 * value:.1f}{beside} %"
    return f"{value:,.0f}{beside}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}{beside}"


# ------------------------------------------------------------------------------------------------------------- drawing
def kept(values: Sequence[float]) -> list[int]:
    """The places of values that are drawn."""
    count = len(values)
    if count <= MOST:
        return list(range(count))
    edges = np.linspace(0, count, MOST // 2 + 1).astype(int)
    array = np.asarray(values, float)
    found = {0, count - 1}
    for begin, end in pairwise(edges):
        found |= {int(begin + array[begin:end].argmin()), int(begin + array[begin:end].argmax())}
    return sorted(found)


def chart(panel: Panel, curves: Sequence[Curve], last: int) -> Chart:
    """The chart of at least one curve, each with at least one value. last: the last step of the axis."""
    windows = [1 if panel.of_exams else max(1, len(curve.values) // 10) for curve in curves]
    bounds = [
        bound
        for curve in curves
        for value, error in zip(curve.values, np.nan_to_num(curve.errors), strict=True)
        for bound in (value, value - error, value + error)
    ]
    axis, marks = value_axis(panel, bounds)
    steps = Axis(0.0, max(last, 1))
    return Chart(
        title=panel.title,
        lines=tuple(_line(curve, window, steps, axis, panel) for curve, window in zip(curves, windows, strict=True)),
        last=max(last, 1),
        x_ticks=tuple((_x(steps, one), f"{one:g}") for one in ticks(0, max(last, 1), whole=True)),
        y_ticks=tuple((_y(axis, one), f"{100 * one:g} %" if panel.share else short(one)) for one in marks),
        window=max(windows),
    )


def _x(axis: Axis, step: float) -> float:
    return round(FRAME.left + axis.at(step) * (FRAME.right - FRAME.left), 1)


def _y(axis: Axis, value: float) -> float:
    return round(FRAME.bottom - axis.at(value) * (FRAME.bottom - FRAME.top), 1)


def _line(curve: Curve, window: int, steps: Axis, axis: Axis, panel: Panel) -> ChartLine:
    places = kept(curve.values)
    means, errors = smooth(curve.values, window), smooth_errors(curve.errors, window)
    x = [_x(steps, curve.steps[place]) for place in places]
    middle = [(at, _y(axis, means[place])) for at, place in zip(x, places, strict=True)]
    values = [(at, _y(axis, curve.values[place])) for at, place in zip(x, places, strict=True)]
    edges = [
        (at, _y(axis, means[place] - errors[place]), _y(axis, means[place] + errors[place]))
        if math.isfinite(errors[place])
        else None
        for at, place in zip(x, places, strict=True)
    ]
    return ChartLine(
        label=curve.label,
        colour=curve.colour,
        dash=curve.dash,
        path=_path(middle),
        faint=_path(values) if window > 1 else "",
        dots=tuple(values) if window == 1 else (),
        band=_band(edges),
        steps=" ".join(str(curve.steps[place]) for place in places),
        shown=tuple(shown(curve.values[place], curve.errors[place], panel.share) for place in places),
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def _band(edges: Sequence[tuple[float, float, float] | None]) -> str:
    """The path around stretches of (x, lower y, upper y); None: there the line has no band."""
    stretches: list[list[tuple[float, float, float]]] = [[]]
    for edge in edges:
        if edge is None:
            stretches.append([])
        else:
            stretches[-1].append(edge)
    around = [
        [*((x, low) for x, low, _ in stretch), *((x, high) for x, _, high in reversed(stretch))]
        for stretch in stretches
        if stretch
    ]
    return "".join(f"{_path(points)}Z" for points in around)


# ---------------------------------------------------------------------------------------------------------------- runs
Lines = Sequence[Mapping[str, Any]]  # the records of metrics.jsonl, at least one


def colours(lines: Lines, panels: Sequence[Panel]) -> dict[str, int]:
    """One colour per label, the same in every panel; labels share a colour only if no panel shows both."""
    labels = [sorted(series(lines, panel)) for panel in panels]
    found: dict[str, int] = {}
    for name in dict.fromkeys(name for names in labels for name in names):
        beside = {found.get(other) for names in labels if name in names for other in names}
        free = [colour for colour in range(COLOURS) if colour not in beside] or range(COLOURS)
        found[name] = min(free, key=lambda colour: list(found.values()).count(colour))
    return found


def charts(lines: Lines, panels: Sequence[Panel], chosen: Mapping[str, int]) -> list[Chart]:
    """The charts of the panels that have a value. chosen: `colours` of at least these panels."""
    found = []
    for panel in panels:
        curves = [
            Curve(words(label), *columns, chosen[label]) for label, columns in sorted(with_errors(lines, panel).items())
        ]
        if curves:
            found.append(chart(panel, curves, lines[-1]["step"]))
    return found


def charts_together(runs: Mapping[str, Lines], panels: Sequence[Panel]) -> list[Chart]:
    """The same of several runs by name, at most as many as there are colours: a colour for each run, a dash pattern for
    each metric."""
    last = max(lines[-1]["step"] for lines in runs.values())
    found = []
    for panel in panels:
        by_run = [series(lines, panel) for lines in runs.values()]
        labels = sorted({label for own in by_run for label in own})
        curves = [
            Curve(
                label=name if len(labels) == 1 else f"{name}: {words(label)}",
                steps=own[label][0],
                values=own[label][1],
                errors=[math.nan] * len(own[label][0]),
                colour=colour,
                dash=dash,
            )
            for colour, (name, own) in enumerate(zip(runs, by_run, strict=True))
            for label, dash in zip(labels, cycle(DASHES))
            if label in own
        ]
        if curves:
            found.append(chart(panel, curves, last))
    return found
