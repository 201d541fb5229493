"""Handles SIGTERM and Ctrl-C.

The first signal raises an exception in the main thread, and the command line prints one sentence and exits with 128 +
the signal's number, as shells do. In the training loop (`orderly`) it only asks the loop to end after the running step,
with a checkpoint; if that takes longer than the grace period, the process ends as if killed. A second signal always
ends the process immediately. From all of these a run recovers as from any other kill.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


class Stopped(KeyboardInterrupt):
    """A signal that ends the command. step: the number of the step after which training stopped with a checkpoint."""

    def __init__(self, number: int, step: int | None = None) -> None:
        after = "" if step is None else f" after step {step}"
        super().__init__(("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name) + after)
        self.exit_code = 128 + number
        self.step = step


class StopRequest:
    """What a signal asks of the block `orderly`. number: that of the signal, 0 as long as there was none."""

    def __init__(self, grace: float, late: Callable[[Stopped], None]) -> None:
        self.number = 0
        self._grace, self._late = grace, late
        self._made, self._over = threading.Event(), threading.Event()
        # Started now, since a signal's handler may interrupt the code that starts threads.
        self._thread = threading.Thread(target=self._watch, name="grace period", daemon=True)
        self._thread.start()

    def make(self, number: int) -> None:
        """Called by the signal's handler."""
        self.number = number
        _write(
            f"scope-jax: {Stopped(number)}: training stops after the running step, within {self._grace:g} seconds; "
            "a second signal ends it at once."
        )
        self._made.set()

    def close(self) -> None:
        """The block is over: the grace period ends no more."""
        self._over.set()
        self._made.set()
        self._thread.join()

    def _watch(self) -> None:
        self._made.wait()
        if not self._over.wait(self._grace):
            self._late(Stopped(self.number))


_request: StopRequest | None = None  # of the block `orderly` that is running
_first = threading.Lock()  # taken by the first signal


def listen() -> None:
    """Installs the signal handlers; signals that the parent process ignores stay ignored.

    Called before JAX starts, since libtpu prints C++ stack traces on SIGTERM unless a handler is already installed.
    """
    global _first
    _first = threading.Lock()
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)


@contextmanager
def orderly(grace: float, late: Callable[[Stopped], None]) -> Iterator[StopRequest]:
    """A block that the first signal does not interrupt: it looks at the request itself, and ends.

    late: called in a thread of its own if it has not ended `grace` seconds after the signal; it ends the process.
    """
    global _request
    _request = request = StopRequest(grace, late)
    try:
        yield request
    finally:
        _request = None
        request.close()


def end(code: int) -> None:
    """Ends the process at once, without cleaning up."""
    if sys.stderr.isatty():
        os.write(2, SHOW_CURSOR)
    os._exit(code)


def _stop(number: int, frame: FrameType | None) -> None:
    if not _first.acquire(blocking=False):  # it interrupts this handler, called for another signal
        _end(number, frame)
    for each in SIGNALS:
        signal.signal(each, _end)
    if _request is None:
        raise Stopped(number)
    _request.make(number)


def _end(number: int, frame: FrameType | None) -> None:
    _write("\nscope-jax: ended at once.")
    end(128 + number)


def _write(sentence: str) -> None:
    os.write(2, f"{sentence}\n".encode())  # not through Python's buffers, whose lock the interrupted code may hold
