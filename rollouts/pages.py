"""Which page of the KV cache belongs to what: free pages, pages of rows, and prompts kept for other requests.

Everything here runs on the host. One Pool manages the pages of one row shard of the mesh. Each group of layers
(`models.decoder.pages.layer_groups`) has a page of its own for the same tokens of a row. Pages of several shapes are
several ranges of numbers here, one after another, and the first of each is never given away; on the devices each
shape's numbers begin with 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from scope_jax.models.decoder.pages import PAGE, Tables, pages_for
from scope_jax.models.kernels.cascade import Tiles, tiles_of
from scope_jax.rollouts.slots import Extension, Placement

CHUNK = 32  # tokens of one row that are computed together; divides PAGE, so that shared pages have the same bits

Windows = tuple[int | None, ...]  # of the groups of layers: how many positions a query sees; None: all
Counts = np.ndarray  # pages of each shape
Key = tuple[int, bytes]  # (serial of the entry before, or minus the policy's number; the page's token ids)


class OutOfPages(Exception):
    """There are not enough free pages on a shard; setting an episode aside frees some."""

    def __init__(self, shard: int) -> None:
        super().__init__(f"row shard {shard} has no free pages")
        self.shard = shard


def first_seen(position: int, window: int | None) -> int:
    """The column of a page table with the first token that a query at `position` sees."""
    return 0 if window is None else max(0, position - window + 1) // PAGE


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

    counts: pages of each shape, or of the only one. shapes: the place of each group's shape among them.
    """

    def __init__(
        self, shard: int, counts: int | Sequence[int], windows: Windows = (None,), shapes: Sequence[int] | None = None
    ) -> None:
        self.shard = shard
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
        self._free = [list(range(base + n - 1, base, -1)) for base, n in zip(self.bases, self.counts, strict=True)]
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
        taken = [free.pop() for _ in range(count)]
        for page in taken:
            self._references[page] = 1
        return taken

    def columns(self, count: int) -> np.ndarray:
        """[groups, count] pages that nobody else uses. Raises OutOfPages, without taking any, if there are too few."""
        if any(count * self.shapes.count(shape) > self.available(shape) for shape in range(len(self.counts))):
            raise OutOfPages(self.shard)
        rows = [self.take(count, shape) for shape in self.shapes]
        return np.asarray(rows, np.int32).reshape(len(self.shapes), count)

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
                self._free[shape].append(page)
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
        for part in parts_of(ids):
            entry = self._index.get((chain[-1].serial if chain else -policy, part))
            if entry is None:
                break
            chain.append(entry)
            runs = [run + 1 if page else 0 for run, page in zip(runs, entry.pages, strict=True)]
            position = min(len(chain) * PAGE, len(ids))
            seen = (len(chain) - first_seen(position, window) for window in self.windows)
            ends = after is None or entry.serial in after
            if ends and all(run >= needed for run, needed in zip(runs, seen, strict=True)):
                count = len(chain)
        computed = min(count * PAGE, len(ids))
        table = np.zeros((len(self.windows), count), np.int32)
        for column, entry in enumerate(chain[:count]):
            for group, window in enumerate(self.windows):
                if column >= first_seen(computed, window):
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
            key, group = self._kept.pop(page)
            entry = self._index[key]
            entry.pages[group] = 0
            if not any(entry.pages):
                del self._index[key]
            self._idle[shape] -= 1
            self.drop([page])
            count -= 1


def parts_of(ids: np.ndarray) -> list[bytes]:
    """A prompt's tokens in pages."""
    return [ids[first : first + PAGE].tobytes() for first in range(0, len(ids), PAGE)]


class Chunk(NamedTuple):
    """Consecutive tokens to be computed for a slot, from position `start` on. Of a model with states:"""

    slot: int
    start: int
    ids: np.ndarray
    source: int | None = None
    """A snapshot that it begins with; None: the slot's own state."""
    copy: int | None = None
    """A snapshot to be taken after it."""


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


@dataclass(frozen=True)
class Unfinished:
    """A prompt or an observation that is not in the cache yet."""

    slot: int
    length: int
    """Of the slot when it is."""
    chunks: Iterator[Chunk]
    """What is to be computed; the slot gets the pages of a chunk when it is drawn."""
    pages: Counts
    """Most that the slot has until it has decoded for one dispatch."""
    start: Placement | Extension
    """What makes the slot decode then."""
    token: int
    """The first that is decoded."""


class PagedState:
    """The engine's state on the device, and which page belongs to which slot; the engine changes it in place."""

    def __init__(
        self, device: Any, pools: Sequence[Pool], slots: int, columns: int, snapshots: Sequence[Snapshots] = ()
    ) -> None:
        self.device = device
        self.pools = tuple(pools)
        self.snapshots = tuple(snapshots)  # by shard, of a model with states
        self.begun: list[int | None] = [None] * slots  # snapshot of the beginning of the turn
        self.said: list[list[int]] = [[] for _ in range(slots)]  # tokens since then, the first to be decoded included
        self.table = np.zeros((slots, len(pools[0].windows), columns), np.int32)  # pages, 0 where there is none
        self._bases = np.asarray([pools[0].bases[shape] for shape in pools[0].shapes])  # of the groups
        self._of_shape = np.bincount(pools[0].shapes, minlength=len(pools[0].counts))  # groups of each
        self.columns = [0] * slots  # of the table that a slot has
        self.length = [0] * slots  # tokens in the cache, as far as read
        self.unread = [0] * slots  # most tokens that launched dispatches may have added
        self.limit = [0] * slots
        self.live = [False] * slots
        self.policy = [0] * slots
        self.grouped = [0] * slots  # pages that a slot begins with and attends to together with others of its group
        self.turn: list[int | None] = [None] * slots  # length at which the turn began, if it may be cut; else None
        self.unfinished: list[deque[Unfinished]] = [deque() for _ in pools]  # by shard, in the order of computation
        self.prompt_tokens = self.computed_tokens = 0  # of the prompts placed so far, and not found in pages

    def shard(self, slot: int) -> int:
        """The row shard that a slot belongs to."""
        return slot * len(self.pools) // len(self.length)

    def pool(self, slot: int) -> Pool:
        """The pool of the slot's shard."""
        return self.pools[self.shard(slot)]

    def queue(self, one: Unfinished) -> None:
        """Something more to be computed on the slot's shard."""
        self.unfinished[self.shard(one.slot)].append(one)

    def place(self, ids: np.ndarray, placement: Placement) -> Iterator[Chunk]:
        """Gives a slot the pages of its prompt, those in the index and new ones, and yields what is to be computed. The
        prompt is looked for when the pages of those before it have been entered; a page is entered with its last chunk,
        so that one whose row is given up half-way is not found."""
        slot, pool, parts = placement.slot, self.pool(placement.slot), parts_of(ids)
        states = self.snapshots[self.shard(slot)] if self.snapshots else None
        whole = len(ids) - len(ids) % PAGE
        found = pool.find(ids, placement.policy, None if states is None else states.known)
        self.policy[slot] = placement.policy
        self.columns[slot] = found.table.shape[1]
        self.table[slot, :, : self.columns[slot]] = found.table
        self.prompt_tokens += len(ids)
        self.computed_tokens += len(ids) - found.computed
        serial = found.serial
        source = states.find(serial) if states is not None and found.computed else None
        for chunk in self.chunks(slot, found.computed, ids[found.computed :], source):
            end = chunk.start + len(chunk.ids)
            if len(chunk.ids) and (end % PAGE == 0 or end == len(ids)):
                column = chunk.start // PAGE
                serial = pool.enter(serial, parts[column], self.table[slot, :, column].tolist())
                if states is not None and end == whole:
                    chunk = chunk._replace(copy=states.enter(serial))
            yield self._begins(chunk, len(ids)) if placement.may_be_cut else chunk

    def again(self, slot: int, length: int, ids: np.ndarray) -> Iterator[Chunk]:
        """Of a model with states, a slot's turn up to `length` tokens from its beginning on, and these tokens behind
        it. Whether or not more of the turn was sampled, which depends on other slots: so that the bits do not."""
        begin = self.turn[slot]
        assert begin is not None
        said = np.asarray(self.said[slot][: length - begin], np.int32)
        for chunk in self.chunks(slot, begin, np.concatenate([said, ids]), self.begun[slot]):
            yield self._begins(chunk, length + len(ids))

    def _begins(self, chunk: Chunk, length: int) -> Chunk:
        """The chunk, with a snapshot if the slot's turn begins behind it, at `length`."""
        if not self.snapshots or chunk.start + len(chunk.ids) < length:
            return chunk
        states = self.snapshots[self.shard(chunk.slot)]
        if chunk.copy is None:
            chunk = chunk._replace(copy=states.take())
        else:
            states.hold(chunk.copy)
        self._forget(chunk.slot)
        self.begun[chunk.slot] = chunk.copy
        return chunk

    def _forget(self, slot: int) -> None:
        """Gives back the snapshot of the beginning of the slot's turn."""
        if (row := self.begun[slot]) is not None:
            self.snapshots[self.shard(slot)].drop(row)
            self.begun[slot] = None

    def chunks(self, slot: int, start: int, ids: np.ndarray, source: int | None = None) -> Iterator[Chunk]:
        """The tokens in blocks of CHUNK; before each, the slot gets the pages that it needs. source: snapshot that the
        first begins with; there is one without tokens if there are none."""
        for first in range(0, len(ids), CHUNK) or ([0] if source is not None else []):
            some = ids[first : first + CHUNK]
            self.grow(slot, start + first + len(some))
            yield Chunk(slot, start + first, some, source if first == 0 else None)

    def draw(self, shard: int, most: int) -> tuple[list[Chunk], list[Unfinished]]:
        """The next chunks of a shard, at most `most`, and what is finished with them."""
        chunks: list[Chunk] = []
        finished: list[Unfinished] = []
        queue = self.unfinished[shard]
        while queue and len(chunks) < most:
            chunk = next(queue[0].chunks, None)
            if chunk is not None:
                chunks.append(chunk)
            if chunk is None or chunk.start + len(chunk.ids) == queue[0].length:
                finished.append(queue.popleft())
        return chunks, finished

    def tables(self, lanes: int) -> Tables:
        """What the live slots attend to; lanes: slots of a group that do so together, 0 for none."""
        table = np.where(np.asarray(self.live)[:, None, None], self.on_devices(self.table), 0)
        if not lanes:
            return Tables(table, None)
        full = [group for group, window in enumerate(self.pools[0].windows) if window is None]
        grouped = [pages * live for pages, live in zip(self.grouped, self.live, strict=True)]
        count = len(self.live) // len(self.pools)
        shards = [slice(first, first + count) for first in range(0, len(self.live), count)]
        tiles = [tiles_of(table[shard][:, full], grouped[shard], lanes) for shard in shards]
        return Tables(table, Tiles(*map(np.concatenate, zip(*tiles, strict=True))))

    def on_devices(self, table: np.ndarray) -> np.ndarray:
        """Page tables [..., groups, columns] in the numbers of each shape, as programs take them."""
        return np.where(table > 0, table - self._bases[:, None], 0).astype(np.int32)

    def by_shape(self, slot: int, held: np.ndarray) -> list[np.ndarray]:
        """held [groups, columns]: those of a slot's places, as one mask for each shape."""
        shapes = np.asarray(self.pool(slot).shapes)
        return [held & (shapes == shape)[:, None] for shape in range(len(self._of_shape))]

    def counted(self, held: np.ndarray) -> Counts:
        """How many of these places, [groups, columns], are True."""
        return np.bincount(
            self.pools[0].shapes, weights=np.count_nonzero(held, axis=1), minlength=len(self._of_shape)
        ).astype(int)

    def spare(self, shard: int) -> Counts:
        """Pages of a shard that can be had and that no prompt or observation will need while it is computed."""
        spare = np.asarray([self.pools[shard].available(shape) for shape in range(len(self._of_shape))])
        for one in self.unfinished[shard]:
            spare = spare - np.maximum(0, one.pages - self.counted(self.table[one.slot] > 0))
        return spare

    def missing(self, slot: int, tokens: int) -> Counts:
        """Pages that a slot lacks for so many tokens."""
        return max(0, pages_for(tokens) - self.columns[slot]) * self._of_shape

    def grow(self, slot: int, tokens: int) -> None:
        """Enough pages for so many tokens. Raises OutOfPages."""
        first, last = self.columns[slot], pages_for(tokens)
        if last > first:
            self.table[slot, :, first:last] = self.pool(slot).columns(last - first)
            self.columns[slot] = last

    def pass_by(self, slot: int, position: int) -> None:
        """Gives back the pages that no query from `position` on sees."""
        for row, window in zip(self.table[slot], self.pool(slot).windows, strict=True):
            if first := first_seen(position, window):
                passed = row[:first]
                self.pool(slot).pass_by(passed[passed > 0].tolist())
                passed[:] = 0

    def keep(self, slot: int, tokens: int) -> None:
        """Keeps the first `tokens` tokens, and gives back the pages beyond them."""
        beyond = self.table[slot, :, pages_for(tokens) :]
        self.pool(slot).drop(beyond[beyond > 0].tolist())
        beyond[:] = 0
        self.columns[slot] = min(self.columns[slot], pages_for(tokens))
        self.length[slot], self.unread[slot] = tokens, 0
        if not tokens:
            self._forget(slot)
