"""The traceback of an error that is no user error, from where it tells something.

The command line's own frames are left out, and those before the first one of the user's code, if there is any.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType

import typer

from scope_jax.errors import of_libraries, of_users_code

BELOW = (str(Path(typer.__file__).parent), str(Path(__file__).with_name("program.py")))  # frames of the command line


def culprit(error: BaseException) -> str:
    """Where the user's code raised an error, "game.py, line 12"; "" if this package or a library that it called did."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not of_libraries(frame.filename)]
    last = frames[-1] if frames else None
    return f"{last.filename}, line {last.lineno}" if last is not None and of_users_code(last.filename) else ""


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an error's traceback, as `sys.excepthook`."""
    report = traceback.TracebackException(kind, error, trace)
    part: traceback.TracebackException | None = report
    while part is not None:
        part.stack = _telling(part.stack)
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    print("".join(report.format()), end="", file=sys.stderr)


def _telling(stack: traceback.StackSummary) -> traceback.StackSummary:
    above = [place for place, frame in enumerate(stack, start=1) if frame.filename.startswith(BELOW)]
    frames = stack[max(above, default=0) :]
    theirs = next((place for place, frame in enumerate(frames) if of_users_code(frame.filename)), 0)
    return traceback.StackSummary.from_list(frames[theirs:])
