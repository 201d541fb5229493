"""Documents that a policy reads: their text, and segments of it measured in tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s*")
_LONGEST_WORD = 100  # characters; what is longer is a script without spaces, or no language at all
_REACH = 8  # characters for a token in which the end of a segment is looked for first; more where that is not enough


def document_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """(key, text) of a document row: its id, and its text with the title in front."""
    text = row["text"].strip()
    return row["id"], f"(Title: {row['title']})\n{text}" if row["title"] else text


def cut(text: str, limit: int, tokens: Callable[[str], int]) -> str:
    """The longest beginning of whole words that has at most `limit` tokens (lengths grow with the text).

    Where a script has no spaces it ends at any character.
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
    """The last place in `ends`, of which the first fits, at which the text so far has at most `limit` tokens."""
    low, high = 0, len(ends)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(text[: ends[middle]]) <= limit else (low, middle)
    return low


GAP = "\n…\n"  # stands for what was taken out of a text


def without_middle(text: str, limit: int, tokens: Callable[[str], int]) -> str:
    """`text` with at most `limit` tokens: the first half of them from its beginning, the others from its end, in whole
    words, with a mark in between; the whole text if it fits (LongBench's truncation, SPELL App. C.2).

    Of a `limit` that has no room for more than the mark nothing is left.
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
    """The first place in `starts`, of which the last fits, from which on the text has at most `limit` tokens."""
    low, high = -1, len(starts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tokens(text[starts[middle] :]) <= limit else (middle, high)
    return high


def segments(text: str, limit: int, tokens: Callable[[str], int]) -> list[str]:
    """`text` in parts that follow each other, each the longest of whole words with at most `limit` tokens.

    The whole text if it fits. A word that does not fit by itself is cut at any character. The time is linear in the
    text: no part of it is measured that is much longer than a segment.
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
    """The segment that begins at `place`, where a word does."""
    reach = _REACH * limit
    while place + reach < len(text) and tokens(text[place : place + reach]) <= limit:
        reach *= 2
    near = text[place : place + reach]
    if part := cut(near, limit, tokens).rstrip():
        return part
    return near[: max(_last_fitting(near, range(len(near) + 1), limit, tokens), 1)]
