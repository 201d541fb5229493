"""A process that answers lines: the other side of code that may not run in the trainer, as it may never end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from {module} import work; work()"
_ROOT = str(Path(__file__).parents[2])


class LineWorker:
    """A Python process that runs `work` of a module, which prints a line once it is ready, and one for each line that
    it reads. Started by the first request, and again after it has ended."""

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-P", "-c", _PROGRAM.format(module=module), _ROOT, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def start(self, seconds: float) -> str:
        """The line with which a new process begins, if none is running; "" if none comes in so many seconds."""
        if self._process is not None:
            return "\n"
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # what it starts ends with it
        )
        begun = self._line(self._process, seconds)
        if not begun:
            self.stop()
        return begun

    def ask(self, request: str, seconds: float | None = None) -> tuple[str, int]:
        """(the line that answers, 0), or ("", the status with which the process has ended: as by SIGKILL if it did not
        answer in so many seconds)."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            line = self._line(process, seconds)
        except BrokenPipeError:
            line = ""
        if line:
            return line, 0
        self.stop()
        return "", process.returncode

    def stop(self) -> None:
        """Ends the process, and what it has started."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)  # it may be ending, with a status that tells why
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    @staticmethod
    def _line(process: subprocess.Popen[str], seconds: float | None) -> str:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            return process.stdout.readline() if selector.select(seconds) else ""
