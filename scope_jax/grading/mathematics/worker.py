"""The program that compares: one JSON object per line in, one per line out.

It runs apart from the trainer, because comparing text written by a model can take unbounded time and memory: the kernel
ends it once a comparison has used its CPU time, which does not depend on how busy the machine is.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Literal

from scope_jax.grading.mathematics.comparing import equal
from scope_jax.grading.mathematics.expressions import Unreadable
from scope_jax.grading.mathematics.notation import plain
from scope_jax.grading.mathematics.reading import read

MEMORY = 4 << 30  # bytes


def work() -> None:
    """Answers requests {"prediction", "golds", "seconds"} with {"verdict"} until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the trainer decides
    sys.setrecursionlimit(4_000)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # SIGPROF, unhandled, ends the process
        verdict = compare(request["prediction"], request["golds"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"verdict": verdict}), flush=True)


def compare(prediction: str, golds: Sequence[str]) -> Literal["equal", "unequal", "unreadable"]:
    """ "equal" if the prediction is one of the golds; "unreadable" if it, or every gold, is not understood; else
    "unequal"."""
    written = _written(plain(prediction))
    if written and any(written == _written(plain(gold)) for gold in golds):
        return "equal"
    try:
        said = read(prediction)
    except Unreadable:
        return "unreadable"
    understood = False
    for gold in golds:
        try:
            wanted = read(gold)
        except Unreadable:
            continue
        understood = True
        if equal(said, wanted):
            return "equal"
    return "unequal" if understood else "unreadable"


def _written(text: str) -> str:
    """The text without font commands and without white space that separates nothing."""
    return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text))
