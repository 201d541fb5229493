"""A reward of the user's own: a function in a Python file, called in a process of its own."""

from __future__ import annotations

import atexit
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.grading.line_worker import LineWorker

START_SECONDS = 300.0  # for what the file imports
GRACE = 5.0  # seconds in which a process ends by itself


class RewardFunction:
    """The function `reward` of a file. seconds: of a call."""

    def __init__(self, file: str, seconds: float) -> None:
        self._file, self._seconds = file, seconds
        self._worker = LineWorker("scope_jax.grading.function_worker", [file])
        atexit.register(self.close)

    def value(self, arguments: Mapping[str, Any], where: str) -> float | None:
        """What it returns; None if the call takes longer than its limit. where: the row, for errors.

        Raises UserError for a file that cannot be imported, for an exception, and for what is no finite number.
        """
        self._start()
        request = json.dumps({"arguments": arguments, "seconds": self._seconds}, default=str)
        line, status = self._worker.ask(request, self._seconds + GRACE)
        if not line and status in (-signal.SIGALRM, -signal.SIGKILL):
            return None
        answer: dict[str, Any] = json.loads(line) if line else {"wrong": f"ends its process with status {status}"}
        if "wrong" in answer:
            raise UserError(f"{where}: reward of {self._file} {answer['wrong']}; correct it, or remove the row.")
        return answer["value"]

    def close(self) -> None:
        """Ends the process."""
        self._worker.stop()

    def _start(self) -> None:
        if not Path(self._file).is_file():
            raise UserError(f"the reward function's file {self._file} does not exist; correct its path.")
        line = self._worker.start(START_SECONDS)
        wrong = f"it was not imported within {START_SECONDS:g} seconds" if not line else ""
        if line.strip():
            wrong = json.loads(line).get("wrong", "")
        if wrong:
            self._worker.stop()
            raise UserError(f"the reward function's file {self._file} cannot be used: {wrong}; correct it.")
