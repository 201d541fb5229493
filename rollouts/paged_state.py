"""The engine's state: what lies on the device, which pages belong to which slot, and what is still to be computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scope_jax.models.decoder.paging import Tables
from scope_jax.models.kernels.cascade import Tiles, tiles_of
from scope_jax.rollouts.pages import CHUNK, Counts, OutOfPages, Pool, Snapshots
from scope_jax.rollouts.slots import Extension, Placement


class Chunk(NamedTuple):
    """Consecutive tokens to be computed for a slot, from position `start` on. Of a model with states:"""

    slot: int
    start: int
    ids: np.ndarray
    source: int | None = None
    """A snapshot that it begins with; None: the slot's own state."""
    copy: int | None = None
    """A snapshot to be taken after it."""


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
        self.paging = pools[0].paging
        # Of the groups: the number before the first page on the devices, where slots need no page that is nobody's.
        self._bases = np.asarray([pools[0].bases[shape] + self.paging.by_slot for shape in pools[0].shapes])
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

    def _number(self, slot: int) -> int:
        """The slot's number on its shard."""
        return slot - self.shard(slot) * (len(self.length) // len(self.pools))

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
        slot, pool = placement.slot, self.pool(placement.slot)
        parts, page = self.paging.parts(ids), self.paging.length
        states = self.snapshots[self.shard(slot)] if self.snapshots else None
        whole = len(ids) if self.paging.by_slot else len(ids) - len(ids) % page
        found = pool.find(ids, placement.policy, None if states is None else states.known)
        self.policy[slot] = placement.policy
        self.columns[slot] = found.table.shape[1]
        self.table[slot, :, : self.columns[slot]] = found.table
        if self.paging.by_slot and self.shares_last(slot, len(ids)):
            pool.of_slot(self._number(slot))  # for a copy of what was found
        self.prompt_tokens += len(ids)
        self.computed_tokens += len(ids) - found.computed
        serial = found.serial
        source = states.find(serial) if states is not None and found.computed else None
        for chunk in self.chunks(slot, found.computed, ids[found.computed :], source):
            end = chunk.start + len(chunk.ids)
            if len(chunk.ids) and (end % page == 0 or end == len(ids)):
                column = chunk.start // page
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
            if self._awaited(queue[0].slot):
                break
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
        return max(0, self.paging.count(tokens) - self.columns[slot]) * self._of_shape

    def grow(self, slot: int, tokens: int) -> None:
        """Enough pages for so many tokens. Raises OutOfPages."""
        first, last = self.columns[slot], self.paging.count(tokens)
        if last > first:
            self.table[slot, :, first:last] = self._new_pages(slot, last - first)
            self.columns[slot] = last

    def pass_by(self, slot: int, position: int) -> None:
        """Gives back the pages that no query from `position` on sees."""
        for row, window in zip(self.table[slot], self.pool(slot).windows, strict=True):
            if first := self.paging.first_seen(position, window):
                passed = row[:first]
                self.pool(slot).pass_by(passed[passed > 0].tolist())
                passed[:] = 0

    def _new_pages(self, slot: int, count: int) -> np.ndarray:
        """[groups, count] pages that no row uses. Raises OutOfPages, without taking any."""
        pool = self.pool(slot)
        return pool.of_slot(self._number(slot)) if self.paging.by_slot else pool.columns(count)

    def give(self, slot: int, parts: Sequence[np.ndarray]) -> None:
        """New pages for a slot in the places of each shape, [groups, columns], that are True. Raises OutOfPages,
        without taking any."""
        pool = self.pool(slot)
        if any(own.sum() > pool.available(shape) for shape, own in enumerate(parts)):
            raise OutOfPages(pool.shard)
        if self.paging.by_slot:
            self.table[slot] = pool.of_slot(self._number(slot))
            return
        for shape, own in enumerate(parts):
            self.table[slot][own] = pool.take(int(own.sum()), shape)

    def _awaited(self, slot: int) -> bool:
        """Whether the page that belongs to a slot without tokens has yet to be copied to another."""
        if not self.paging.by_slot or self.columns[slot]:
            return False
        return self.pool(slot).awaited(self._number(slot))

    def shares_last(self, slot: int, length: int) -> bool:
        """Whether the page with the last of a prompt's tokens is not the slot's alone, so that it decodes in a copy."""
        if not self.paging.by_slot:
            return length % self.paging.length > 0
        belonging = self.pool(slot).belonging(self._number(slot))
        return self.columns[slot] > 0 and not np.array_equal(self.table[slot], belonging)

    def copy_last(self, slot: int, length: int) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Gives the slot pages of its own in the place of those with the last of its tokens: (these, which it still
        refers to; what is to be copied, as (shape, from, to) on the devices)."""
        pool, column = self.pool(slot), self.paging.count(length) - 1
        before = self.table[slot, :, column].copy()
        new = pool.belonging(self._number(slot)) if self.paging.by_slot else pool.columns(1)
        self.table[slot, :, column] = new[:, 0]
        pairs = [self.on_devices(pages[:, None])[:, 0].tolist() for pages in (before, new[:, 0])]
        return before.tolist(), list(zip(pool.shapes, *pairs, strict=True))

    def keep(self, slot: int, tokens: int) -> None:
        """Keeps the first `tokens` tokens, and gives back the pages beyond them."""
        beyond = self.table[slot, :, self.paging.count(tokens) :]
        self.pool(slot).drop(beyond[beyond > 0].tolist())
        beyond[:] = 0
        self.columns[slot] = min(self.columns[slot], self.paging.count(tokens))
        self.length[slot], self.unread[slot] = tokens, 0
        if not tokens:
            self._forget(slot)
