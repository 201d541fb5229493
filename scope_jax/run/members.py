"""Files of JSON lines in which the lines of a step form one gzip member.

Such a file can be truncated after any step without being rewritten, and zcat can read it. Steps never decrease, and
every line has its own under "step".
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from scope_jax.errors import UserError, writing

GZIP = 31  # zlib's window bits for a gzip member
READ = 1 << 20  # bytes


def append(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Adds the records of one step; returns when they are on disk. Writes nothing if there are none."""
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    if not lines:
        return
    member = zlib.compress("".join(line + "\n" for line in lines).encode(), wbits=GZIP)
    with writing(path), path.open("ab") as file:
        file.write(member)
        file.flush()
        os.fsync(file.fileno())


def cut(path: Path, step: int | None) -> None:
    """Removes all steps after `step` and an incomplete gzip member at the end; None: everything.

    Raises UserError if a step before `step` is damaged.
    """
    with path.open("rb+") as file:
        end, last = 0, None
        try:
            for text, after in _members(file) if step is not None else ():
                here = json.loads(text.partition(b"\n")[0])["step"]
                if here > step:
                    break
                end, last = after, here
        except UserError:
            if last != step:  # otherwise all steps that are kept are whole
                raise
        file.truncate(end)
        os.fsync(file.fileno())


def mend(path: Path) -> None:
    """Removes an incomplete gzip member at the end, behind which nothing could be read. Raises UserError for damage."""
    with path.open("rb+") as file:
        end = 0
        for _, after in _members(file):
            end = after
        file.truncate(end)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records in order, none if there is no file; an incomplete end, as after a kill, is ignored. Raises UserError
    for damage."""
    if path.is_file():
        with path.open("rb") as file:
            for text, _ in _members(file):
                yield from map(json.loads, text.splitlines())


def _members(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """(text of a step, file offset where its member ends), up to an incomplete member at the end.

    Raises UserError for a member that is damaged.
    """
    rest, read, end = b"", 0, 0
    while True:
        inflate, text = zlib.decompressobj(wbits=GZIP), bytearray()
        while not inflate.eof:
            if not rest:
                rest = file.read(READ)
                read += len(rest)
            if not rest:
                return
            try:
                text += inflate.decompress(rest)
            except zlib.error:
                raise UserError(
                    f"{file.name} is damaged after byte {end}; move it away, or keep what is before with "
                    f"truncate --size={end}."
                ) from None
            rest = inflate.unused_data
        end = read - len(rest)
        yield bytes(text), end
