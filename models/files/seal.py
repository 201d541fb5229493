"""A seal on a folder: size and CRC-32 of every file in it, so that damage is detected before loading.

Files may be added beside what was sealed, but not in the folders inside, where orbax would read them.

Several files are read at the same time: reading and zlib do not hold Python's lock.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from scope_jax.files import FileNameError, inside, replaced

State = tuple[str, int, int]  # name, size and time of change of a file
Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = min(16, os.cpu_count() or 1)  # files that are read at the same time
SEAL = "seal.json"
UNSEALED = (SEAL, "_CHECKPOINT_METADATA")  # orbax writes the commit time into the latter, and does not need it

_whole: dict[Path, frozenset[State]] = {}  # folders that were whole, with their files


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNSEALED)


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """work(item) of each, in order; what has not begun when the caller stops asking is left undone."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="checksum")
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def seal(folder: Path) -> None:
    """Writes the seal of a finished folder, replacing an existing one."""
    files = _files(folder)
    pairs = _in_parallel(lambda path: [path.stat().st_size, _crc(path)], files)
    entries = {path.relative_to(folder).as_posix(): pair for path, pair in zip(files, pairs, strict=True)}
    with replaced(folder / SEAL) as temporary:
        temporary.write_text(json.dumps(entries), encoding="utf-8")


def digest(folder: Path) -> str:
    """A checksum of a model folder's weights: of its seal, or of its safetensors files.

    Raises FileNotFoundError with one sentence if it has neither.
    """
    files = [folder / SEAL] if (folder / SEAL).is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no weights (no safetensors file); give a model folder.")
    parts = [
        f"{path.name} {path.stat().st_size} {crc}" for path, crc in zip(files, _in_parallel(_crc, files), strict=True)
    ]
    return f"{zlib.crc32('; '.join(parts).encode()):08x}"


def _entries(path: Path) -> dict[str, tuple[int, int]]:
    """Size and checksum by file name from a seal; {} if the file is not a valid seal (a seal is never empty)."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}
    pairs = entries.values() if isinstance(entries, dict) else [None]
    if not all(isinstance(pair, list) and [type(part) for part in pair] == [int, int] for pair in pairs):
        return {}
    return {name: (size, crc) for name, (size, crc) in entries.items()}


def fault(folder: Path, sizes_only: bool = False) -> str | None:
    """What is wrong with a sealed folder, as the end of a sentence; None if every file is unchanged. sizes_only: files
    are not read."""
    path = folder / SEAL
    if not path.is_file():
        return "it has no seal, so it was never finished"
    entries = _entries(path)
    if not entries:
        return f"{SEAL} is damaged"
    for name in (each.relative_to(folder).as_posix() for each in _files(folder)):
        if "/" in name and name not in entries:
            return f"{name} was not written with it"
    faults = _in_parallel(lambda entry: _fault_of(folder, entry[0], *entry[1], sizes_only), entries.items())
    return next((found for found in faults if found is not None), None)


def unfit(folder: Path) -> str | None:
    """`fault`; a folder that was whole is not read again in this process unless a file of it has been written since."""
    now = frozenset(_states(folder))
    if _whole.get(folder) != now:
        if (wrong := fault(folder)) is not None:
            return wrong
        _whole[folder] = now
    return None


def _states(folder: Path) -> Iterator[State]:
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # the process that owns the folder may delete it meanwhile
            found = path.stat()
            yield str(path), found.st_size, found.st_mtime_ns


def _fault_of(folder: Path, name: str, size: int, crc: int, sizes_only: bool) -> str | None:
    try:
        file = inside(folder, name, folder / SEAL)
    except FileNameError:
        return f"{SEAL} names {name[:100]!r}, which is not in the folder"
    if not file.is_file():
        return f"{name} is missing"
    if file.stat().st_size != size:
        return f"{name} has {file.stat().st_size} bytes instead of {size}"
    if not sizes_only and _crc(file) != crc:
        return f"{name} has changed since it was written"
    return None
