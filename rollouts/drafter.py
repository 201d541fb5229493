"""Drafts tokens by copying what followed the same tokens before: in the row itself, in turns of its group that are
over, and in those of its role (prompt lookup; Saxena 2023). On the host; what it proposes decides when tokens are
sampled, never which."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from scope_jax.rollouts.episodes import ActiveEpisode

LONGEST, SHORTEST = 8, 2  # tokens of an end that is looked for
PLACES = 64  # most places of a text, the latest first, at which the last two tokens stand
MOST = 2**19  # tokens of all turns that are kept; each takes 50 to 170 bytes


class Text:
    """Token ids in which ends are looked for. Every place is linked to the one before with the same two tokens."""

    def __init__(self) -> None:
        self.ids = array("i")
        self._before = array("i")
        self._last: dict[tuple[int, int], int] = {}

    def add(self, ids: Iterable[int]) -> None:
        """Puts tokens behind the others."""
        for id in ids:
            pair = self.ids[-1] if self.ids else -1, id
            self._before.append(self._last.get(pair, -1))
            self._last[pair] = len(self.ids)
            self.ids.append(id)

    def find(self, end: Sequence[int]) -> tuple[int, int]:
        """(how many of the last tokens of `end`, SHORTEST to LONGEST, stand together in the text, followed by
        something; the place behind them): the most there are, and of these places the latest; (0, 0) if there are
        fewer."""
        best, after = 0, 0
        place = self._last.get((end[-2], end[-1]), -1) if len(end) >= SHORTEST else -1
        for _ in range(PLACES):
            if place < 0 or best == LONGEST:
                break
            if place + 1 < len(self.ids):
                length = SHORTEST
                while length < min(LONGEST, len(end), place + 1) and self.ids[place - length] == end[-1 - length]:
                    length += 1
                if length > best:
                    best, after = length, place + 1
            place = self._before[place]
        return best, after


def continuation(texts: Sequence[Text], end: Sequence[int], most: int) -> list[int]:
    """Up to `most` tokens that followed the longest end there is in any of the texts, the first of those that have it;
    [] if none has its last SHORTEST tokens."""
    best, found = 0, list[int]()
    for text in texts:
        length, after = text.find(end)
        if length > best:
            best, found = length, text.ids[after : after + most].tolist()
    return found


@dataclass(frozen=True)
class DraftCounts:
    """What was verified."""

    drafts: int = 0
    """One for each row and dispatch."""
    drafted: int = 0
    """Tokens of these."""
    accepted: int = 0
    """Those of them that were sampled, too."""

    def __add__(self, more: DraftCounts) -> DraftCounts:
        return DraftCounts(self.drafts + more.drafts, self.drafted + more.drafted, self.accepted + more.accepted)

    def __sub__(self, less: DraftCounts) -> DraftCounts:
        return self + DraftCounts(-less.drafts, -less.drafted, -less.accepted)


@dataclass
class _DraftedRow:
    """What is known of a row."""

    text: Text = field(default_factory=Text)
    """Its tokens, while a turn is drafted for."""
    turns: int = 0
    """Those that are among the shared texts."""


class Drafter:
    """The texts of the rows of a decode loop. shares: rows of one group or role are drafted from each other's turns."""

    def __init__(self, shares: bool) -> None:
        self._shares = shares
        self._rows: WeakKeyDictionary[ActiveEpisode, _DraftedRow] = WeakKeyDictionary()
        self._texts: dict[Hashable, Text] = {}
        self._kept = 0  # tokens in them
        self.counts = DraftCounts()

    def draft(self, row: ActiveEpisode, most: int) -> list[int]:
        """Up to `most` tokens that may follow the last one of a row."""
        known = self._rows.setdefault(row, _DraftedRow())
        known.text.add(row.ids[len(known.text.ids) :].tolist())
        texts = [self._texts[name] for name in self._names(row) if name in self._texts]
        return continuation([known.text, *texts], known.text.ids[-LONGEST:], most)

    def verified(self, drafted: int, accepted: int) -> None:
        """Counts a draft of so many tokens."""
        self.counts += DraftCounts(1, drafted, accepted)

    def turn_over(self, row: ActiveEpisode) -> None:
        """A turn of the row has ended: others may be drafted from it, and from the first prompt of its group."""
        known = self._rows.setdefault(row, _DraftedRow())
        known.text, first, known.turns = Text(), known.turns, len(row.turns)
        if self._shares:
            new = first == 0 and (row.request.group is None or self._names(row)[0] not in self._texts)
            turns = [turn.ids.tolist() for turn in row.turns[first:] if not turn.restarts]
            for ids in [np.asarray(row.request.prompt_ids).tolist(), *turns] if new else turns:
                self._share(self._names(row), ids)

    def _share(self, names: Sequence[Hashable], ids: Sequence[int]) -> None:
        if self._kept + len(names) * len(ids) > MOST:
            self.clear()
        self._kept += len(names) * len(ids)
        for name in names:
            self._texts.setdefault(name, Text()).add(ids)

    def _names(self, row: ActiveEpisode) -> list[Hashable]:
        """Of the texts that a row shares: its group's, if it has one, and its role's."""
        role = row.name[:2], row.request.policy
        return [*([] if row.request.group is None else [(*role, row.request.group)]), role]

    def clear(self) -> None:
        """Forgets the turns that are over."""
        self._texts, self._kept = {}, 0
