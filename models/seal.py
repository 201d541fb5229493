"""A seal on a folder: size and CRC-32 of every file in it, so that damage is detected before loading."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

SEAL = "seal.json"
UNSEALED = (SEAL, "_CHECKPOINT_METADATA")  # orbax writes the commit time into the latter, and does not need it


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNSEALED)


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def seal(folder: Path) -> None:
    """Writes the seal of a finished folder, replacing an existing one."""
    entries = {path.relative_to(folder).as_posix(): [path.stat().st_size, _crc(path)] for path in _files(folder)}
    temporary = folder / (SEAL + ".partial")
    temporary.write_text(json.dumps(entries), encoding="utf-8")
    os.replace(temporary, folder / SEAL)


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


def fault(folder: Path) -> str | None:
    """What is wrong with a sealed folder, as the end of a sentence; None if every file is unchanged."""
    path = folder / SEAL
    if not path.is_file():
        return "it has no seal, so it was never finished"
    entries = _entries(path)
    if not entries:
        return f"{SEAL} is damaged"
    for name, (size, crc) in entries.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
        if _crc(file) != crc:
            return f"{name} has changed since it was written"
    return None
