"""The memory of this host: what a process could have, and what this one has."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

MEMINFO, STATUS, OWN = Path("/proc/meminfo"), Path("/proc/self/status"), Path("/proc/self/cgroup")
# What a group of processes may have and what it has (cgroup 2, and 1), with its name there for the pages of files that
# it can give back. A container sees its own group as the first one; others, such as a job of Slurm, lie below it.
GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available() -> int:
    """Bytes that this process could still have without swapping: of the machine, or of the groups that it belongs to
    if one has less. 0 where the operating system does not say."""
    found = [_field(MEMINFO, "MemAvailable:") * 1024]
    for first, limit, usage, cached in GROUPS:
        for folder in _own_groups(first):
            most = _number(folder / limit)
            if 0 < most < 2**60:  # no limit: "max", or a number near 2⁶³
                found.append(most - _number(folder / usage) + _field(folder / "memory.stat", cached))
    return max(0, min(found))


def free() -> int:
    """Bytes that a new process could have if this one were not there."""
    return available() + resident()


def total() -> int:
    """Bytes of the machine."""
    return _field(MEMINFO, "MemTotal:") * 1024


def limit() -> int:
    """Bytes that a process could have if it were alone: of the machine, or of the groups that it belongs to."""
    found = [total()]
    for first, most, _, _ in GROUPS:
        found += [size for folder in _own_groups(first) if 0 < (size := _number(folder / most)) < 2**60]
    return min(found)


def resident() -> int:
    """Bytes that this process has in memory; 0 where the operating system does not say."""
    return _field(STATUS, "VmRSS:") * 1024


def peak() -> int:
    """The most bytes that this process has had in memory; 0 where the operating system does not say."""
    return _field(STATUS, "VmHWM:") * 1024


def give_back() -> None:
    """Returns to the operating system what has been freed here and the C library keeps for later: of a cache, of an
    update or of a compilation most of it, as buffers below 32 MiB lie between others in its heap. Nothing where the
    library has no `malloc_trim`, which only glibc has. Takes about a tenth of a second for each GiB."""
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def _own_groups(first: Path) -> set[Path]:
    """The folder of all groups, and those of this process's group and of the groups around it that are there."""
    lines = OWN.read_text(encoding="utf-8").splitlines() if OWN.is_file() else []
    found = {first}
    for line in lines:
        _, kinds, place = line.split(":", 2)
        if kinds in ("", "memory"):
            inner = Path(place.lstrip("/"))
            found |= {first / one for one in (inner, *inner.parents)}
    return found


def _field(file: Path, name: str) -> int:
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def _number(file: Path) -> int:
    text = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    return int(text) if text.isdecimal() else 0
