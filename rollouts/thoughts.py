"""Thinking in the text of a policy: the span between an opening and a closing mark, and stop strings outside it."""

from __future__ import annotations

from collections.abc import Sequence

Marks = tuple[str, str]  # opening and closing mark of thinking
THOUGHT: Marks = ("<think>", "</think>")
Places = tuple[tuple[int, int], ...]  # [start, end) of each span of thinking, its marks included, in order


def thoughts(text: str, marks: Marks, opened: bool = False) -> Places:
    """The spans of thinking in `text`. A span ends at the first closing mark, or at the end of the text.

    opened: thinking was opened before the text begins, as the prompts of some chat templates do. The same is assumed of
    a text whose first mark is a closing one, since whatever passes on a reply may leave out the opening mark.
    """
    begin, end = marks
    first = text.find(end)
    within = opened or (first >= 0 and text.find(begin, 0, first) < 0)
    start = 0 if within else text.find(begin)
    places = []
    while start >= 0:
        close = text.find(end, start if within else start + len(begin))
        stop = len(text) if close < 0 else close + len(end)
        places.append((start, stop))
        start, within = text.find(begin, stop), False
    return tuple(places)


def blanked(text: str, places: Places) -> str:
    """`text` with the characters of `places` replaced by spaces; every other character keeps its position."""
    pieces, last = [], 0
    for start, stop in places:
        pieces += [text[last:start], " " * (stop - start)]
        last = stop
    return "".join([*pieces, text[last:]])


class StopStrings:
    """Detects, as the bytes of a turn arrive, when they complete a stop string outside thinking.

    marks: the marks of thinking, None if there is no thinking. opened: the turn starts inside thinking.
    """

    def __init__(self, stops: Sequence[str], marks: Marks | None, opened: bool) -> None:
        self._stops = tuple(text.encode() for text in stops)
        self._begin, self._end = (mark.encode() for mark in marks or ("", ""))
        self._reach = max(map(len, (*self._stops, self._begin, self._end)))
        self._within = opened and marks is not None
        self._seen = b""  # last bytes of the turn, as far back as a string or mark may begin

    def completed_by(self, new: bytes) -> bool:
        """True if the next bytes of the turn complete a stop string."""
        # The earlier bytes contain no complete string or mark, so any match extends into the new bytes.
        seen = self._seen + new
        while True:
            sought = self._end if self._within else self._begin
            mark = seen.find(sought) if sought else -1
            if not self._within and any(seen.find(stop, 0, mark if mark >= 0 else None) >= 0 for stop in self._stops):
                return True
            if mark < 0:
                self._seen = seen[max(0, len(seen) - self._reach + 1) :]
                return False
            seen, self._within = seen[mark + len(sought) :], not self._within
