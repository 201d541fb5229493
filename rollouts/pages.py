"""Which page of the KV cache belongs to what: free pages, pages of rows, and prompts kept for other requests.

Everything here runs on the host. One Pool manages the pages of one row shard of the mesh; page 0 is never given away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.pages import PAGE, pages_for

Key = tuple[int, bytes]  # (serial of the entry before, the page's token ids)


class OutOfPages(Exception):
    """There are not enough free pages on a shard; setting an episode aside frees some."""

    def __init__(self, shard: int) -> None:
        super().__init__(f"row shard {shard} has no free pages")
        self.shard = shard


@dataclass
class Entry:
    """A page of a prompt in the index. serial: never reused, so that keys of later pages stay unambiguous."""

    page: int
    serial: int


@dataclass(frozen=True)
class Prompt:
    """Where a prompt's tokens (all but its last) are.

    full: pages filled by the prompt, shared by all rows that begin with it. tail: the page with the rest, to be copied
    by each row, or None. computed: how many tokens at the start were there already.
    """

    full: tuple[int, ...]
    tail: int | None
    computed: int


class Pool:
    """The pages of one shard.

    A page is referenced by the rows that use it and by the index of prompts. The index keeps pages after their rows
    have ended, until the space is needed: then the least recently used go first. Its keys are token ids, so equal
    prompts, or equal beginnings of at least a page, are computed once.
    """

    def __init__(self, shard: int, count: int) -> None:
        self.shard = shard
        self.count = count
        self._references = np.zeros(count, np.int64)
        self._index: OrderedDict[Key, Entry] = OrderedDict()
        self._free = list(range(count - 1, 0, -1))
        self._serial = 0

    @property
    def used(self) -> int:
        """Pages that rows refer to."""
        kept = {entry.page for entry in self._index.values()}
        return sum(int(n) > (page in kept) for page, n in enumerate(self._references.tolist()))

    def available(self) -> int:
        """Pages that can be had: free ones, and those that only the index refers to."""
        return len(self._free) + sum(int(self._references[entry.page]) == 1 for entry in self._index.values())

    def take(self, count: int) -> list[int]:
        """Pages that nobody else uses. Raises OutOfPages, without taking any, if there are too few."""
        if count > len(self._free):
            self._forget(count - len(self._free))
        if count > len(self._free):
            raise OutOfPages(self.shard)
        taken = [self._free.pop() for _ in range(count)]
        self._references[taken] += 1
        return taken

    def hold(self, pages: Iterable[int]) -> None:
        """One more reference to each."""
        for page in pages:
            self._references[page] += 1

    def drop(self, pages: Iterable[int]) -> None:
        """One reference less to each; a page without references is free."""
        for page in pages:
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)

    def place(self, prompt: Sequence[int] | np.ndarray) -> Prompt:
        """Pages for a prompt: those in the index, and new ones, which are entered. The caller gets a reference to each
        page. Raises OutOfPages, without any effect, if there are too few."""
        ids = np.asarray(prompt, np.int32)[:-1]
        parts = [ids[first : first + PAGE].tobytes() for first in range(0, len(ids), PAGE)]
        found: list[Entry] = []
        serial = 0
        for part in parts:
            entry = self._index.get((serial, part))
            if entry is None:
                break
            self._index.move_to_end((serial, part))
            found.append(entry)
            serial = entry.serial
        pages = [entry.page for entry in found]
        self.hold(pages)  # so that they are not given away to make room for the others
        try:
            new = self.take(len(parts) - len(found))
        except OutOfPages:
            self.drop(pages)
            raise
        for part, page in zip(parts[len(found) :], new, strict=True):
            self._serial += 1
            self._index[serial, part] = Entry(page, self._serial)
            self.hold([page])
            serial = self._serial
        pages += new
        whole = len(ids) // PAGE
        tail = pages[whole] if len(pages) > whole else None
        return Prompt(tuple(pages[:whole]), tail, min(len(found) * PAGE, len(ids)))

    def _forget(self, count: int) -> None:
        """Frees up to `count` pages that only the index refers to, the least recently used first."""
        for key in [key for key, entry in self._index.items() if self._references[entry.page] == 1][:count]:
            self.drop([self._index.pop(key).page])


class PagedState:
    """The engine's state on the device, and which page belongs to which slot; the engine changes it in place."""

    def __init__(self, device: Any, pools: Sequence[Pool], slots: int) -> None:
        self.device = device
        self.pools = tuple(pools)
        self.pages: list[list[int]] = [[] for _ in range(slots)]  # by slot, in order
        self.length = [0] * slots  # tokens in the cache
        self.limit = [0] * slots
        self.live = [False] * slots
        self.prompt_tokens = self.computed_tokens = 0  # of the prompts placed so far, and not found in pages

    def _pool(self, slot: int) -> Pool:
        return self.pools[slot * len(self.pools) // len(self.pages)]

    def grow(self, slot: int, tokens: int) -> None:
        """Enough pages for so many tokens. Raises OutOfPages."""
        count = pages_for(tokens) - len(self.pages[slot])
        if count > 0:
            self.pages[slot] += self._pool(slot).take(count)

    def keep(self, slot: int, tokens: int) -> None:
        """Keeps the first `tokens` tokens, and gives back the pages beyond them."""
        count = pages_for(tokens)
        self._pool(slot).drop(self.pages[slot][count:])
        self.pages[slot], self.length[slot] = self.pages[slot][:count], tokens


def needed(prompt: Sequence[int] | np.ndarray) -> int:
    """Most pages that `Pool.place` takes for a prompt and a row of its own."""
    return pages_for(len(prompt)) + 1
