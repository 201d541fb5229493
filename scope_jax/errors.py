"""Distinguishes user errors (one sentence, exit code 2) from bugs (a traceback).

Our packages raise ValueError, FileNotFoundError, ConnectionError or a subclass with one sentence: what, where, what to
do. numpy and jax also raise ValueError if our own code is wrong; the file that raised it tells the two apart.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOME = Path(__file__).parents[1]
PACKAGES = tuple(HOME / name for name in ("scope_jax", "rollouts", "models", "retrieval", "sharding"))


class UserError(Exception):
    """An error that the user has to fix; the message is one sentence that says how."""


def is_users(error: BaseException) -> bool:
    """True for errors with a message for the user: a UserError, an OSError (files, connections), or our ValueError."""
    if isinstance(error, (UserError, OSError)):
        return True
    if not isinstance(error, ValueError):
        return False
    step = error.__traceback__
    if step is None:
        return False
    while step.tb_next is not None:
        step = step.tb_next
    source = Path(step.tb_frame.f_code.co_filename)
    return any(source.is_relative_to(package) for package in PACKAGES)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TENSORSTORE = re.compile(r"\[os_error_code='(\d+)'\]")


def disk_fault(error: BaseException) -> int | None:
    """The errno of an OSError or of tensorstore's ValueError; None for other errors."""
    if isinstance(error, OSError):
        return error.errno
    found = _TENSORSTORE.search(str(error))
    return int(found[1]) if found else None


def unwritten(path: Path | str, fault: int) -> UserError:
    """The error for a file or folder that could not be written."""
    remedy = "free some space" if fault in FULL else "fix the problem"
    return UserError(f"{path} could not be written ({os.strerror(fault)}); {remedy} and run the same command again.")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Converts a full disk in this block, or a system error without a file name, into a sentence with the path."""
    try:
        yield
    except (OSError, ValueError) as error:
        number = disk_fault(error)
        if number is None or (number not in FULL and (not isinstance(error, OSError) or error.filename)):
            raise
        raise unwritten(path, number) from None


def sentence(error: BaseException) -> str:
    """The error's message on one line, with a full stop; of a system error that names a file, what to do about it."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in FULL:
        return str(unwritten(error.filename or "a file", error.errno))
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename} cannot be used ({error.strerror}); correct the path or its permissions."
    return text if text.endswith((".", ")")) else text + "."
