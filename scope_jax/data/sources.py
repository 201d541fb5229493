"""The rows of a run, and which of them a step uses: functions of (seed, step), without hidden state."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TypeVar, overload

import numpy as np

from retrieval.corpus import Corpus, load_corpus
from retrieval.rows import Row, check_columns, read
from scope_jax.config import RowsSection
from scope_jax.data.keys import rng
from scope_jax.data.schemas import FIELDS, SCHEMAS, Kind

Item = TypeVar("Item")
BLOCK = 4096  # random numbers drawn at a time


@dataclass(frozen=True)
class Source:
    """Where rows come from: a file or hub name, what kind they are of, and how the card reads them."""

    path: str
    kind: Kind
    card: RowsSection


def load(source: Source) -> Sequence[Row]:
    """The rows of a source as `schemas` describes its kind; with a `limit` a random subset of so many, in their order.

    The subset is named by `limit_seed` and the number of rows alone, whatever the format. Every row is checked, also
    those that are not drawn; no more than the subset is held in memory. Documents stay on disk altogether. Raises
    FileNotFoundError for a missing file and DataError for a broken or empty one.
    """
    card = source.card
    columns: dict[str, str] = {**source.card.columns}
    check_columns(source.path, columns, FIELDS[source.kind])
    if source.kind == "documents":
        corpus = load_corpus(source.path, columns, card.split, card.hub_config)
        places = range(len(corpus))
        return Documents(corpus, places if card.limit is None else subset(places, card.limit, card.limit_seed))
    schema = SCHEMAS[source.kind]
    rows = (schema(row, where, columns) for where, row in read(source.path, card.split, card.hub_config))
    return list(rows) if card.limit is None else subset(rows, card.limit, card.limit_seed)


def subset(items: Iterable[Item], limit: int, seed: int) -> list[Item]:
    """A random subset of `limit` items in their order, all of them where there are no more.

    Every place has a random priority, and those of lowest priority are taken. So a subset holds every smaller one, and
    the items are read once, with `limit` of them in memory.
    """
    taken = heapq.nsmallest(limit, zip(_priorities(seed), count(), items, strict=False))
    return [item for _, _, item in sorted(taken, key=lambda entry: entry[1])]


def _priorities(seed: int) -> Iterator[float]:
    draw = rng("subset", seed)
    while True:
        yield from draw.random(BLOCK).tolist()


class Documents(Sequence[Row]):
    """Documents of a corpus as rows {"id", "title", "text"}, read from disk when they are asked for."""

    def __init__(self, corpus: Corpus, chosen: Sequence[int]) -> None:
        self._corpus = corpus
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        return dict(vars(self._corpus[self._chosen[place]]))


def items(rows: Sequence[Row], first: int, size: int, seed: int) -> list[Row]:
    """Rows `first` to `first + size` of an endless stream: one fresh permutation of all rows after the other."""
    places = (divmod(position, len(rows)) for position in range(first, first + size))
    return [rows[int(_order(len(rows), seed, epoch)[place])] for epoch, place in places]


@lru_cache(maxsize=2)  # a batch may reach into the next epoch; the order of 21 million rows takes a second to draw
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return rng("items", seed, epoch).permutation(count)
