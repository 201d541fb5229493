"""User errors (one sentence, exit code 2) and what turns faults of disks into them; everything else is a bug."""

from __future__ import annotations

import errno
import os
import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}) + ("<frozen",)
_PACKAGE = str(Path(__file__).parent)


def of_libraries(file: str) -> bool:
    """True for the file of a frame of Python's or an installed library, other than this package."""
    return file.startswith(_LIBRARIES) and not file.startswith(_PACKAGE)


def of_users_code(file: str) -> bool:
    """True for the file of a frame of neither a library nor this package."""
    return not file.startswith((*_LIBRARIES, _PACKAGE))


class UserError(ValueError):
    """An error that the user has to fix; the message is one sentence: what, where, what to do."""


def is_users(error: BaseException) -> bool:
    """True for errors with a message for the user: a UserError, or an OSError (files, connections)."""
    return isinstance(error, (UserError, OSError))


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


# What stands before the host of an address: a name, and perhaps a password, in which sloppy people write / and @ too.
# A colon may also be that of a port. pathlib writes one slash of two.
_USER = re.compile(r"(\w:/{1,2})(?:[^\s/?#@'\"]*:(?!\d*(?:[/?#,;)\s]|$))[^\s'\"]*|[^\s/?#'\"]*)@")


def without_passwords(text: str) -> str:
    """The text without the user names and passwords of the addresses in it."""
    return _USER.sub(r"\1", text)


def sentence(error: BaseException) -> str:
    """The error's message on one line, with a full stop and without passwords; of a system error that names a file,
    what to do about it."""
    text = without_passwords(" ".join(str(error).split()))
    if isinstance(error, OSError) and error.errno in FULL:
        return str(unwritten(error.filename or "a file", error.errno))
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename} cannot be used ({error.strerror}); correct the path or its permissions."
    return text if text.endswith((".", ")", "?")) else text + "."
