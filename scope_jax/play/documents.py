"""Documents for prompts: their text, truncated to or split by a number of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s*")
_LONGEST_WORD = 100  # characters; anything longer is a script without spaces, or not natural language
_REACH = 8  # characters per token within which the end of a segment is searched first; doubled if that is too few


def document_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """(key, text) of a document row: its id, and its text preceded by the title."""
    text = row["text"].strip()
    return row["id"], f"(Title: {row['title']})\n{text}" if row["title"] else text


def cut(text: str, limit: int, tokens: Callable[[str], int]) -> str:
    """The longest prefix of whole words with at most `limit` tokens (assuming that a longer text has more tokens).

    In a script without spaces it may end at any character.
    """
    if tokens(text) <= limit:
        return text
    ends: Sequence[int] = [0, *(match.end() for match in _WORD.finditer(text))]
    last = _last_fitting(text, ends, limit, tokens)
    if last + 1 < len(ends) and ends[last + 1] - ends[last] > _LONGEST_WORD:
        ends = range(ends[last], ends[last + 1])
        last = _last_fitting(text, ends, limit, tokens)
    return text[: ends[last]]


def _last_fitting(text: str, ends: Sequence[int], limit: int, tokens: Callable[[str], int]) -> int:
    """The last index in `ends` up to which the text has at most `limit` tokens; the first one is known to fit."""
    low, high = 0, len(ends)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(text[: ends[middle]]) <= limit else (low, middle)
    return low


GAP = "\n…\n"  # marks where text was removed


def without_middle(text: str, limit: int, tokens: Callable[[str], int]) -> str:
    """`text` truncated in the middle to at most `limit` tokens: half from its beginning, half from its end, in whole
    words, with a mark in between; the whole text if it fits (LongBench's truncation, SPELL App. C.2).

    Returns "" if `limit` leaves no room for text besides the mark.
    """
    if tokens(text) <= limit:
        return text
    room = limit - tokens(GAP)
    if room < 2:
        return ""
    head = cut(text, room // 2, tokens)
    starts: Sequence[int] = [*(match.start() for match in _WORD.finditer(text, len(head))), len(text)]
    first = _first_fitting(text, starts, room - tokens(head), tokens)
    if first > 0 and starts[first] - starts[first - 1] > _LONGEST_WORD:
        starts = range(starts[first - 1], starts[first] + 1)
        first = _first_fitting(text, starts, room - tokens(head), tokens)
    return f"{head.rstrip()}{GAP}{text[starts[first] :].rstrip()}"


def _first_fitting(text: str, starts: Sequence[int], limit: int, tokens: Callable[[str], int]) -> int:
    """The first index in `starts` from which the text has at most `limit` tokens; the last one is known to fit."""
    low, high = -1, len(starts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tokens(text[starts[middle] :]) <= limit else (middle, high)
    return high


def segments(text: str, limit: int, tokens: Callable[[str], int]) -> list[str]:
    """`text` split into consecutive segments, each the longest run of whole words with at most `limit` tokens.

    One segment if the whole text fits. A word that exceeds the limit by itself is split at any character. Takes time
    linear in the text: the tokenizer is never called on a part much longer than a segment.
    """
    text = text.strip()
    if tokens(text) <= limit:
        return [text]
    parts, place = [], 0
    while place < len(text):
        part = _first(text, place, limit, tokens)
        parts.append(part)
        place += len(part)
        place += len(_SPACE.match(text, place)[0])  # type: ignore[index]
    return parts


def _first(text: str, place: int, limit: int, tokens: Callable[[str], int]) -> str:
    """The segment that begins at `place`, the start of a word."""
    reach = _REACH * limit
    while place + reach < len(text) and tokens(text[place : place + reach]) <= limit:
        reach *= 2
    near = text[place : place + reach]
    if part := cut(near, limit, tokens).rstrip():
        return part
    return near[: max(_last_fitting(near, range(len(near) + 1), limit, tokens), 1)]
