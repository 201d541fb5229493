"""Which errors fail a rollout, and which end the run.

A rollout fails of what the code of others raises, which is the generator of a game in a file, an environment and a
program: its agents' turns are not trained, the reason names the place, and the run goes on. A tool that raises fails
nothing, as the policy reads why (`tool_execution`). The run ends of what the user has to mend (UserError), of a game
that asks for what there is not (RolloutError), of MemoryError and interrupts, and of a bug: whatever this package
raises itself. What a clean-up raises is shown, and neither fails a rollout nor hides the error that has ended the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from traceback import walk_tb

from scope_jax.errors import UserError, of_libraries, of_users_code
from scope_jax.play.rollouts import Failed, Interaction
from scope_jax.play.tool_calls import ToolError
from scope_jax.rollouts.types import RolloutError
from scope_jax.web.exchange import whole

END_RUN = (UserError, RolloutError, MemoryError, KeyboardInterrupt)
LEAST = 20  # rollouts of a call that end the run if all of them fail
_PACKAGE = __name__.partition(".")[0]


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Has an error of this block, which calls the code of others and nothing else, fail the rollout. what: the
    beginning of a sentence, such as "the environment Walk.step raised"."""
    try:
        yield
    except (Failed, GeneratorExit, *END_RUN):
        raise
    except BaseException as error:
        raise failed(error, what) from error


def failed(error: BaseException, what: str) -> Failed:
    """The failure for an error: `what`, the error, and the place in the code that raised it. Raises the error itself if
    it ends the run."""
    if isinstance(error, END_RUN):
        raise error
    if isinstance(error, Failed):
        return error
    line = " ".join(str(error).split())[:400]
    frames = [(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__)]
    theirs = [place for place in frames if of_users_code(place[0])]
    place = f" ({Path(theirs[-1][0]).name}, line {theirs[-1][1]})" if theirs else ""
    return Failed(whole(f"{what} {type(error).__name__}{': ' if line else ''}{line}{place}"))


def is_bug(error: BaseException, generator: object) -> bool:
    """Whether an error was raised by this package, or by a library that it called, and not by the code of a
    generator."""
    if isinstance(error, ToolError | TimeoutError):  # of the context's functions, which a generator may catch
        return False
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    code = generator.gi_code if inspect.isgenerator(generator) else None
    below = [*dropwhile(lambda frame: frame.f_code is not code, frames)] or frames
    modules = [(frame.f_globals.get("__name__", "").partition(".")[0], frame.f_code.co_filename) for frame in below]
    own = [name == _PACKAGE for name, file in modules if name == _PACKAGE or not of_libraries(file)]
    return bool(own) and own[-1]


def check_failures(role: str, groups: Sequence[Sequence[Interaction]]) -> None:
    """Raises UserError if all rollouts of a call have failed, and they are LEAST or more."""
    reasons = [each.failed for group in groups for each in group]
    if len(reasons) >= LEAST and all(reasons):
        raise UserError(
            f"all {len(reasons)} rollouts of the role {role!r} failed, the first because {reasons[0].rstrip('.')}; "
            "mend that, then run the same command again."
        )
