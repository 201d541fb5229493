"""Rows of a batch as trees of datums: what several of them begin with is in a row once.

A row is a node without tokens, whose children are laid out one after another in depth-first order. Common beginnings
are found by token ids alone (a radix tree, Morrison 1968), so that they may be a group's prompt, earlier turns of a
conversation in several rows, or a whole datum. A tree that does not fit into a row is divided at its nodes; each part
has a copy of what its texts begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scope_jax.learner.types import Datum
from scope_jax.models.decoder import flops
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.kernels.packed import Packing

NODES, DEEPEST = (1, 4, 16, 64), 2  # sizes of `Packing`, so that few programs are compiled
SAVING = 0.05  # least share of an update's FLOPs for which beginnings are shared


@dataclass(frozen=True)
class Piece:
    """One datum with the loss inputs of its episode."""

    datum: Datum
    advantage: float | np.ndarray  # of the sampled tokens
    teacher: float | np.ndarray  # log-probs of the sampled tokens
    sequence: int  # number of the episode in the batch
    length: int  # sampled tokens of the whole episode
    opens: bool  # the episode's first datum with sampled tokens
    source: int  # number of the datum's first sampled token in the step
    temperature: float
    weight: float
    cell: int = 0  # of its first 1,024 tokens, see `Batch.cell_MN`
    stale: np.ndarray | None = None  # of the sampled tokens, see `Batch.stale_MN`

    @cached_property
    def sampled(self) -> int:
        """Sampled tokens of the datum."""
        return int(np.count_nonzero(self.datum.sampled_T))


class Node:
    """Tokens that follow those of the nodes above it in one or more datums, and what continues them.

    start: position of its first token in the datums. pieces: the datums that end with it. size: tokens of it and of all
    nodes below it. sampled: sampled tokens of the datums that end with it or below it.
    """

    def __init__(
        self, ids: np.ndarray, start: int, children: Sequence[Node] = (), pieces: Sequence[Piece] = ()
    ) -> None:
        self.ids, self.start, self.children, self.pieces = ids, start, tuple(children), tuple(pieces)
        self.size: int = len(ids) + sum(child.size for child in self.children)
        self.sampled: int = sum(one.sampled for one in (*self.pieces, *self.children))

    def nodes(self) -> Iterator[Node]:
        """It and all nodes below it, depth first."""
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


def alone(pieces: Sequence[Piece]) -> list[Node]:
    """A tree for each datum."""
    return [Node(piece.datum.ids_T, 0, pieces=[piece]) for piece in pieces]


def shared(pieces: Sequence[Piece]) -> tuple[Node, ...]:
    """The trees of datums with the same first token, in which no token that several datums begin with occurs twice."""
    root = _Open(np.zeros(0, np.int32), 0)
    for piece in pieces:
        root.insert(piece)
    return root.closed().children


class _Open:
    """A node of a tree that grows: its children by their first token."""

    def __init__(self, ids: np.ndarray, start: int) -> None:
        self.ids, self.start = ids, start
        self.children: dict[int, _Open] = {}
        self.pieces: list[Piece] = []

    def insert(self, piece: Piece) -> None:
        """Adds a datum that begins with this node's tokens and those above it."""
        node, ids, at = self, piece.datum.ids_T, 0
        while at < len(ids):
            first = int(ids[at])
            child = node.children.get(first)
            if child is None:
                child = node.children[first] = _Open(ids[at:], at)
            common = _common(child.ids, ids[at:])
            if common < len(child.ids):  # the child is divided where the datum leaves it
                upper = _Open(child.ids[:common], child.start)
                child.ids, child.start = child.ids[common:], child.start + common
                upper.children[int(child.ids[0])] = child
                child = node.children[first] = upper
            node, at = child, at + common
        node.pieces.append(piece)

    def closed(self) -> Node:
        """The finished tree."""
        order, waiting = [], [self]
        while waiting:  # without recursion: a conversation may have as many nodes in a path as turns
            order.append(waiting.pop())
            waiting += order[-1].children.values()
        finished: dict[int, Node] = {}
        for node in reversed(order):
            below = [finished[id(child)] for child in node.children.values()]
            finished[id(node)] = Node(node.ids, node.start, below, node.pieces)
        return finished[id(self)]


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """The number of equal tokens at the beginning."""
    length = min(len(a), len(b))
    (different,) = np.nonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def rows_of(trees: Sequence[Node], width: int) -> list[Node]:
    """The trees in rows of at most `width` tokens by first-fit decreasing: the largest first, each into the first row
    with space. Larger trees are divided. No datum may be longer than a row, and a row has no more sampled tokens than a
    datum of its length can have."""
    parts = [part for tree in trees for part in _divided(tree, width, width - 1)]
    return [Node(np.zeros(0, np.int32), 0, members) for members in _filled(parts, width, width - 1)]


def _divided(tree: Node, width: int, slots: int) -> list[Node]:
    """The tree as trees of at most so many tokens and sampled tokens, each with a copy of what its texts begin with."""
    parts: dict[int, list[Node]] = {}
    for node in reversed([*tree.nodes()]):  # without recursion, as in `_Open.closed`
        if node.start + node.size <= width and node.sampled <= slots:
            parts[id(node)] = [node]
            continue
        stop = node.start + len(node.ids)
        ends = [Node(node.ids[:0], stop, pieces=[piece]) for piece in node.pieces]
        below = [part for child in node.children for part in parts[id(child)]]
        parts[id(node)] = divided = []
        for members in _filled([*ends, *below], width - stop, slots):
            pieces = [piece for part in members if not len(part.ids) for piece in part.pieces]
            divided.append(Node(node.ids, node.start, [part for part in members if len(part.ids)], pieces))
    return parts[id(tree)]


def _filled(parts: Sequence[Node], width: int, slots: int) -> list[list[Node]]:
    """First-fit decreasing of the parts into bins of so many tokens and sampled tokens."""
    bins: list[list[Node]] = []
    room, left = np.full(len(parts), width), np.full(len(parts), slots)  # of the bins, those not begun included
    for part in sorted(parts, key=lambda part: -part.size):
        place = int(np.argmax((room >= part.size) & (left >= part.sampled)))
        if place == len(bins):
            bins.append([])
        bins[place].append(part)
        room[place] -= part.size
        left[place] -= part.sampled
    return bins


def packing_of(rows: Sequence[Node]) -> Packing | None:
    """What each of the rows holds at most, in sizes of `NODES`; None of rows that hold more."""
    nodes, depth = 0, 0
    for row in rows:
        above = {row: 0}  # nodes with tokens, by what is below them
        for node in row.nodes():
            here = above.pop(node) + bool(len(node.ids))
            above |= dict.fromkeys(node.children, here)
            depth = max(depth, here - 1)
        nodes = max(nodes, sum(bool(len(node.ids)) for node in row.nodes()))
    most = next((size for size in NODES if size >= nodes), None)
    return None if most is None or depth > DEEPEST else Packing(most, depth)


@dataclass(frozen=True)
class RowWork:
    """The work of rows in a model. sparse: attention computes what tokens see; otherwise all that is before them in the
    row, or within the window, where no token sees one that is further away."""

    model: ModelConfig
    sparse: bool

    def flops(self, rows: Sequence[Node], places: int, width: int) -> float:
        """Forward FLOPs of these rows, computed as `places` rows of `width` tokens; without logits."""
        nodes = [node for row in rows for node in row.nodes()]
        forked = any(len(node.ids) and len(node.children) > 1 for node in nodes)

        def pairs(window: int | None) -> int:
            if not self.sparse:
                return places * flops.pairs(width, None if forked else window)
            spans = ((node.start, node.start + len(node.ids)) for node in nodes)
            return sum(flops.pairs(stop, window) - flops.pairs(start, window) for start, stop in spans)

        dense = 2.0 * flops.weights_per_token(self.model) * places * width
        return dense + flops.pair_flops(self.model, pairs)


def cheapest(
    pieces: Sequence[Piece], buckets: Sequence[int], places: Callable[[int, int], int], work: RowWork
) -> tuple[list[Node], int]:
    """(rows, tokens of each): the datums alone in rows of the smallest bucket, unless trees of them in some bucket save
    a share of SAVING of the work. places: the rows that are computed for a number of rows of a length. buckets: those
    that hold every datum, in order."""
    width = buckets[0]
    rows = rows_of(alone(pieces), width)
    trees, most = shared(pieces), (1 - SAVING) * work.flops(rows, places(len(rows), width), width)
    for bucket in buckets:
        others = rows_of(trees, bucket)
        needed = work.flops(others, places(len(others), bucket), bucket)
        if needed < most:
            rows, width, most = others, bucket, needed
    return rows, width
