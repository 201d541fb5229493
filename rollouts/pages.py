"""Which page of the KV cache belongs to what: free pages, pages of rows, and prompts kept for other requests.

Everything here runs on the host. One Pool manages the pages of one row shard of the mesh; page 0 is never given away.
Each group of layers (`models.pages.layer_groups`) has a page of its own for the same tokens of a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from scope_jax.models.cascade import Tiles, tiles_of
from scope_jax.models.pages import PAGE, Tables, pages_for
from scope_jax.rollouts.slots import Extension, Placement

CHUNK = 32  # tokens of one row that are computed together; divides PAGE, so that shared pages have the same bits

Windows = tuple[int | None, ...]  # of the groups of layers: how many positions a query sees; None: all
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
    """

    def __init__(self, shard: int, count: int, windows: Windows = (None,)) -> None:
        self.shard = shard
        self.count = count
        self.windows = windows
        self._references = [0] * count
        self._index: dict[Key, PageEntry] = {}
        self._kept: dict[int, tuple[Key, int]] = {}  # pages in the index: their entry and group
        self._turn = [0] * count  # of the pages in the index: those of lower turns go first
        self._first = self._last = 0  # turns given so far
        self._idle = 0  # pages that only the index refers to
        self._queue: list[tuple[int, int]] = []  # heap of (turn, page): all idle pages, and outdated entries
        self._free = list(range(count - 1, 0, -1))
        self._serial = 0

    @property
    def used(self) -> int:
        """Pages that rows refer to."""
        return self.count - 1 - self.available()

    def available(self) -> int:
        """Pages that can be had: free ones, and those that only the index refers to."""
        return len(self._free) + self._idle

    def take(self, count: int) -> list[int]:
        """Pages that nobody else uses. Raises OutOfPages, without taking any, if there are too few."""
        if count > len(self._free):
            self._forget(count - len(self._free))
        if count > len(self._free):
            raise OutOfPages(self.shard)
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._references[page] = 1
        return taken

    def hold(self, pages: Iterable[int]) -> None:
        """One more reference to each."""
        for page in pages:
            self._idle -= self._rests(page)
            self._references[page] += 1

    def drop(self, pages: Iterable[int]) -> None:
        """One reference less to each; a page without references is free."""
        for page in pages:
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)
            elif self._rests(page):
                self._idle += 1
                heappush(self._queue, (self._turn[page], page))
        if len(self._queue) > 2 * self.count:
            self._queue = [(self._turn[page], page) for page in self._kept if self._rests(page)]
            heapify(self._queue)

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

    def _forget(self, count: int) -> None:
        """Frees up to `count` pages that only the index refers to."""
        while count and self._idle:
            turn, page = heappop(self._queue)
            if turn != self._turn[page] or not self._rests(page):
                continue  # outdated: the page has been used since, or given away
            key, group = self._kept.pop(page)
            entry = self._index[key]
            entry.pages[group] = 0
            if not any(entry.pages):
                del self._index[key]
            self._idle -= 1
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
    pages: int
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
        table = np.where(np.asarray(self.live)[:, None, None], self.table, 0)
        if not lanes:
            return Tables(table, None)
        full = [group for group, window in enumerate(self.pools[0].windows) if window is None]
        grouped = [pages * live for pages, live in zip(self.grouped, self.live, strict=True)]
        count = len(self.live) // len(self.pools)
        shards = [slice(first, first + count) for first in range(0, len(self.live), count)]
        tiles = [tiles_of(table[shard][:, full], grouped[shard], lanes) for shard in shards]
        return Tables(table, Tiles(*map(np.concatenate, zip(*tiles, strict=True))))

    def spare(self, shard: int) -> int:
        """Pages of a shard that can be had and that no prompt or observation will need while it is computed."""
        promised = (one.pages - int(np.count_nonzero(self.table[one.slot])) for one in self.unfinished[shard])
        return self.pools[shard].available() - sum(max(0, pages) for pages in promised)

    def missing(self, slot: int, tokens: int) -> int:
        """Pages that a slot lacks for so many tokens."""
        return max(0, pages_for(tokens) - self.columns[slot]) * self.table.shape[1]

    def grow(self, slot: int, tokens: int) -> None:
        """Enough pages for so many tokens. Raises OutOfPages."""
        if count := self.missing(slot, tokens):
            new = np.asarray(self.pool(slot).take(count), np.int32).reshape(self.table.shape[1], -1)
            first = self.columns[slot]
            self.columns[slot] += new.shape[1]
            self.table[slot, :, first : self.columns[slot]] = new

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
