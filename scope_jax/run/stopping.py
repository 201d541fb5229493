"""Handles SIGTERM and Ctrl-C.

The first signal raises an exception in the main thread: the training loop finishes the checkpoint being written,
and the command line prints one sentence and exits with 128 + the signal's number, as shells do. A second signal ends
the process immediately, from which a run recovers as from any other kill.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_unbroken = 0  # number of active blocks that must not be interrupted
_waiting: list[int] = []  # a signal received in such a block


class Stopped(KeyboardInterrupt):
    """A signal that ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)
        self.exit_code = 128 + number


def listen() -> None:
    """Installs the signal handlers; signals that the parent process ignores stay ignored.

    Called before JAX starts, since libtpu prints C++ stack traces on SIGTERM unless a handler is already installed.
    """
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)


@contextmanager
def unbroken() -> Iterator[None]:
    """A block that the first signal does not interrupt: the command stops at the end of the block."""
    global _unbroken
    _unbroken += 1
    try:
        yield
    finally:
        _unbroken -= 1
        if _waiting and not _unbroken:
            raise Stopped(_waiting.pop())


def _stop(number: int, frame: FrameType | None) -> None:
    for each in SIGNALS:
        signal.signal(each, _end)
    if _unbroken:
        _waiting.append(number)
    else:
        raise Stopped(number)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"\nscope-jax: ended at once.\n")
    os._exit(128 + number)
