"""Handles SIGTERM, SIGHUP (a closed terminal), Ctrl-C, and a reader of the output that has gone.

The first signal raises an exception in the main thread, and the command line prints one sentence and exits with 128 +
the signal's number, as shells do. In the training loop (`orderly`) it only asks the loop to end after the running step,
with a checkpoint; if that, and whatever comes after it, takes longer than the grace period, the process ends as if
killed. A second signal always ends the process immediately. From all of these a run recovers as from any other kill.

A line that nobody can read any more (`train … 2>&1 | head`) counts as SIGPIPE, which Python ignores, or as SIGHUP on a
terminal that has been closed, and as all of them it may come while another ending is under way.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDING = 100.0  # seconds that an ending takes at most where no grace period is running
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
        self._grace, self._late, self._block = grace, late, True
        self._made, self._over = threading.Event(), threading.Event()
        # Started now, since a signal's handler may interrupt the code that starts threads.
        self._thread = threading.Thread(target=self._watch, name="grace period", daemon=True)
        self._thread.start()

    def make(self, number: int) -> None:
        """Called by the signal's handler."""
        self.number = number
        self._made.set()
        _write(
            f"scope-jax: {Stopped(number)}: training stops after the running step, within {self._grace:g} seconds; "
            "a second signal ends it at once."
        )

    def close(self) -> None:
        """The block is over. The grace period of a request goes on in the program, which has yet to end."""
        self._block = False
        if not (self.number and _ends):
            self._over.set()
            self._made.set()
            self._thread.join()

    def _watch(self) -> None:
        self._made.wait()
        if self._over.wait(self._grace):
            return
        if self._block:
            self._late(Stopped(self.number))
        else:
            end_late(128 + self.number, self._grace)


_request: StopRequest | None = None  # of the block `orderly` that is running
_ending = False  # a signal, or a reader that has gone, ends the command: nobody need read what else it says
_ends = False  # this process is the program, which ends after a signal
_first = threading.Lock()  # taken by the first signal


def listen() -> None:
    """Installs the signal handlers; signals that the parent process ignores stay ignored.

    Called before JAX starts, since libtpu prints C++ stack traces on SIGTERM unless a handler is already installed.
    """
    global _first, _ending
    _first = threading.Lock()
    _ending = False
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


class Output(io.TextIOWrapper):
    """A standard stream whose reader may go. That counts as a signal: in the block `orderly`, and once the command is
    ending, what is printed then is lost; elsewhere the writer gets BrokenPipeError, or of a closed terminal Stopped,
    and so does the next one, as that may have been a thread."""

    _gone = 0  # the errno of the write that nobody could read

    def write(self, text: str, /) -> int:
        try:
            if self._gone:
                raise OSError(self._gone, os.strerror(self._gone))
            return super().write(text)
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        if error.errno not in (errno.EPIPE, errno.EIO):  # EIO: of a terminal
            raise error
        if not self._gone:  # what is in the buffer, and what others write, goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            self._gone = error.errno
        global _ending
        closed = error.errno == errno.EIO
        if _request is not None:
            if not _request.number:
                _request.make(signal.SIGHUP if closed else signal.SIGPIPE)
            _ending = True
        elif not _ending and closed and threading.current_thread() is threading.main_thread():
            _ending = True
            raise Stopped(signal.SIGHUP) from None
        elif not _ending:
            raise BrokenPipeError(*error.args) from None


def ending_program() -> None:
    """This process is the program: its standard streams are an `Output`, and it ends after a signal."""
    global _ends
    _ends = True
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, Output):
            how = {"encoding": stream.encoding, "errors": stream.errors, "line_buffering": stream.line_buffering}
            setattr(sys, name, Output(stream.detach(), **how))


def bound(code: int, seconds: float = ENDING) -> None:
    """The process, which is ending with this exit code, ends after so many seconds, whatever holds it."""

    def wait() -> None:
        threading.Event().wait(seconds)
        end_late(code, seconds)

    threading.Thread(target=wait, name="ending", daemon=True).start()


def end_late(code: int, seconds: float) -> None:
    """Ends the process, whose ending takes longer than it may."""
    _write(f"scope-jax: ended at once, as ending took longer than {seconds:g} seconds.")
    end(code)


def end(code: int) -> None:
    """Ends the process at once, without cleaning up."""
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            os.write(2, SHOW_CURSOR)
    os._exit(code)


def _stop(number: int, frame: FrameType | None) -> None:
    if not _first.acquire(blocking=False):  # it interrupts this handler, called for another signal
        _end(number, frame)
    for each in SIGNALS:
        signal.signal(each, _end)
    global _ending
    _ending = True
    if _request is None:
        raise Stopped(number)
    _request.make(number)


def _end(number: int, frame: FrameType | None) -> None:
    _write("\nscope-jax: ended at once.")
    end(128 + number)


def _write(sentence: str) -> None:
    with suppress(OSError):  # nobody may be there to read it
        os.write(2, f"{sentence}\n".encode())  # not through Python's buffers, whose lock the interrupted code may hold
