"""Which page of the KV cache belongs to what: free pages, pages of rows, and prompts kept for other requests.

Everything here runs on the host. One Pool manages the pages of one row shard of the mesh. Each group of layers
(`models.decoder.paging.layer_groups`) has a page of its own for the same tokens of a row. Pages of several shapes are
several ranges of numbers here, one after another, and the first of each is never given away; on the devices each
shape's numbers begin with 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate

import numpy as np

from scope_jax.models.decoder.paging import SHARED, Paging

CHUNK = 32  # tokens of one row that are computed together; divides PAGE, so that shared pages have the same bits

Windows = tuple[int | None, ...]  # of the groups of layers: how many positions a query sees; None: all
Counts = np.ndarray  # pages of each shape
Key = tuple[int, bytes]  # (serial of the entry before, or minus the policy's number; the page's token ids)


class OutOfPages(Exception):
    """There are not enough free pages on a shard; setting an episode aside frees some. Pages of slots never run out."""

    def __init__(self, shard: int) -> None:
        super().__init__(f"row shard {shard} has no free pages")
        self.shard = shard


@dataclass
class PageEntry:
    """A page's worth of a prompt in the index."""

    serial: int
    """Never reused, so that keys of later pages stay unambiguous."""
    pages: list[int]
    """One for each group, 0 where none is kept."""


@dataclass(frozen=True)
class CachedPrompt:
    """The beginning of a prompt that is in pages."""

    table: np.ndarray
    """[groups, columns], 0 where a window has passed."""
    computed: int
    """Its tokens."""
    serial: int
    """Of its last entry."""


class Pool:
    """The pages of one shard.

    A page is referenced by the rows that use it and by the index of prompts. The index keeps pages after their rows
    have ended, until the space is needed: then those that windows have passed go first, and otherwise the least
    recently used. Its keys are token ids, so equal prompts, or equal beginnings of at least a page, are computed once.
    However many pages there are, what an operation costs follows the pages that it names.

    counts: pages of each shape, or of the only one. shapes: the place of each group's shape among them. Of pages that
    belong to slots, those of slot s are the numbers s + 1 of each shape, and rows take them by `of_slot`.
    """

    def __init__(
        self,
        shard: int,
        counts: int | Sequence[int],
        windows: Windows = (None,),
        shapes: Sequence[int] | None = None,
        paging: Paging = SHARED,
    ) -> None:
        self.shard = shard
        self.paging = paging
        self.counts = (counts,) if isinstance(counts, int) else tuple(counts)
        self.windows = windows
        self.shapes = tuple(shapes) if shapes is not None else (0,) * len(windows)
        self.bases = (0, *accumulate(self.counts[:-1]))  # the first number of each shape
        count = sum(self.counts)
        self._references = [0] * count
        self._index: dict[Key, PageEntry] = {}
        self._kept: dict[int, tuple[Key, int]] = {}  # pages in the index: their entry and group
        self._turn = [0] * count  # of the pages in the index: those of lower turns go first
        self._first = self._last = 0  # turns given so far
        self._idle = [0] * len(self.counts)  # of each shape: pages that only the index refers to
        # Of each shape: a heap of (turn, page) with all idle pages, and outdated entries.
        self._queues: list[list[tuple[int, int]]] = [[] for _ in self.counts]
        ranges = [range(base + n - 1, base, -1) for base, n in zip(self.bases, self.counts, strict=True)]
        self._free = [dict.fromkeys(pages) for pages in ranges]  # the last goes first
        self._serial = 0

    @property
    def used(self) -> int:
        """Pages that rows refer to."""
        return sum(count - 1 - self.available(shape) for shape, count in enumerate(self.counts))

    def available(self, shape: int = 0) -> int:
        """Pages of a shape that can be had: free ones, and those that only the index refers to."""
        return len(self._free[shape]) + self._idle[shape]

    def take(self, count: int, shape: int = 0) -> list[int]:
        """Pages of a shape that nobody else uses. Raises OutOfPages, without taking any, if there are too few."""
        free = self._free[shape]
        if count > len(free):
            self._forget(count - len(free), shape)
        if count > len(free):
            raise OutOfPages(self.shard)
        taken = [free.popitem()[0] for _ in range(count)]
        for page in taken:
            self._references[page] = 1
        return taken

    def columns(self, count: int) -> np.ndarray:
        """[groups, count] pages that nobody else uses. Raises OutOfPages, without taking any, if there are too few."""
        if any(count * self.shapes.count(shape) > self.available(shape) for shape in range(len(self.counts))):
            raise OutOfPages(self.shard)
        rows = [self.take(count, shape) for shape in self.shapes]
        return np.asarray(rows, np.int32).reshape(len(self.shapes), count)

    def belonging(self, slot: int) -> np.ndarray:
        """[groups, 1] pages that belong to a slot."""
        return np.asarray([[self.bases[shape] + 1 + slot] for shape in self.shapes], np.int32)

    def of_slot(self, slot: int) -> np.ndarray:
        """`belonging`, which no row uses, for a row; prompts that the index has there are forgotten."""
        pages = self.belonging(slot)
        for page in pages[:, 0].tolist():
            if page in self._kept:
                self._forget_one(page)
            del self._free[self.shape_of(page)][page]
            self._references[page] = 1
        return pages

    def awaited(self, slot: int) -> bool:
        """Whether a row of another slot, which begins like the prompt in this one's pages, has yet to copy them."""
        return any(self._references[page] and not self._rests(page) for page in self.belonging(slot)[:, 0].tolist())

    def shape_of(self, page: int) -> int:
        """The place of a page's shape."""
        return bisect_right(self.bases, page) - 1

    def hold(self, pages: Iterable[int]) -> None:
        """One more reference to each."""
        for page in pages:
            self._idle[self.shape_of(page)] -= self._rests(page)
            self._references[page] += 1

    def drop(self, pages: Iterable[int]) -> None:
        """One reference less to each; a page without references is free."""
        for page in pages:
            shape = self.shape_of(page)
            self._references[page] -= 1
            if not self._references[page]:
                self._free[shape][page] = None
            elif self._rests(page):
                self._idle[shape] += 1
                heappush(self._queues[shape], (self._turn[page], page))
        for shape, count in enumerate(self.counts):
            if len(self._queues[shape]) > 2 * count:
                idle = (page for page in self._kept if self._rests(page) and self.shape_of(page) == shape)
                self._queues[shape] = [(self._turn[page], page) for page in idle]
                heapify(self._queues[shape])

    def _rests(self, page: int) -> bool:
        """Only the index refers to the page."""
        return self._references[page] == 1 and page in self._kept

    def pass_by(self, pages: Iterable[int]) -> None:
        """Drops pages that a row's window has passed: of the index's pages they are the first to go."""
        pages = list(pages)
        for page in pages:
            self._first -= 1
            self._turn[page] = self._first
        self.drop(pages)

    def _use(self, page: int) -> None:
        """Of the index's pages this one is the last to go."""
        self._last += 1
        self._turn[page] = self._last

    def find(self, ids: np.ndarray, policy: int = 0, after: Collection[int] | None = None) -> CachedPrompt:
        """The longest beginning of these tokens, in whole pages or all of them, whose pages are in the index under this
        policy: for each group those that the next token sees. The caller gets a reference to each. after: serials of
        entries, one of which it must end with; None: any."""
        chain: list[PageEntry] = []
        count, runs = 0, [0] * len(self.windows)  # of each group: pages without a gap, up to the last one
        for part in self.paging.parts(ids):
            entry = self._index.get((chain[-1].serial if chain else -policy, part))
            if entry is None:
                break
            chain.append(entry)
            runs = [run + 1 if page else 0 for run, page in zip(runs, entry.pages, strict=True)]
            position = min(len(chain) * self.paging.length, len(ids))
            seen = (len(chain) - self.paging.first_seen(position, window) for window in self.windows)
            ends = after is None or entry.serial in after
            if ends and all(run >= needed for run, needed in zip(runs, seen, strict=True)):
                count = len(chain)
        computed = min(count * self.paging.length, len(ids))
        table = np.zeros((len(self.windows), count), np.int32)
        for column, entry in enumerate(chain[:count]):
            for group, window in enumerate(self.windows):
                if column >= self.paging.first_seen(computed, window):
                    page = entry.pages[group]
                    table[group, column] = page
                    self._use(page)
        self.hold(table[table > 0].tolist())
        return CachedPrompt(table, computed, chain[count - 1].serial if count else -policy)

    def enter(self, before: int, part: bytes, pages: Sequence[int]) -> int:
        """Keeps a prompt's pages of one column, as far as there are none for these tokens; the entry's serial."""
        key = (before, part)
        entry = self._index.get(key)
        if entry is None:
            self._serial += 1
            entry = self._index[key] = PageEntry(self._serial, [0] * len(self.windows))
        for group, page in enumerate(pages):
            if not entry.pages[group]:
                entry.pages[group] = page
                self.hold([page])
                self._kept[page] = (key, group)
                self._use(page)
        return entry.serial

    def _forget(self, count: int, shape: int) -> None:
        """Frees up to `count` pages of a shape that only the index refers to."""
        while count and self._idle[shape]:
            turn, page = heappop(self._queues[shape])
            if turn != self._turn[page] or not self._rests(page):
                continue  # outdated: the page has been used since, or given away
            self._forget_one(page)
            count -= 1

    def _forget_one(self, page: int) -> None:
        """Frees a page that only the index refers to."""
        key, group = self._kept.pop(page)
        entry = self._index[key]
        entry.pages[group] = 0
        if not any(entry.pages):
            del self._index[key]
        self._idle[self.shape_of(page)] -= 1
        self.drop([page])


def snapshots_for(slots: int) -> int:
    """Snapshots for so many slots: of the beginning of each one's turn, and some of prompts."""
    return slots + max(2, slots // 4)


class Snapshots:
    """States of one shard's slots at some moment, in rows of their own behind those of the slots: where turns that may
    be cut began, and after the whole pages that prompts begin with, for other prompts that begin so. The latter are
    kept until their row is needed, the least recently used first."""

    def __init__(self, first: int, count: int) -> None:
        self._free = list(range(first + count - 1, first - 1, -1))
        self._references: dict[int, int] = {}
        self._prompts: dict[int, int] = {}  # serial of a prompt's page in the index -> row; the last used is the last

    def take(self) -> int:
        """A row, with one reference."""
        if not self._free:
            idle = next(serial for serial, row in self._prompts.items() if self._references[row] == 1)
            self.drop(self._prompts.pop(idle))
        row = self._free.pop()
        self._references[row] = 1
        return row

    def drop(self, row: int) -> None:
        """One reference less; a row without any is free."""
        self._references[row] -= 1
        if not self._references[row]:
            del self._references[row]
            self._free.append(row)

    def hold(self, row: int) -> None:
        """One more reference."""
        self._references[row] += 1

    def enter(self, serial: int) -> int | None:
        """A row for the state after a prompt's page; None: there is one."""
        if serial in self._prompts:
            return None
        row = self.take()
        self._prompts[serial] = row
        return row

    def find(self, serial: int) -> int:
        """The row of a page that `known` names."""
        row = self._prompts[serial] = self._prompts.pop(serial)
        return row

    @property
    def known(self) -> Collection[int]:
        """Pages after which there is a state."""
        return self._prompts.keys()
