"""Files of JSON lines in which the lines of a step form one gzip member.

Such a file can be truncated after any step without being rewritten, and zcat can read it. Steps never decrease, and
every line has its own under "step".
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from scope_jax.errors import UserError, writing
from scope_jax.run.records import LONGEST_LINE, Fields, parsed, where, within_bounds

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
            for member in _members(file) if step is not None else ():
                first = member.head.partition(b"\n")[0]
                here = parsed(within_bounds(first, f"a line of {path}"), f"a line of {path}")["step"]
                if here > step:
                    break
                end, last = member.end, here
        except UserError:
            if last != step:  # otherwise all steps that are kept are whole
                raise
        file.truncate(end)
        os.fsync(file.fileno())


def mend(path: Path) -> None:
    """Removes an incomplete gzip member at the end, behind which nothing could be read. Raises UserError for damage."""
    with path.open("rb+") as file:
        end = 0
        for member in _members(file):
            end = member.end
        file.truncate(end)


def read(path: Path, fields: Fields | None = None) -> Iterator[dict[str, Any]]:
    """The records in order, none if there is no file; an incomplete end, as after a kill, is ignored. fields: what
    every record must have. Raises UserError for damage, and for a record that is none."""
    if not path.is_file():
        return
    number = 0
    with path.open("rb") as file, path.open("rb") as again:
        for member in _members(file):
            for line in _lines([member.head] if member.whole else _Reader(again, member.begin).blocks(), path, number):
                number += 1
                yield parsed(line, where(number, path), fields)


def _lines(blocks: Iterable[bytes], path: Path, number: int) -> Iterator[bytes]:
    """The lines of a step's text. number: of the lines before them. Raises UserError for one that is too long."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            number += 1
            if line:
                yield within_bounds(line, where(number, path))
        within_bounds(rest, where(number + 1, path))
    if rest:
        yield rest


@dataclass(frozen=True)
class _Member:
    """A step. begin, end: offsets in the file; head: its text, the beginning of it unless it is `whole`."""

    begin: int
    end: int
    head: bytes
    whole: bool


class _Reader:
    """Inflates members one after the other, in bounded memory. offset: in the file, where the next one begins."""

    def __init__(self, file: BinaryIO, offset: int = 0) -> None:
        self._file, self.offset, self._rest = file, offset, b""
        file.seek(offset)

    def blocks(self) -> Iterator[bytes]:
        """The text of the next member; `offset` is then behind it, or where it was if it is incomplete.

        Raises UserError for one that is damaged.
        """
        inflate, used = zlib.decompressobj(wbits=GZIP), self.offset
        while not inflate.eof:
            self._rest = self._rest or self._file.read(READ)
            try:
                text = inflate.decompress(self._rest, READ)
            except zlib.error:
                raise UserError(
                    f"{self._file.name} is damaged after byte {self.offset}; move it away, or keep what is before with "
                    f"truncate --size={self.offset}."
                ) from None
            if not self._rest and not text:
                return
            left = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            used += len(self._rest) - len(left)
            self._rest = left
            yield text
        self.offset = used


def _members(file: BinaryIO) -> Iterator[_Member]:
    """The steps of a file, up to an incomplete one at the end. Raises UserError for one that is damaged."""
    reader, begin = _Reader(file), -1
    while begin != reader.offset:
        begin, head, size = reader.offset, bytearray(), 0
        for text in reader.blocks():
            size += len(text)
            head += text[: LONGEST_LINE + 1 - len(head)]
        if begin != reader.offset:
            yield _Member(begin, reader.offset, bytes(head), size == len(head))
