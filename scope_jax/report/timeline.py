"""When the steps of a run whose steps overlap were played and learned, as a drawing and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scope_jax.run.files import TIMELINE, read_records
from scope_jax.run.lines import Record

WIDTH = 100  # columns of the text, and units of the drawing
SHOWN = 40  # steps, the last ones
MARKS = {"play": "·", "update": "█", "exam": "e"}


@dataclass(frozen=True)
class TimelineBar:
    """A stretch of time of one step."""

    kind: str
    """play, update, exam or swap."""
    start: float
    """From 0 to WIDTH."""
    end: float
    """From 0 to WIDTH, not before `start`."""
    seconds: float
    """How long it took."""


@dataclass(frozen=True)
class TimelineRow:
    """The bars of one step."""

    step: int
    bars: tuple[TimelineBar, ...]
    """In the order in which they ended."""


@dataclass(frozen=True)
class Timeline:
    """The last steps of a run."""

    rows: tuple[TimelineRow, ...]
    seconds: float
    """Of the whole width."""
    idle: float
    """Share of the time in which the engine had no step to play."""

    def text(self) -> str:
        """A line for each step: · played, █ learned, e examined; | is where newer weights were taken over."""
        swaps = {round(bar.start) for row in self.rows for bar in row.bars if bar.kind == "swap"}
        lines = [f"one column is {self.seconds / WIDTH:.2g} s; the engine had no step to play for {self.idle:.0%}"]
        for row in self.rows:
            cells = ["|" if column in swaps else " " for column in range(WIDTH + 1)]
            for bar in row.bars:
                first = round(bar.start)
                for column in range(first, max(round(bar.end), first + 1)):
                    cells[column] = MARKS.get(bar.kind, cells[column])
            lines.append(f"step {row.step:>5}  {''.join(cells).rstrip()}")
        return "\n".join(lines)


def timeline_of(run: Path) -> Timeline | None:
    """Of the run's last steps; None if its steps do not overlap. Raises DamagedFile."""
    records = list(read_records(run / TIMELINE))
    if not records:
        return None
    last = max(record["step"] for record in records)
    shown = [record for record in records if record["step"] > last - SHOWN]
    first, end = min(record["began"] for record in shown), max(record["ended"] for record in shown)
    scale = WIDTH / max(end - first, 1e-9)
    rows = [
        TimelineRow(step, tuple(_bar(record, first, scale) for record in shown if record["step"] == step))
        for step in sorted({record["step"] for record in shown})
    ]
    return Timeline(tuple(rows), end - first, _idle(shown, first, end))


def _bar(record: Record, first: float, scale: float) -> TimelineBar:
    start, end = (scale * (record[name] - first) for name in ("began", "ended"))
    return TimelineBar(record["kind"], start, end, record["ended"] - record["began"])


def _idle(records: Sequence[Record], first: float, end: float) -> float:
    """The share of the time that no play covers."""
    covered, reached = 0.0, first
    for began, ended in sorted((record["began"], record["ended"]) for record in records if record["kind"] == "play"):
        covered += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return 1.0 - covered / max(end - first, 1e-9)
