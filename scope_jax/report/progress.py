"""Progress of long commands: bars and what is going on, on a terminal; plain lines elsewhere, and no long silence."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

HEADLINES = (
    "/reward",
    "/valid",
    "/accuracy",
    "/numeric",
    "/score",
    "/exact",
    "/task_score",
    "/searches",
    "/implicit_accuracy",
    "/implicit_margin",
)  # suffixes of the metrics shown on a step's line
LEAST_COMPILING = 1.0  # seconds of compilation that a step's line tells
QUIET_SECONDS = 15.0  # minimum time between two plain lines about the same work
SILENCE = 30.0  # seconds after which a plain line says what is going on


def headline(metrics: Mapping[str, float]) -> str:
    """The most informative metrics of a step on one line, with three decimals; a loss where it is what is learned from,
    as of given answers and pairs: that of a policy tells little."""

    def chosen(name: str) -> bool:
        role, _, last = name.rpartition("/")
        divergence = last.startswith("teacher_")  # in a distillation
        return name.endswith(HEADLINES) or divergence or (last == "loss" and f"{role}/policy_loss" not in metrics)

    return "  ".join(f"{name} {_decimals(value)}" for name, value in metrics.items() if chosen(name))


def _decimals(value: float) -> str:
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}"


def in_words(seconds: float) -> str:
    """A time, roughly: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _Left(TimeRemainingColumn):
    """What is left of some work: what its task says, or else as much as its speed so far tells."""

    def render(self, task: Task) -> Text:
        said = task.fields["left"]
        return super().render(task) if said is None else Text(said, style="progress.remaining")


class StepTimes:
    """How long the steps and the exams of a process take, without compilation."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=5)  # seconds of the latest
        self._first = True  # the only step so far, which may have been slow, is the first
        self._exam: float | None = None  # seconds of the latest

    def exam(self, seconds: float) -> None:
        """An exam took so long."""
        self._exam = seconds

    def step(self, seconds: float) -> None:
        """A step took so long, exams apart."""
        if len(self._steps) == 1 and self._first:
            self._steps.clear()
            self._first = False
        self._steps.append(seconds)

    def left(self, steps: int, exams: int) -> str:
        """How long so many further steps and exams take, in words; exams of unknown length are counted."""
        seconds = statistics.median(self._steps) * steps
        if exams and self._exam is None:
            return f"{in_words(seconds)} and {'an exam' if exams == 1 else f'{exams} exams'}"
        return in_words(seconds + exams * (self._exam or 0.0))


class _Live(Bars):
    """Bars with a line below, which `line` gives."""

    def __init__(self, *columns: ProgressColumn, console: Console, line: Callable[[], str]) -> None:
        self._line = line  # asked at once
        super().__init__(*columns, console=console)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self._line(), style="dim", no_wrap=True, overflow="ellipsis")


class Progress:
    """Shows the progress of a command. Use it as a context manager, one per command. silence: seconds without a line
    after which, away from a terminal, one says what is going on."""

    def __init__(self, console: Console, silence: float = SILENCE) -> None:
        self.console = console
        self._silence = silence
        self._status: Callable[[], str] = lambda: ""
        self._said, self._said_at = "", time.monotonic()  # the last line
        self._over = threading.Event()
        self._speaker = threading.Thread(target=self._speak, name="progress", daemon=True)
        self._pace = StepTimes()
        self._bars = self._make_bars() if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._last_line: dict[str, float] = {}  # time of the last plain line, by name of the work
        self._clock = time.monotonic()  # when the running step began
        self._compiled = 0.0  # seconds of compilation until then

    def _make_bars(self) -> Bars:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _Left(),
        )
        return _Live(*columns, console=self.console, line=self.status)

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._bars.start()
        else:
            self._speaker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        else:
            self._over.set()
            self._speaker.join()

    def follow(self, status: Callable[[], str]) -> None:
        """From now on `status` says what is going on, "" if nothing is; it is called in another thread."""
        self._status = status

    def status(self) -> str:
        """What is going on; by default the last line, and for how long."""
        return self._status() or f"{self._said or 'working'}: {time.monotonic() - self._said_at:.0f} s"

    def _speak(self) -> None:
        said = self._said_at
        while not self._over.wait(max(0.01, max(said, self._said_at) + self._silence - time.monotonic())):
            if time.monotonic() - max(said, self._said_at) >= self._silence:
                said = time.monotonic()
                self._print(self.status())

    def begin(self, compiled: float) -> None:
        """What is told of next, a step or an exam, begins now. compiled: seconds of compilation so far."""
        self._clock = time.monotonic()
        self._compiled = compiled

    def scores(self, metrics: Mapping[str, float], compiled: float) -> None:
        """Reports the result of an evaluation before the steps, or after them."""
        seconds = metrics["time/evaluate"]
        self._pace.exam(max(0.0, seconds - (compiled - self._compiled)))
        self.say(f"evaluated  {headline(metrics)}  {seconds:.1f} s")
        self.begin(compiled)

    def say(self, text: str) -> None:
        """Prints one line of text."""
        self._said, self._said_at = text, time.monotonic()
        self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def step(self, done: int, total: int | None, metrics: Mapping[str, float], exams: int, compiled: float) -> None:
        """Reports that training step `done` of `total` (None: unknown) is finished, with its metrics. exams: how many
        are to come. compiled: seconds of compilation so far."""
        exam = metrics.get("time/evaluate", 0.0)
        seconds = time.monotonic() - self._clock - exam
        compiling = compiled - self._compiled
        if "time/evaluate" in metrics:
            self._pace.exam(exam)
        self._pace.step(max(0.0, seconds - compiling))
        self.begin(compiled)
        left = None if total is None or done >= total else f"about {self._pace.left(total - done, exams)} left"
        self._bar("steps", done, total, left)
        place = f"{done}" if total is None else f"{done}/{total}"
        times = [f"{seconds:.1f} s"]
        times += [f"{compiling:.1f} s of it compiling"] if compiling >= LEAST_COMPILING else []
        times += [f"evaluated in {exam:.1f} s"] if exam else []
        self.say(f"step {place}  {headline(metrics)}  {', '.join([*times, *filter(None, [left])])}")

    def part(self, name: str, done: int, total: int) -> None:
        """Reports that `done` of `total` pieces of some work are finished (passages embedded, questions answered)."""
        if self._bar(name, done, total):
            return
        now = time.monotonic()
        if done == total or now - self._last_line.setdefault(name, now) > QUIET_SECONDS:
            self._last_line[name] = now
            self.say(f"{name} {done}/{total}")

    def _bar(self, name: str, done: int, total: int | None, left: str | None = None) -> bool:
        if self._bars is None:
            return False
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, left=None)
        self._bars.update(self._tasks[name], completed=done, total=total, left=left)
        return True
