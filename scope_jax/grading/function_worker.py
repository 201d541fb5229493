"""The program that calls a user's reward function: one JSON object per line in, one per line out.

It runs apart from the trainer, as a function may never end, or end its process. What the function prints goes to
standard error.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any

NAME = "reward"
Function = Callable[..., Any]


def work() -> None:
    """Answers requests, {"arguments", "seconds"}, with {"value"} or {"wrong": the end of a sentence}, until standard
    input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the trainer decides
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        function = _loaded(Path(sys.argv[2]))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of the user's file, which is told
        print(json.dumps({"wrong": _told(error)}), file=answers, flush=True)
        return
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])  # SIGALRM, unhandled, ends the process
        answer = _answer(function, request["arguments"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(answer), file=answers, flush=True)


def _loaded(file: Path) -> Function:
    sys.path.append(str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"scope_jax_reward_{file.stem}", file)
    assert spec is not None  # the file ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    function = vars(module).get(NAME)
    if not callable(function):
        raise NameError(f"it defines no function {NAME}(prompt, completion, answer, **row)")
    return function


def _answer(function: Function, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        value = function(**arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of the user's code, which is told
        return {"wrong": f"raises {_told(error)}"}
    if not isinstance(value, Real):
        return {"wrong": f"returns {value!r:.60}, not a number"}
    if not math.isfinite(value):
        return {"wrong": f"returns {float(value)}"}
    return {"value": float(value)}


def _told(error: BaseException) -> str:
    """The error with the line of the user's code that raised it."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == sys.argv[2]:
            line = trace.tb_lineno
        trace = trace.tb_next
    place = f" in line {line}" if line else ""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}{place}" + (f" ({said[0][:200]})" if said else "")
