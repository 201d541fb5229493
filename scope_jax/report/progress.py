"""Progress of long work: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

HEADLINES = (
    "/reward",
    "/valid",
    "/accuracy",
    "/score",
    "/task_score",
    "/searches",
)  # endings of the metrics worth a place on a step's line
QUIET_SECONDS = 15.0  # between two plain lines about the same part


def headline(metrics: Mapping[str, float]) -> str:
    """The telling metrics of a step on one line, shares and means with three digits."""
    return "  ".join(f"{name} {value:.3f}" for name, value in metrics.items() if name.endswith(HEADLINES))


class Progress:
    """Tells a person how far a command is. Use it as a context manager; one per command."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars = self._make_bars() if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}
        self._clock = time.monotonic()

    def _make_bars(self) -> Bars:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        return Bars(*columns, console=self.console)

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Prints one line: what starts, what was skipped."""
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def step(self, done: int, total: int | None, metrics: Mapping[str, float]) -> None:
        """Training step `done` of `total` (None: nobody knows yet) is over, with its metrics."""
        seconds, self._clock = time.monotonic() - self._clock, time.monotonic()
        self._bar("steps", done, total)
        place = f"{done}" if total is None else f"{done}/{total}"
        self.say(f"step {place}  {headline(metrics)}  {seconds:.1f} s")

    def part(self, name: str, done: int, total: int) -> None:
        """`done` of `total` pieces of some work are over (passages embedded, questions answered)."""
        if self._bar(name, done, total):
            return
        now = time.monotonic()
        if done == total or now - self._said.setdefault(name, now) > QUIET_SECONDS:
            self._said[name] = now
            self.say(f"{name} {done}/{total}")

    def _bar(self, name: str, done: int, total: int | None) -> bool:
        if self._bars is None:
            return False
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
        self._bars.update(self._tasks[name], completed=done, total=total)
        return True
