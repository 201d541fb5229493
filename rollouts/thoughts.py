"""Thoughts in what a policy says: the places of a text that lie between an opening and a closing mark."""

from __future__ import annotations

Marks = tuple[str, str]  # what opens a thought, and what closes it
Places = tuple[tuple[int, int], ...]  # [start, end) of each thought, its marks included, in order


def thoughts(text: str, marks: Marks, opened: bool = False) -> Places:
    """Where `text` thinks. A thought ends at the first closing mark; one that is never closed goes on to the end.

    opened: what stands before the text opened a thought already, as the prompts of some chat templates do. A text whose
    first mark is a closing one is taken for such a text also without it, for whoever passes a reply on may leave the
    opening mark out.
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
    """`text` with the characters of `places` as spaces; every other character stays where it was."""
    pieces, last = [], 0
    for start, stop in places:
        pieces += [text[last:start], " " * (stop - start)]
        last = stop
    return "".join([*pieces, text[last:]])
