"""Compares mathematical answers, in processes that the kernel ends once a comparison has used up its CPU time.

The text is written by a model, and what it denotes can take unbounded time and memory to evaluate. The limit is one of
CPU time, so that a busy machine does not change verdicts; a verdict of "timeout" may still differ from one machine to
the next, which is why a run decides each comparison once, for all its processes, and records it (`run.recording`).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Literal, NamedTuple

from scope_jax.errors import UserError
from scope_jax.grading.line_worker import LineWorker

LONGEST = 2_000  # characters; a longer answer is not compared
SECONDS = 5.0  # of CPU time for a comparison
START_SECONDS = 300.0  # for a worker's imports, which take a second, or minutes on a loaded node
WORKERS = 16  # at most; each needs about 80 MB
SHARE = 64  # comparisons for which another worker is worth its start

Verdict = Literal["equal", "unequal", "unreadable", "timeout"]


class Comparison(NamedTuple):
    """An answer and the accepted ones, in LaTeX or plain notation."""

    prediction: str
    golds: tuple[str, ...]


class MathAnswers:
    """Compares answers, many at a time on the cores of this host; see `mathematics` for what is equal.

    Verdicts: "equal" to an accepted answer; "unequal"; "unreadable", if the prediction, or every accepted answer, is
    not understood to its last character; "timeout", if the comparison used up its CPU time or its memory. Only the
    first counts as right.
    """

    def __init__(self) -> None:
        self._cores = min(len(os.sched_getaffinity(0)), WORKERS)
        self._idle: SimpleQueue[_MathWorker] = SimpleQueue()
        self._started: list[_MathWorker] = []
        self._lock = threading.Lock()
        atexit.register(self.close)

    def equal(self, prediction: str, golds: Sequence[str], seconds: float = SECONDS) -> bool:
        """True if `prediction` is mathematically equal to one of `golds`."""
        return self.verdicts([Comparison(prediction, tuple(golds))], seconds) == ["equal"]

    def verdicts(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> list[Verdict]:
        """The verdict of each comparison, in order; identical ones are decided once. seconds: CPU time for each. Raises
        UserError if no worker can be started."""
        distinct = list(dict.fromkeys(comparisons))
        threads = max(1, min(self._cores, len(distinct) // SHARE))
        with self._lock:
            while len(self._started) < threads:
                self._started.append(_MathWorker())
                self._idle.put(self._started[-1])
            if threads == 1:
                found: list[Verdict] = [self._verdict(one, seconds) for one in distinct]
            else:
                with ThreadPoolExecutor(threads, "grader") as pool:
                    found = list(pool.map(lambda one: self._verdict(one, seconds), distinct))
        decided = dict(zip(distinct, found, strict=True))
        return [decided[comparison] for comparison in comparisons]

    def close(self) -> None:
        """Stops the workers."""
        for worker in self._started:
            worker.stop()

    def _verdict(self, comparison: Comparison, seconds: float) -> Verdict:
        prediction, golds = comparison
        if not prediction.strip() or len(prediction) > LONGEST:
            return "unreadable"
        worker = self._idle.get()
        try:
            return worker.ask({"prediction": prediction, "golds": golds, "seconds": seconds})
        finally:
            self._idle.put(worker)


class _MathWorker:
    """A process that compares one pair after the other; started by the first, and again after it has ended."""

    def __init__(self) -> None:
        self._worker = LineWorker("scope_jax.grading.mathematics.worker")

    def ask(self, request: dict[str, object]) -> Verdict:
        """The verdict; "timeout" if the process ends over it. One that something else ended is asked once more."""
        for _ in range(2):
            if not self._worker.start(START_SECONDS):
                raise UserError(
                    f"the process that compares mathematical answers did not start within {START_SECONDS:g} seconds; "
                    "check that `python -c 'import sympy'` works, or run with fewer other processes."
                )
            line, status = self._worker.ask(json.dumps(request))
            if line:
                return json.loads(line)["verdict"]
            if status == -signal.SIGPROF:
                break
        return "timeout"

    def stop(self) -> None:
        self._worker.stop()
