"""Which errors are the user's (one sentence, exit code 2) and which are bugs (a traceback).

Other packages raise ValueError, FileNotFoundError, ConnectionError or a subclass with one sentence: what, where, what
to do. A ValueError also comes out of numpy or jax if our own code is wrong; the file that raised it distinguishes them.
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
    """Something only the person at the keyboard can put right; the message is one sentence that says how."""


def is_users(error: BaseException) -> bool:
    """True if `error` carries a sentence for the user: a UserError, an OSError (files, connections), our ValueError."""
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
    """The system's number of the fault behind an OSError or behind tensorstore's ValueError; None for other errors."""
    if isinstance(error, OSError):
        return error.errno
    found = _TENSORSTORE.search(str(error))
    return int(found[1]) if found else None


def unwritten(path: Path, fault: int) -> UserError:
    """What to say of a file or folder that could not be written."""
    remedy = "make room there" if fault in FULL else "see to it"
    return UserError(f"{path} could not be written ({os.strerror(fault)}); {remedy} and run the same command again.")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk in this block, or a fault of the system that names no file, becomes a sentence with the path."""
    try:
        yield
    except (OSError, ValueError) as error:
        number = disk_fault(error)
        if number is None or (number not in FULL and (not isinstance(error, OSError) or error.filename)):
            raise
        raise unwritten(path, number) from None


def sentence(error: BaseException) -> str:
    """The error's message on one line, with a full stop."""
    text = " ".join(str(error).split())
    return text if text.endswith((".", ")")) else text + "."
