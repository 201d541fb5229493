"""Compares mathematical answers with Math-Verify, in a separate process that is killed if it takes too long.

Simplifying the text of a model can take any time and any memory; here it is limited to `seconds` and then counts as
unequal. The worker is this module run as a program: one JSON object per line in, one per line out. It imports neither
JAX nor other packages of the project.
"""

from __future__ import annotations

import atexit
import json
import selectors
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

LONGEST = 2_000  # characters of an answer that is looked at; a formula that is longer is no answer


class MathAnswers:
    """Compares answers one after the other; a comparison that is too slow, or ends the worker, is False and counted."""

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds = seconds
        self.given_up = 0
        self._worker: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def equal(self, prediction: str, golds: Sequence[str]) -> bool:
        """True if `prediction` is mathematically equal to one of `golds` (LaTeX, plain numbers, sets, intervals …)."""
        if not prediction.strip() or len(prediction) > LONGEST:
            return False
        with self._lock:
            answer = self._asked({"prediction": prediction, "golds": list(golds)})
        if answer is None:
            self.given_up += 1
        return bool(answer)

    def close(self) -> None:
        """Ends the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None

    def _asked(self, question: dict[str, object]) -> bool | None:
        """The worker's answer, None if it gave none in time."""
        if self._worker is None:
            self._worker = subprocess.Popen(
                [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            if self._line(60.0) is None:  # it says so when its libraries are there
                self.close()
                raise RuntimeError("the process that compares mathematical answers did not start within a minute")
        assert self._worker.stdin is not None
        try:
            self._worker.stdin.write(json.dumps(question) + "\n")
        except BrokenPipeError:  # the answer before this one ended it
            self.close()
            return self._asked(question)
        line = self._line(self.seconds)
        if line is None:
            self.close()
            return None
        return json.loads(line)["equal"]

    def _line(self, seconds: float) -> str | None:
        """The next line of the worker, None if there is none within `seconds`."""
        assert self._worker is not None
        assert self._worker.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._worker.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        return self._worker.stdout.readline() or None


def _work() -> None:
    import logging
    import resource

    logging.disable(logging.WARNING)  # it warns that it sets no time limit of its own: the parent process has one
    from math_verify import parse, verify  # type: ignore[import-untyped]

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        said = _parsed(parse, asked["prediction"])
        equal = any(verify(_parsed(parse, gold), said, timeout_seconds=None) for gold in asked["golds"])
        print(json.dumps({"equal": bool(equal)}), flush=True)


def _parsed(parse, text: str) -> Any:
    """What Math-Verify reads; an answer without any mark-up is looked at as a formula."""
    return parse(text if "$" in text or "\\" in text else f"${text}$", parsing_timeout=None)


if __name__ == "__main__":
    _work()
