"""The lines of the files that a run writes: JSON objects with a "step", each with a check sum.

    {"step": 3, "solver/reward": 0.4, "sum": "5f1d08c2"}

"sum", the last key, is the CRC-32 of the line before this key, continued from the sum of the line before
(`zlib.crc32(text, before)`, 0 before the first): a line that is changed, lost, doubled or in another place does not fit
its own sum or that of the next line. A CRC finds damage, not forgery; it is cheaper than parsing the line, as short as
a sum can be, and continues from the last line alone. Lines without a sum are those of runs before there were sums; they
are at the beginning of a file, and the first sum after them covers them.

In a compressed file the lines of a step form one gzip member: it can be cut after any step without being rewritten, and
zcat can read it. Steps never decrease. What is incomplete at the end of a file is what a kill leaves, and is no line.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from scope_jax.errors import UserError
from scope_jax.web.exchange import whole

LONGEST_LINE = 64 << 20  # bytes
DEEPEST = 100  # nested lists and objects of a record
LAST_STEP = 2**53  # steps are drawn as floats
GZIP = 31  # zlib's window bits for a gzip member
READ = 1 << 20  # bytes

Record = dict[str, Any]
_DECODER = json.JSONDecoder(parse_constant=lambda name: None)  # NaN and infinities are null, as in what a run writes
_SUM = re.compile(rb', "sum": "([0-9a-f]{8})"}')
_SUM_LENGTH = len(b', "sum": "00000000"}')
_STEP = re.compile(rb'{"step": (\d{1,15})[,}]')


class DamagedFile(UserError):
    """A file is not as it was written; the message is one sentence with file, line and remedy."""


@dataclass(frozen=True)
class Extent:
    """How far a file goes."""

    lines: int = 0
    """Their number."""
    sum: int = 0
    """Of the last one."""

    def plain(self) -> list[int]:
        """What it can be made of again."""
        return [self.lines, self.sum]


Extents = Mapping[str, Sequence[int]]  # `Extent.plain` of the files of a run by name


@dataclass(frozen=True)
class Line:
    """A line that is as it was written."""

    text: bytes
    """JSON, without the sum."""
    place: str
    """For sentences: "line 3 of FILE"."""
    extent: Extent
    """Of the file up to this line."""
    end: int | None
    """The number of bytes of the file up to this line; None within a step of a compressed file."""
    summed: bool
    """Whether it has a sum."""


# -------------------------------------------------------------------------------------------------------------- writing
def summed(records: Iterable[Mapping[str, Any]], extent: Extent) -> tuple[bytes, Extent]:
    """(the records as lines that follow a file of this extent, its extent with them). Half characters, which no file
    holds, become U+FFFD. Raises UserError for a record that no reader would take."""
    lines: list[bytes] = []
    value = extent.sum
    for record in records:
        body = whole(json.dumps(record, ensure_ascii=False)).encode()[:-1]
        if len(body) + _SUM_LENGTH > LONGEST_LINE:
            raise UserError(
                f"a record of {len(body) >> 20} MiB does not fit into a line of a run's files, which may have "
                f"{LONGEST_LINE >> 20} MiB; let the game or its tools return less."
            )
        value = zlib.crc32(body, value)
        lines.append(b'%b, "sum": "%08x"}\n' % (body, value))
    return b"".join(lines), Extent(extent.lines + len(lines), value)


def compressed(text: bytes) -> bytes:
    """The lines of a step as they are in a compressed file."""
    return zlib.compress(text, wbits=GZIP)


# -------------------------------------------------------------------------------------------------------------- reading
def read(path: Path, remedy: str) -> Iterator[Line]:
    """The lines of a file in order, none if there is no file. remedy: what to do about damage, as a clause.

    Raises DamagedFile for what is not as it was written.
    """
    if not path.is_file():
        return
    number, value, has_sums = 0, 0, False
    try:
        with path.open("rb") as file:
            for raw in _unpacked(file) if path.suffix == ".gz" else _plain(file):
                number += 1
                place = f"line {number} of {path}"
                if len(raw.text) > LONGEST_LINE:
                    raise DamagedFile(f"{place} is longer than {LONGEST_LINE >> 20} MiB; {remedy}.")
                match = _SUM.fullmatch(raw.text, max(len(raw.text) - _SUM_LENGTH, 0))
                body = raw.text[: match.start()] if match else raw.text[:-1]
                value = zlib.crc32(body, value)
                if has_sums and not match:
                    raise DamagedFile(f"{place} is damaged: it has no check sum, as those before it have; {remedy}.")
                if match and int(match[1], 16) != value:
                    raise DamagedFile(
                        f"{place} does not fit its check sum: it was changed, or one before it was changed, lost, "
                        f"doubled or moved; {remedy}."
                    )
                has_sums = match is not None
                if raw.complete:
                    text = body + b"}" if match else raw.text
                    yield Line(text, place, Extent(number, value), raw.end, has_sums)
    except zlib.error:
        raise DamagedFile(
            f"line {number + 1} of {path}, or one of the same step, is damaged and cannot be unpacked; {remedy}."
        ) from None


class _Raw(NamedTuple):
    """A line without its end. complete: it is not in a gzip member that breaks off; end: as in `Line`."""

    text: bytes
    end: int | None
    complete: bool = True


def _plain(file: BinaryIO) -> Iterator[_Raw]:
    end = 0
    while line := file.readline(LONGEST_LINE + 2):
        end += len(line)
        if line.endswith(b"\n") or len(line) > LONGEST_LINE:
            yield _Raw(line.removesuffix(b"\n"), end)


def _unpacked(file: BinaryIO) -> Iterator[_Raw]:
    """The lines of a compressed file. Raises zlib.error for a member that is damaged."""
    with open(file.name, "rb") as again:
        for member in _members(file):
            blocks = [member.head] if member.whole else _Inflater(again, member.begin).blocks()
            before: bytes | None = None
            for line in _split(blocks, member.end is not None):
                if before is not None:
                    yield _Raw(before, None, member.end is not None)
                before = line
            if before is not None:
                yield _Raw(before, member.end, member.end is not None)


def _split(blocks: Iterable[bytes], complete: bool) -> Iterator[bytes]:
    """The lines of a member's text; what is left without an end is a line if the member is complete, or too long."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
        if len(rest) > LONGEST_LINE:
            break
    if rest and (complete or len(rest) > LONGEST_LINE):
        yield rest


@dataclass(frozen=True)
class _Member:
    """A step. begin, end: offsets in the file, no end if it breaks off; head: its text, or the beginning of it."""

    begin: int
    end: int | None
    head: bytes
    whole: bool


class _Inflater:
    """Inflates members one after the other, in bounded memory. offset: in the file, where the next one begins."""

    def __init__(self, file: BinaryIO, offset: int = 0) -> None:
        self._file, self.offset, self._rest = file, offset, b""
        file.seek(offset)

    def blocks(self) -> Iterator[bytes]:
        """The text of the next member; `offset` is then behind it, or where it was if it breaks off."""
        inflate, used = zlib.decompressobj(wbits=GZIP), self.offset
        while not inflate.eof:
            self._rest = self._rest or self._file.read(READ)
            text = inflate.decompress(self._rest, READ)
            if not self._rest and not text:
                return
            left = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            used += len(self._rest) - len(left)
            self._rest = left
            yield text
        self.offset = used


def _members(file: BinaryIO) -> Iterator[_Member]:
    inflater, begin = _Inflater(file), -1
    while begin != inflater.offset:
        begin, head, size = inflater.offset, bytearray(), 0
        for text in inflater.blocks():
            size += len(text)
            head += text[: LONGEST_LINE + 1 - len(head)]
        end = inflater.offset if inflater.offset != begin else None
        if end is not None or head:
            yield _Member(begin, end, bytes(head), size == len(head))


def step_of(line: Line, remedy: str) -> int:
    """The step of a line. Raises as `parsed`."""
    match = _STEP.match(line.text) if line.summed else None
    return int(match[1]) if match else parsed(line, remedy)["step"]


def is_count(value: Any) -> bool:
    """True for a whole number that may count steps."""
    return type(value) is int and 0 <= value < LAST_STEP


def parsed(line: Line, remedy: str) -> Record:
    """The record in a line. Raises DamagedFile unless it is an object with a step, which a line without a sum may not
    be."""
    try:
        record = _DECODER.decode(line.text.decode("utf-8"))
        deep = _is_deep(line.text, record)
    except RecursionError:
        record, deep = None, True
    except ValueError:
        raise DamagedFile(f"{line.place} is not valid JSON; {remedy}.") from None
    if deep:
        raise DamagedFile(f"{line.place} is nested too deeply; {remedy}.")
    if not isinstance(record, dict) or not is_count(record.get("step")):
        raise DamagedFile(f"{line.place} is not a record of a step; {remedy}.")
    return record


def _is_deep(line: bytes, record: Any) -> bool:
    if line.count(b"[") + line.count(b"{") <= DEEPEST:
        return False
    level = [record]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for value in level:
            below += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        level = below
    return any(isinstance(value, dict | list) for value in level)
