"""The lines of the files that a run writes: JSON objects with a "step", plain or compressed.

What is read back and not as it was written ends in one sentence with its file and number. In a compressed file the
lines of a step form one gzip member: it can be truncated after any step without being rewritten, and zcat can read it.
Steps never decrease, and every line has its own under "step".
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from scope_jax.errors import UserError, writing

LONGEST_LINE = 64 << 20  # bytes
DEEPEST = 100  # nested lists and objects of a record
LAST_STEP = 2**53  # steps are drawn as floats

Record = dict[str, Any]
Fields = Mapping[str, tuple[str, Callable[[Any], bool]]]  # by name: what the value must be, in words and as a test
_DECODER = json.JSONDecoder(parse_constant=lambda name: None)  # NaN and infinities are null, as in what a run writes


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) < math.inf and abs(value) <= 1.7e308)


def _is_values(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) or _is_number(one) for one in value.values())


def _is_measures(value: Any) -> bool:
    numbers = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(one, int | float) and abs(one) <= 1e100 for one in numbers)


def _is_listed(value: Any, *names: str) -> bool:
    """True for a list of objects in which these names have texts."""
    items = value if isinstance(value, list) else [None]
    return all(isinstance(item, dict) and all(isinstance(item.get(name), str) for name in names) for item in items)


def _is_told(value: Any) -> bool:
    """True for what an episode may say about itself."""
    if not isinstance(value, dict) or not _is_listed(value.get("turns", []), "kind", "text"):
        return False
    if "setting" not in value:
        return True
    at = value.get("at", value.get("since"))
    return isinstance(value["setting"], str) and isinstance(value.get("by"), str) and "value" in value and _is_count(at)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LAST_STEP


TEXT = ("a text", lambda value: isinstance(value, str))
COUNT = ("a whole number", _is_count)
NUMBER = ("a number or null", _is_number)
VALUES = ("an object of numbers and texts", _is_values)
MEASURES = ("an object of numbers up to 1e100", _is_measures)  # their squares are summed
TABLE = ("an object", lambda value: isinstance(value, dict))
LIST = ("a list", lambda value: isinstance(value, list))
FLAG = ("true or false", lambda value: isinstance(value, bool))
TOLD = ("an object with the turns of an episode", _is_told)
REPLIES = ("a list of replies", lambda value: _is_listed(value, "text", "refused"))
ANYTHING = ("there", lambda value: True)
EPISODE: Fields = {
    "role": TEXT,
    "group": TEXT,
    "reward": NUMBER,
    "parts": VALUES,
    "advantage": NUMBER,
    "trained": FLAG,
    "tokens": COUNT,
    "sampled": COUNT,
    "text": TOLD,
}


def lines(file: BinaryIO, name: object) -> Iterator[tuple[str, bytes]]:
    """("line 3 of FILE", the line) of each line of an open file. Raises UserError for one that is too long."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        yield where(number, name), within_bounds(line, where(number, name))


def where(number: int, name: object) -> str:
    return f"line {number} of {name}"


def within_bounds(line: bytes, place: str) -> bytes:
    """The line, if it is not too long; raises UserError otherwise."""
    if len(line) > LONGEST_LINE:
        raise UserError(f"{place} is longer than {LONGEST_LINE >> 20} MiB; remove the line.")
    return line


def parsed(line: bytes, place: str, fields: Fields | None = None) -> Record:
    """The record of a step in a line. fields: what it must have besides. Raises UserError for anything else."""
    try:
        record = _DECODER.decode(line.decode("utf-8"))
        deep = _is_deep(line, record)
    except RecursionError:
        record, deep = None, True
    except ValueError:
        raise UserError(f"{place} is not valid JSON; remove the line.") from None
    if deep:
        raise UserError(f"{place} is nested too deeply; remove the line.")
    if not isinstance(record, dict) or not _is_count(record.get("step")):
        raise UserError(f"{place} is not a record of a step; remove the line.")
    check(record, place, fields or {})
    return record


def check(record: Record, place: str, fields: Fields) -> None:
    """Raises UserError for a record that lacks one of the fields."""
    for name, (words, fits) in fields.items():
        if name not in record or not fits(record[name]):
            raise UserError(f"{place} has no {name} that is {words}; remove the line, or the file.")


def episode(line: bytes, place: str) -> Record:
    """The record of a line of episodes.jsonl. Raises as `parsed`."""
    return parsed(line, place, EPISODE)


def metrics(line: bytes, place: str) -> Record:
    """The record of a line of metrics.jsonl, whose values are numbers or null. Raises as `parsed`."""
    record = parsed(line, place)
    for name, value in record.items():
        if not _is_number(value):
            raise UserError(f"{place} has a value of {name[:100]!r} that is not a number; remove the line.")
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


# ----------------------------------------------------------------------------------------------------- compressed files
GZIP = 31  # zlib's window bits for a gzip member
READ = 1 << 20  # bytes


def append_step(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Adds the records of one step; returns when they are on disk. Writes nothing if there are none."""
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    if not lines:
        return
    member = zlib.compress("".join(line + "\n" for line in lines).encode(), wbits=GZIP)
    with writing(path), path.open("ab") as file:
        file.write(member)
        file.flush()
        os.fsync(file.fileno())


def cut_steps(path: Path, step: int | None) -> None:
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


def read_steps(path: Path, fields: Fields | None = None) -> Iterator[dict[str, Any]]:
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
