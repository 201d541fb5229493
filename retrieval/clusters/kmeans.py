"""Hierarchical k-means: groups many vectors into small clusters of bounded size.

A node with more than `most` vectors is split by Lloyd's algorithm into at most `branching` children, recursively.
Centres are found on a sample that fits in memory; the vectors themselves are read in batches, so they may be on disk.
Splitting ends with clusters of `least` to `most` vectors, and every vector is in one:

    a child with fewer than `least` is merged: its vectors go to the nearest of the other centres;
    if that leaves one child with nearly all of them, the node is split into two equal halves instead.

A bound on the tokens of a cluster's documents is kept in the same way, and is the one reason to leave vectors out.

All sums are added in a fixed order: the same vectors and seed give the same clusters on the same machine.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from threadpoolctl import threadpool_limits

from scope_jax.errors import UserError

SAMPLE = 256  # vectors sampled per centre to find the centres
ROUNDS = 25  # most iterations of Lloyd's algorithm
BATCH = 4096  # vectors read at a time
LOPSIDED = 0.9  # a split whose largest child has at least this share is no progress


@dataclass(frozen=True)
class Sizes:
    """Vectors per cluster: about `mean`, at least `least`, at most `most`; `branching`: most children of one split;
    `tokens`: most tokens of a cluster's documents together, None: any number."""

    mean: int
    least: int
    most: int
    branching: int
    tokens: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.mean <= self.most or 2 * self.least > self.most or self.branching < 2:
            raise UserError(f"{self} is invalid: least ≤ mean ≤ most, 2 · least ≤ most and branching ≥ 2.")


def clusters(
    vectors_NE: Float[np.ndarray, "N E"],
    rows: Int[np.ndarray, "_"],
    sizes: Sizes,
    seed: tuple[int, ...],
    tell: Callable[[int, int], None],
    tokens_N: Int[np.ndarray, "N"] | None = None,
) -> list[Int[np.ndarray, "_"]]:
    """The rows of each cluster, ascending; neighbouring clusters in the list are similar.

    rows: which of the vectors (possibly memory-mapped) to cluster. tell(done, total) counts rows. tokens_N: of each
    vector's document, if `sizes.tokens` bounds them: a cluster with more is split as one with too many vectors is, and
    one that is too small for that loses its longest documents, or is left out if fewer than `least` fit.
    Raises ValueError for fewer rows than `sizes.least`.
    """
    if len(rows) < sizes.least:
        raise UserError(f"{len(rows)} vectors are too few for a cluster of at least {sizes.least}.")
    found: list[np.ndarray] = []
    nodes: list[tuple[np.ndarray, tuple[int, ...]]] = [(np.sort(rows), ())]
    done = 0
    while nodes:
        node, path = nodes.pop()
        heavy = tokens_N is not None and sizes.tokens is not None and int(tokens_N[node].sum()) > sizes.tokens
        if len(node) > sizes.most or (heavy and len(node) >= 2 * sizes.least):
            # children are numbered from 1: a seed sequence does not distinguish (s,) from (s, 0)
            parts = _split(vectors_NE, node, sizes, np.random.default_rng([*(1 + s for s in seed), 0, *path]))
            nodes += reversed([(part, (*path, place)) for place, part in enumerate(parts, start=1)])
            continue
        done += len(node)
        if heavy and tokens_N is not None and sizes.tokens is not None:
            node = _lightest(node, tokens_N[node], sizes.tokens)
        if len(node) >= sizes.least:
            found.append(node)
        tell(done, len(rows))
    return found


def _lightest(rows: np.ndarray, tokens: np.ndarray, most: int) -> np.ndarray:
    """As many of the rows, the shortest, as have at most `most` tokens together, ascending."""
    order = np.argsort(tokens, kind="stable")
    return np.sort(rows[order[np.cumsum(tokens[order]) <= most]])


def _split(vectors_NE: np.ndarray, rows: np.ndarray, sizes: Sizes, rng: np.random.Generator) -> list[np.ndarray]:
    count = min(sizes.branching, max(2, round(len(rows) / sizes.mean)))
    centres_ZE = centres(_sample(vectors_NE, rows, count, rng), count, rng)
    nearest = _nearest(vectors_NE, rows, centres_ZE)
    large = np.bincount(nearest, minlength=count) >= sizes.least
    if 0 < large.sum() < count:
        nearest = _nearest(vectors_NE, rows, centres_ZE[large])
    if not large.any() or np.bincount(nearest).max() > LOPSIDED * len(rows):
        return _halves(vectors_NE, rows, rng)
    return [rows[nearest == child] for child in range(nearest.max() + 1)]


def _halves(vectors_NE: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Two parts of equal size, split along the line between two centres; ties are kept in row order."""
    first_E, second_E = centres(_sample(vectors_NE, rows, 2, rng), 2, rng)
    along = np.concatenate([batch_NE @ (first_E - second_E) for batch_NE in _batches(vectors_NE, rows)])
    order = np.argsort(along, kind="stable")
    return [np.sort(rows[half]) for half in np.array_split(order, 2)]


def _sample(vectors_NE: np.ndarray, rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    if len(rows) > SAMPLE * count:
        rows = np.sort(rng.choice(rows, SAMPLE * count, replace=False))
    return np.asarray(vectors_NE[rows])


def _batches(vectors_NE: np.ndarray, rows: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), BATCH):
        yield np.asarray(vectors_NE[rows[start : start + BATCH]])


def _nearest(vectors_NE: np.ndarray, rows: np.ndarray, centres_ZE: np.ndarray) -> np.ndarray:
    return np.concatenate([_closeness(batch, centres_ZE).argmax(axis=1) for batch in _batches(vectors_NE, rows)])


def _closeness(vectors_NE: np.ndarray, centres_ZE: np.ndarray) -> np.ndarray:
    """x·c − |c|²/2 for every pair, which equals (|x|² − |x − c|²)/2 and is largest for the nearest centre."""
    return vectors_NE @ centres_ZE.T - (centres_ZE**2).sum(axis=1) / 2


def centres(vectors_NE: Float[np.ndarray, "N E"], count: int, rng: np.random.Generator) -> Float[np.ndarray, "Z E"]:
    """`count` centres of vectors in memory: scikit-learn's k-means++ initialisation and Lloyd's iterations, on one
    thread, as sums of several are added in any order. Centres of equal vectors may be equal."""
    from sklearn.cluster import KMeans  # scikit-learn takes a second to import
    from sklearn.exceptions import ConvergenceWarning

    seed = int(rng.integers(2**31))
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different vectors than centres
        return KMeans(count, n_init="auto", max_iter=ROUNDS, tol=0, random_state=seed).fit(vectors_NE).cluster_centers_
