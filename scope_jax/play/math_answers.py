"""Compares mathematical answers with Math-Verify, in a separate process that is killed if it takes too long.

Simplifying text written by a model can take unbounded time and memory. Here a comparison is limited to `seconds`, after
which the answers count as unequal. The worker is this module run as a program: one JSON object per line in, one per
line out. It imports neither JAX nor other packages of the project.
"""

from __future__ import annotations

import atexit
import json
import re
import selectors
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

LONGEST = 2_000  # characters; a longer answer is not compared
START_SECONDS = 300.0  # for the worker's imports, which take seconds, or minutes on a loaded node
# no xi, which is more often x times i
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|rho|sigma|tau|phi|chi|psi|omega|pi"
    "|Gamma|Delta|Theta|Lambda|Pi|Sigma|Phi|Psi|Omega"
)
_FUNCTIONS = "(?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|cot|sec|csc|ln|log|exp"
_NAMES = re.compile(
    rf"\\(?:operatorname|mathrm|text)\s*\{{({_FUNCTIONS}|{_GREEK})\}}|(?<![\\A-Za-z])({_FUNCTIONS}|{_GREEK})(?![A-Za-z])"
)
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?![\w.])")


class MathAnswers:
    """Compares answers one at a time; a comparison that times out or crashes the worker is False and is counted."""

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
            answer = self._request({"prediction": prediction, "golds": list(golds)})
        if answer is None:
            self.given_up += 1
        return bool(answer)

    def close(self) -> None:
        """Stops the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None

    def _request(self, comparison: dict[str, object]) -> bool | None:
        """The worker's result, None if it gave none in time."""
        if self._worker is None:
            self._worker = subprocess.Popen(
                [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            if self._line(START_SECONDS) is None:  # it prints a line once its libraries are imported
                self.close()
                from scope_jax.errors import UserError  # not at the top: the worker runs this file without the project

                raise UserError(
                    f"the process that compares mathematical answers did not start within {START_SECONDS:g} seconds; "
                    "check that `python -c 'import math_verify'` works, or run with fewer other processes."
                )
        assert self._worker.stdin is not None
        try:
            self._worker.stdin.write(json.dumps(comparison) + "\n")
        except BrokenPipeError:  # the previous comparison crashed the worker
            self.close()
            return self._request(comparison)
        line = self._line(self.seconds)
        if line is None:
            self.close()
            return None
        return json.loads(line)["equal"]

    def _line(self, seconds: float) -> str | None:
        """The next line from the worker, None if there is none within `seconds`."""
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

    logging.disable(logging.WARNING)  # it warns that it has no timeout of its own, but the parent process has one
    from math_verify import parse, verify  # type: ignore[import-untyped]

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        comparison = json.loads(line)
        prediction = _parsed(parse, comparison["prediction"])
        equal = any(verify(_parsed(parse, gold), prediction, timeout_seconds=None) for gold in comparison["golds"])
        print(json.dumps({"equal": bool(equal)}), flush=True)


def _parsed(parse, text: str) -> Any:
    """Parses an answer with Math-Verify: as a formula, unless it marks its formulas itself."""
    marked = re.search(r"(?<!\\)\$|\\\(|\\\[|\\boxed", text)  # \$ is a dollar sign
    return parse(text if marked else f"${_as_latex(text)}$", parsing_timeout=None)


def _as_latex(text: str) -> str:
    """Plain notation in LaTeX's: functions and Greek letters with a backslash, powers with ^, 1e-3 as a product."""
    named = _NAMES.sub(lambda name: f"\\{name[1]} " if name[1] else f"\\{name[2]}", text)
    return _POWER.sub(r"\1\\cdot 10^{\2}", named).replace("**", "^")


if __name__ == "__main__":
    _work()
