"""The data rows of a run and the selection for a step: functions of (seed, step), without hidden state."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Literal, TypeVar, overload

import numpy as np

from scope_jax.config import RowsSection
from scope_jax.data.corpus import Corpus, load_corpus
from scope_jax.data.held_out import ENOUGH, held_out
from scope_jax.data.keys import rng
from scope_jax.data.rows import DataError, Row, check_columns, listed, read
from scope_jax.data.schemas import FIELDS, SCHEMAS, Kind
from scope_jax.errors import UserError

Item = TypeVar("Item")
BLOCK = 4096  # random numbers drawn at a time
Part = Literal["all", "held-out", "trained"]


@dataclass(frozen=True)
class Source:
    """Where rows come from."""

    path: str
    """A file, or a name on the hub."""
    kind: Kind
    """The kind of rows, see `schemas`."""
    card: RowsSection
    """The card's table for reading them."""
    also: tuple[str, ...] = ()
    """Columns that every row has besides, kept as they are under their names; not of documents."""
    part: Part = "all"
    """Which of the rows, of problems (`held_out`)."""


def load(source: Source) -> Sequence[Row]:
    """The rows of a source in the form of `schemas`; with a `limit`, a random subset of that size, in file order.

    The subset depends only on `limit_seed` and the number of rows, not on the file format. All rows are validated, but
    only the subset is kept in memory; documents stay on disk. Raises FileNotFoundError for a missing file and DataError
    for an invalid or empty one.
    """
    card = source.card
    columns: dict[str, str] = {**source.card.columns}
    check_columns(source.path, columns, FIELDS[source.kind])
    if source.kind == "documents":
        corpus = load_corpus(source.path, columns, card.split, card.hub_config)
        places = range(len(corpus))
        return Documents(corpus, places if card.limit is None else subset(places, card.limit, card.limit_seed))
    schema = SCHEMAS[source.kind]
    rows = (
        schema(row, where, columns) | _also(row, where, source.also)
        for where, row in read(source.path, card.split, card.hub_config)
    )
    rows = _distinct(rows, source.path) if source.kind == "clusters" else rows
    rows = rows if source.part == "all" else _part(list(rows), source)
    return list(rows) if card.limit is None else subset(rows, card.limit, card.limit_seed)


def _also(row: Row, where: str, columns: Sequence[str]) -> Row:
    """These columns as they are. Raises DataError for one that the row does not have."""
    if missing := [column for column in columns if column not in row]:
        raise DataError(f"{where}: has no column `{missing[0]}`; its columns are {listed(row)}.")
    return {column: row[column] for column in columns}


def _part(rows: list[Row], source: Source) -> list[Row]:
    """The rows that are held out, or those that are not. Raises DataError if there are too few rows for both, and for
    rows of another kind."""
    if source.kind != "problems":
        raise DataError(f"{source.path}: no part of {source.kind} is held out; remove `part` from the card.")
    held = held_out([json.dumps(row["messages"], sort_keys=True) for row in rows])
    if len(set(held)) < 2:
        raise DataError(
            f"{source.path} has {len(rows)} rows, too few (or too few different prompts) to hold some out: give at "
            f"least {ENOUGH}, or an exam of other rows ([[evaluate.sets]] with name and path)."
        )
    return [row for row, out in zip(rows, held, strict=True) if out == (source.part == "held-out")]


def _distinct(clusters: Iterable[Row], path: str) -> Iterator[Row]:
    """The clusters as they are read. Raises DataError for an id that occurs twice, as histories are kept by id."""
    seen: set[str] = set()
    for cluster in clusters:
        if cluster["id"] in seen:
            raise DataError(f"{path}: two clusters have the id {cluster['id']!r}; make ids unique.")
        seen.add(cluster["id"])
        yield cluster


def subset(items: Iterable[Item], limit: int, seed: int) -> list[Item]:
    """A random subset of `limit` items in their order; all items if there are fewer.

    Every position has a random priority, and the lowest priorities are taken. A subset therefore contains all smaller
    ones, and the items are read once, with `limit` of them in memory.
    """
    taken = heapq.nsmallest(limit, zip(_priorities(seed), count(), items, strict=False))
    return [item for _, _, item in sorted(taken, key=lambda entry: entry[1])]


def _priorities(seed: int) -> Iterator[float]:
    draw = rng("subset", seed)
    while True:
        yield from draw.random(BLOCK).tolist()


class Documents(Sequence[Row]):
    """Documents of a corpus as rows {"id", "title", "text"}, read from disk on access."""

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
    """Rows `first` to `first + size` of an endless stream of epochs, each a new permutation of all rows.

    Raises UserError if there are none, as in a game without data.
    """
    if not rows:
        raise UserError(
            'the game reads rows, but names no data; give Game(…, data=("problems",)) with the kind of your rows '
            "(docs/data.md#kinds-of-rows), or a `source`."
        )
    return [rows[place] for place in places(len(rows), first, size, seed)]


def places(count: int, first: int, size: int, seed: int) -> list[int]:
    """The places of `items` among so many rows."""
    positions = (divmod(position, count) for position in range(first, first + size))
    return [int(_order(count, seed, epoch)[place]) for epoch, place in positions]


@lru_cache(maxsize=2)  # a batch may span two epochs; permuting 21 million rows takes a second
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return rng("items", seed, epoch).permutation(count)
