"""When the caches of rows were computed, and with which weights: what a run whose weights change under way depends on.

A row is computed when it gets a slot, and again with new weights, or after it has left its slot: a pair (tokens of the
row, version of the weights, the number of their updates). Between two pairs its tokens follow from the row, its key and
the weights, so the pairs of all rows and the versions that were used, with the card, the seed and what tools have
answered, determine a run.

A schedule that knows an earlier run's pairs lets every row be computed at these, and with these weights. Rows that it
does not know come after what it knows: they wait for the last version of the earlier run, and are free then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scope_jax.errors import UserError

RowName = tuple[Any, ...]  # step, role, rollout, sample, agent, row: plain values
SWAP: RowName = ()  # in place of a row: a version of the weights is used from now on


class Pair(NamedTuple):
    """A computation of a row's cache."""

    tokens: int
    """Of the row then, those of its prompt and what it has read included."""
    version: int
    """Of the weights."""


class Schedule:
    """The pairs of a run: those of an earlier one that it repeats, and its own.

    known: of the earlier run, by row, in order. write: gets pairs before anything is sampled from their caches: those
    that it does not know, or with `again` all.
    """

    def __init__(
        self,
        known: Mapping[RowName, list[Pair]] | None = None,
        write: Callable[[Sequence[tuple[RowName, Pair]]], None] = lambda pairs: None,
        again: bool = False,
    ) -> None:
        self._known = {} if known is None else dict(known)
        self._last = max((pair.version for pairs in self._known.values() for pair in pairs), default=0)
        self._write, self._again = write, again
        self._new: list[tuple[RowName, Pair]] = []
        self._done: dict[RowName, int] = {}  # pairs that were computed, by row
        rows = [pairs for row, pairs in self._known.items() if row != SWAP]
        self._of_rows = Counter(pair.version for pairs in rows for pair in pairs)  # known pairs, by version
        self._repeated: Counter[int] = Counter()  # those of them that were computed

    def due(self, row: RowName, tokens: int, version: int) -> bool:
        """Whether a row with so many tokens may be computed with these weights. Raises UserError if the earlier run
        computed it at another place, or before this one did."""
        pair = self._next(row)
        if pair is None:
            return version >= self._last
        if pair.tokens != tokens or pair.version < version:
            raise UserError(
                f"the row {row} would be computed after {tokens} tokens with version {version} of the weights, where "
                f"the schedule has {pair.tokens} and {pair.version}: it is of a run with another card, seed or record."
            )
        return pair.version == version

    def computed(self, row: RowName, tokens: int, version: int) -> None:
        """A row that is due is computed."""
        if (pair := self._next(row)) is not None and row != SWAP:
            self._repeated[pair.version] += 1
        if pair is None or self._again:
            self._new.append((row, Pair(tokens, version)))
        self._done[row] = self._done.get(row, 0) + 1

    def swapped(self, version: int) -> None:
        """These weights are used from now on; written before anything else is computed."""
        self.computed(SWAP, 0, version)
        self.flush()

    def flush(self) -> None:
        """Writes the pairs that are new."""
        if self._new:
            new, self._new = self._new, []
            self._write(new)

    def border(self, row: RowName, tokens: int) -> int | None:
        """With how many tokens, more than these, a row is computed next; None: it goes on to its end."""
        pair = self._next(row)
        return None if pair is None else pair.tokens

    def free(self, version: int) -> bool:
        """Whether nothing is known of how these weights were followed by newer ones."""
        return version >= self._last

    def known(self, version: int) -> int:
        """How many caches of rows were computed with weights up to these in the earlier run, by all its processes."""
        return sum(count for each, count in self._of_rows.items() if each <= version)

    def repeated(self, version: int) -> int:
        """How many of these this process has computed."""
        return sum(count for each, count in self._repeated.items() if each <= version)

    def _next(self, row: RowName) -> Pair | None:
        pairs, done = self._known.get(row, []), self._done.get(row, 0)
        return pairs[done] if done < len(pairs) else None
