"""The pool of pages beside a plain one that looks at every page, and what an operation costs in a large pool."""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from scope_jax.models.decoder.paging import PAGE, SHARED
from scope_jax.rollouts.pages import OutOfPages, PageEntry, Pool


class Plain:
    """The rules of `Pool`, each written down directly: its index in the order in which pages go."""

    def __init__(self, count: int, windows: Sequence[int | None]) -> None:
        self.windows = windows
        self.references = [0] * count
        self.index: dict[Any, PageEntry] = {}
        self.kept: OrderedDict[int, Any] = OrderedDict()
        self.free = list(range(count - 1, 0, -1))
        self.serial = 0

    @property
    def used(self) -> int:
        return sum(references > (page in self.kept) for page, references in enumerate(self.references))

    def available(self) -> int:
        return len(self.free) + sum(self.references[page] == 1 for page in self.kept)

    def take(self, count: int) -> list[int]:
        for page in [page for page in self.kept if self.references[page] == 1][: max(0, count - len(self.free))]:
            key, group = self.kept.pop(page)
            self.index[key].pages[group] = 0
            if not any(self.index[key].pages):
                del self.index[key]
            self.drop([page])
        if count > len(self.free):
            raise OutOfPages(0)
        taken = [self.free.pop() for _ in range(count)]
        for page in taken:
            self.references[page] += 1
        return taken

    def drop(self, pages: Iterable[int]) -> None:
        for page in pages:
            self.references[page] -= 1
            if not self.references[page]:
                self.free.append(page)

    def pass_by(self, pages: Sequence[int]) -> None:
        for page in pages:
            if page in self.kept:
                self.kept.move_to_end(page, last=False)
        self.drop(pages)

    def find(self, ids: np.ndarray, policy: int) -> tuple[list[list[int]], int]:
        chain: list[PageEntry] = []
        for part in SHARED.parts(ids):
            if (entry := self.index.get((chain[-1].serial if chain else -policy, part))) is None:
                break
            chain.append(entry)
        while chain:
            position = min(len(chain) * PAGE, len(ids))
            firsts = [SHARED.first_seen(position, window) for window in self.windows]
            if all(entry.pages[group] for group, first in enumerate(firsts) for entry in chain[first:]):
                break
            chain.pop()
        position = min(len(chain) * PAGE, len(ids))
        firsts = [SHARED.first_seen(position, window) for window in self.windows]
        table = [[0] * first + [e.pages[g] for e in chain[first:]] for g, first in enumerate(firsts)]
        for page in (page for column in zip(*table, strict=True) for page in column if page):
            self.kept.move_to_end(page)
            self.references[page] += 1
        return table, chain[-1].serial if chain else -policy

    def enter(self, before: int, part: bytes, pages: Sequence[int]) -> int:
        if (before, part) not in self.index:
            self.serial += 1
            self.index[before, part] = PageEntry(self.serial, [0] * len(self.windows))
        entry = self.index[before, part]
        for group, page in enumerate(pages):
            if not entry.pages[group]:
                entry.pages[group], self.kept[page] = page, ((before, part), group)
                self.references[page] += 1
        return entry.serial


class Life:
    """A random life of a pool, as rows live: found, filled, passed by a window, dropped."""

    def __init__(self, pool: Any, seed: int) -> None:
        self.pool = pool
        self.rng = np.random.default_rng(seed)
        self.rows: list[list[list[int]]] = []  # by group, the pages of a row
        self.log: list[Any] = []

    def step(self) -> None:
        act, rng = self.rng.choice(["place", "place", "grow", "pass", "drop", "drop"]), self.rng
        if act == "place":
            # Few beginnings, so that many prompts share some pages, and ends within a page.
            ids = np.repeat(np.asarray([rng.integers(2), *rng.integers(2, size=rng.integers(5))]), PAGE)
            self.place(ids[: len(ids) - int(rng.integers(0, 3))].astype(np.int32), int(rng.integers(2)))
        elif self.rows:
            row = self.rows[rng.integers(len(self.rows))]
            if act == "grow":
                self.log.append(taken := self.taken(len(row)))
                for pages, page in zip(row, taken, strict=False):
                    pages.append(page)
            elif act == "pass":
                group = int(rng.integers(len(row)))
                count = int(rng.integers(len(row[group]) + 1))
                self.pool.pass_by([page for page in row[group][:count] if page])
                row[group][:count] = [0] * count
            else:
                self.rows.remove(row)
                self.pool.drop([page for pages in row for page in pages if page])
        self.log.append((self.pool.available(), self.pool.used))

    def place(self, ids: np.ndarray, policy: int) -> None:
        found = self.pool.find(ids, policy)
        table, serial = found if isinstance(found, tuple) else (found.table.tolist(), found.serial)
        self.log.append(([list(row) for row in table], serial))
        row = [list(pages) for pages in table]
        self.rows.append(row)
        for part in SHARED.parts(ids)[len(row[0]) :]:
            self.log.append(pages := self.taken(len(row)))
            if not pages:
                return
            for own, page in zip(row, pages, strict=True):
                own.append(page)
            serial = self.pool.enter(serial, part, pages)

    def taken(self, count: int) -> list[int]:
        try:
            return self.pool.take(count)
        except OutOfPages:
            return []


@pytest.mark.parametrize("windows", [(None,), (None, 100), (None, 1, 200)])
def test_random_lives_are_those_of_the_plain_pool(windows: tuple[int | None, ...]):
    evicted = full = 0
    for seed in range(30):
        count = int(np.random.default_rng(seed).integers(6, 60))
        one, other = Life(Pool(0, count, windows), seed), Life(Plain(count, windows), seed)
        for _ in range(400):
            one.step()
            other.step()
            assert one.log == other.log
            one.log.clear()
            full += other.log.count([])
            other.log.clear()
        evicted += other.pool.serial - len(other.pool.index)
    assert evicted > 1000 and full > 100  # memory was short, time and again


def cost(work: Callable[[], Any]) -> int:
    """Bytecode instructions of Python."""
    done = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal done
        frame.f_trace_opcodes = True
        done += event == "opcode"
        return count

    gc.disable()  # JAX has the collector call functions of Python
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(None)
        gc.enable()
    return done


def kept(count: int) -> Pool:
    """A pool whose pages all hold a prompt of a page that nobody uses."""
    pool = Pool(0, count + 1)
    for number in range(count):
        pages = pool.take(1)
        pool.enter(0, number.to_bytes(4, "big"), pages)
        pool.drop(pages)
    return pool


def test_what_an_operation_costs_does_not_depend_on_the_pages():
    for work in (lambda pool: pool.take(1), lambda pool: pool.take(20), lambda pool: (pool.available(), pool.used)):
        small, large = (cost(lambda pool=kept(count), work=work: work(pool)) for count in (100, 10_000))
        assert small == large
    pool = kept(100)
    for _ in range(10_000):  # a page that is used and let go again and again leaves no trace
        found = pool.find(np.frombuffer((5).to_bytes(4, "big"), np.int32))
        pool.drop(found.table[0].tolist())
    assert len(pool._queues[0]) <= 2 * pool.counts[0]


def test_long_prompts_with_gaps_are_found_in_linear_time():
    """Where a window's pages are gone, many beginnings have to be tried."""

    def found(pages: int) -> int:
        pool = Pool(0, 2 * pages + 2, (None, PAGE))
        ids = np.arange(pages * PAGE, dtype=np.int32)
        serial = 0
        for part in SHARED.parts(ids):
            both = pool.take(2)
            serial = pool.enter(serial, part, both)
            pool.drop([both[0]])
            pool.pass_by([both[1]])
        pool.take(pages - 1)
        return cost(lambda: pool.find(ids))

    assert found(800) < 5 * found(200)
