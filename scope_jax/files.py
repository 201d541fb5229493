"""Files by names that others gave, and files that several processes may write at the same time.

Every name from a bucket's listing, an index, a manifest, a seal or any other file of data passes `inside` before it is
joined to a folder. Only the standard library is used, so that every package may import this one.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import secrets
import time
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scope_jax.errors import UserError, writing

LONGEST_NAME, LONGEST_PATH = 255, 1024  # bytes of one part and of a whole name: what file systems and buckets allow
PARTIAL = ".partial"  # suffix of files that this or another process is writing
_LEFT_OVER = re.compile(r".*\.\d+-[0-9a-f]{8}\.partial", re.DOTALL)  # what `partial_of` gives
STALE = 86_400.0  # seconds without a write after which such a file is one of a killed process
_CONTROL = ("Cc", "Cs", "Zl", "Zp")  # Unicode categories: control characters, half surrogate pairs, line separators


class FileNameError(UserError):
    """A name that does not lead to a file in its folder; one sentence says who gave it and what to do."""


# ------------------------------------------------------------------------------------------------------ names of others
def inside(folder: Path, name: object, source: object) -> Path:
    """The path of `name` in a folder, where `source` gives the name.

    Raises FileNameError unless `name` is a relative path, with / between its parts, that stays in the folder: no part
    is empty, . or .., none is reached through a link that leaves the folder, and there is no control character,
    backslash or drive. The file itself may be a link, as in the cache of the Hugging Face hub.
    """
    wrong = _wrong(name)
    if wrong is None:
        above = (folder / str(name)).parent
        try:
            leaves = above != folder and not above.resolve().is_relative_to(folder.resolve())
            above.stat()
        except FileNotFoundError:
            pass
        except (
            OSError,
            RuntimeError,
        ):  # links that lead to each other, of which resolve says nothing since Python 3.13
            leaves = True
        wrong = "it is behind a link that leaves the folder" if leaves else None
    if wrong is not None:
        raise FileNameError(
            f"{source} names {_shown(name)}, which is not a file in the same folder ({wrong}); correct it there."
        )
    return folder / str(name)


def all_inside(folder: Path, names: Iterable[str], source: object) -> dict[str, Path]:
    """The path of every name, as `inside`, where they may be in the folder together.

    Raises FileNameError if one is a file and a folder at once, as `a` and `a/b`, or if two differ only in case or in
    the composition of characters and the folder's file system takes them for one.
    """
    places = {name: inside(folder, name, source) for name in names}
    alike: dict[str, str] = {}
    for name in places:
        for above in _above(name):
            if above in places:
                raise FileNameError(
                    f"{source} has both {_shown(above)} and {_shown(name)}, so {_shown(above)} would be a file and a "
                    "folder at once; rename one of them there."
                )
        other = alike.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name and _folds_case(folder):
            raise FileNameError(
                f"{source} has both {_shown(other)} and {_shown(name)}, which are one file in {folder}; rename one of "
                "them there, or use a folder that tells upper from lower case."
            )
    return places


def _wrong(name: object) -> str | None:
    """What is wrong with a name by itself, as a clause; None if nothing is."""
    if not isinstance(name, str):
        return "it is not text"
    if any(unicodedata.category(character) in _CONTROL for character in name):
        return "it has control characters"
    if "\\" in name or re.match(r"[A-Za-z]:", name):
        return "it has a backslash or a drive"
    if name.startswith("/"):
        return "it is an absolute path"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "it has an empty part, . or .. in it"
    if len(name.encode()) > LONGEST_PATH or any(len(part.encode()) > LONGEST_NAME for part in parts):
        return "it is too long"
    return None


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text)} characters)"


def _above(name: str) -> Iterator[str]:
    place = name.rfind("/")
    while place > 0:
        yield name[:place]
        place = name.rfind("/", 0, place)


def _folds_case(folder: Path) -> bool:
    """True if the folder's file system does not tell upper from lower case."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".case-{secrets.token_hex(8)}"
    probe.touch()
    try:
        return probe.with_name(probe.name.upper()).exists()
    finally:
        probe.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------------- writing of files
def partial_of(path: Path) -> Path:
    """Where a file is written before it gets its name: every call gives another one. Other processes may write the same
    file, also on other hosts that share the folder, where process ids may be equal."""
    base = os.fsencode(path.name)[:200].decode(errors="ignore")
    return path.with_name(f"{base}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")


def is_partial(path: Path) -> bool:
    """True for a file that a process is writing, or left behind."""
    return path.suffix == PARTIAL


def remove_stale(folder: Path) -> None:
    """Removes what killed processes have left in a folder: partial files that nobody has written to for a day."""
    try:
        entries = [entry for entry in os.scandir(folder) if _LEFT_OVER.fullmatch(entry.name)]
    except OSError:  # no such folder
        return
    for entry in entries:
        try:
            if entry.is_file(follow_symlinks=False) and time.time() - entry.stat().st_mtime > STALE:
                os.unlink(entry.path)
        except FileNotFoundError:  # another process removes them, too
            continue


_remove_stale_once = functools.cache(remove_stale)  # in each folder once a process: a listing for every file costs


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary name of this process beside `path`, which takes its place at the end: others see the file whole or
    not at all, and never a mixture of two."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale_once(path.parent)
    partial = partial_of(path)
    try:
        with writing(path):
            yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Holds the lock on an output while it is made; the lock is a file beside it that goes with the lock.

    Raises UserError if another process holds it. On file systems without locks nothing is held: there the output is
    that of the process that ends last, whole, see `replaced`.
    """
    path = Path(os.path.abspath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.with_name(f".{os.fsencode(path.name)[:200].decode(errors='ignore')}.lock")
    handle = _locked(place, path)
    try:
        yield
    finally:
        if handle is not None:
            place.unlink(missing_ok=True)  # before it is unlocked: whoever waits for it then sees that it is gone
            os.close(handle)


def _locked(place: Path, path: Path) -> int | None:
    """The locked file at `place`; None on a file system without locks."""
    while True:
        handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise UserError(f"another process is writing {path}; wait for it, or choose another place.") from None
        except OSError:
            os.close(handle)
            return None
        try:
            if os.path.samestat(os.fstat(handle), os.stat(place)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # the one who had it has removed it
