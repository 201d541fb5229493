"""Progress of long commands: bars on a terminal, plain lines elsewhere."""

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
    "/numeric",
    "/score",
    "/exact",
    "/task_score",
    "/searches",
)  # suffixes of the metrics shown on a step's line
QUIET_SECONDS = 15.0  # minimum time between two plain lines about the same work


def headline(metrics: Mapping[str, float]) -> str:
    """The most informative metrics of a step on one line, with three decimals."""
    return "  ".join(f"{name} {value:.3f}" for name, value in metrics.items() if name.endswith(HEADLINES))


class Progress:
    """Shows the progress of a command. Use it as a context manager, one per command."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars = self._make_bars() if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._last_line: dict[str, float] = {}  # time of the last plain line, by name of the work
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
        """Prints one line of text."""
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def step(self, done: int, total: int | None, metrics: Mapping[str, float]) -> None:
        """Reports that training step `done` of `total` (None: unknown) is finished, with its metrics."""
        seconds, self._clock = time.monotonic() - self._clock, time.monotonic()
        self._bar("steps", done, total)
        place = f"{done}" if total is None else f"{done}/{total}"
        self.say(f"step {place}  {headline(metrics)}  {seconds:.1f} s")

    def part(self, name: str, done: int, total: int) -> None:
        """Reports that `done` of `total` pieces of some work are finished (passages embedded, questions answered)."""
        if self._bar(name, done, total):
            return
        now = time.monotonic()
        if done == total or now - self._last_line.setdefault(name, now) > QUIET_SECONDS:
            self._last_line[name] = now
            self.say(f"{name} {done}/{total}")

    def _bar(self, name: str, done: int, total: int | None) -> bool:
        if self._bars is None:
            return False
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
        self._bars.update(self._tasks[name], completed=done, total=total)
        return True
