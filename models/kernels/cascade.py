"""Attention over pages that several rows begin with, for all of these rows at once: cascade attention.

The rows of a group have the same prompt, in the same pages. While they decode, up to `lanes` of them form a tile, which
goes through these pages together: they are read once for the tile instead of once for each row, and one product has the
queries of all its rows. What this leaves, a running maximum and sums (`Carry`), is where the attention of each row over
its own pages begins.

Every tile has the same shape, and whether a row is in one is decided by its request alone (`rollouts.engine`). So its
numbers depend neither on the rows that share its tile nor on whether there are any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from scope_jax.models.kernels.writes import put

MASKED = -1e30  # finite, so that a row of masked scores stays free of NaN


class Carry(NamedTuple):
    """Attention over a part of the pages, float32: maximum of the scores, sum of their exponentials, and the sum of the
    values weighted by these, for queries [R, K, m]."""

    top: jax.Array  # [R, K, m]
    mass: jax.Array  # [R, K, m]
    total: jax.Array  # [R, K, m, h]

    @staticmethod
    def empty(q_RKmh: jax.Array) -> Carry:
        """No pages."""
        shape = q_RKmh.shape[:-1]
        return Carry(jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape), jnp.zeros(q_RKmh.shape, jnp.float32))

    def with_sinks(self, sinks_H: jax.Array) -> Carry:
        """The same with the sinks of the query heads (`models.kernels.attention`), one token more whose value is 0."""
        num_kv, together = self.top.shape[1:]
        sinks_K1 = sinks_H.astype(jnp.float32).reshape(num_kv, -1)
        sinks_Km = jnp.repeat(sinks_K1, together // sinks_K1.shape[1], axis=1)  # m: heads, then their queries
        top = jnp.maximum(self.top, sinks_Km)
        shrink = jnp.exp(self.top - top)
        return Carry(top, self.mass * shrink + jnp.exp(sinks_Km - top), self.total * shrink[..., None])

    def with_tokens(
        self,
        q_RKmh: jax.Array,
        seen_RQt: jax.Array,
        k_RKht: jax.Array,
        v_RKth: jax.Array,
        k_RKt: jax.Array | None = None,
        v_RKt: jax.Array | None = None,
    ) -> Carry:
        """The same with some more tokens of each row; m: heads, then their queries (Milakov & Gimelshein 2018).

        k_RKt, v_RKt: scales of keys and values in 8 bits. Tokens that a query does not see add exact zeros; before the
        first that it sees their masked scores count as ones, which the rescaling by exp(MASKED - maximum) = 0 removes
        exactly.
        """
        rows, num_kv, _, head_dim = q_RKmh.shape
        queries, tokens = seen_RQt.shape[1:]
        narrow = k_RKt is not None
        k_RKht, v_RKth = (x.astype(q_RKmh.dtype) if narrow else x for x in (k_RKht, v_RKth))
        scores = jnp.matmul(q_RKmh, k_RKht, preferred_element_type=jnp.float32) * (1 / math.sqrt(head_dim))
        if k_RKt is not None:
            scores *= k_RKt[:, :, None]
        scores = scores.reshape(rows, num_kv, -1, queries, tokens)
        scores = jnp.where(seen_RQt[:, None, None], scores, MASKED).reshape(rows, num_kv, -1, tokens)
        top = jnp.maximum(self.top, jnp.max(scores, axis=-1))
        shrink = jnp.exp(self.top - top)
        weights = jnp.exp(scores - top[..., None])
        scaled = weights if v_RKt is None else weights * v_RKt[:, :, None]
        part = jnp.matmul(scaled.astype(v_RKth.dtype), v_RKth, preferred_element_type=jnp.float32)
        return Carry(top, self.mass * shrink + jnp.sum(weights, axis=-1), self.total * shrink[..., None] + part)

    def output(self) -> jax.Array:
        """The attention's result, [R, K, m, h]. Of a query that has seen nothing it is meaningless but not NaN."""
        return self.total / jnp.maximum(self.mass, 1e-30)[..., None]


class Tiles(NamedTuple):
    """Which rows go through their first pages together; leaves are int32 arrays, or their shardings.

    The tiles that are used come first.
    """

    rows_TG: Any  # rows of each tile; the number of rows where there is none
    pages_T: Any  # pages that the rows of the tile begin with; 0: the tile is not used
    pages_R: Any  # the same by row; 0: the row is in no tile


def tiles_at_once(rows: int, lanes: int) -> int:
    """Tiles that are computed together: enough for all rows, if all tiles are full."""
    return max(1, rows // lanes)


def tile_count(rows: int, lanes: int) -> int:
    """Tiles that there can be: one for each row, in whole rounds."""
    together = tiles_at_once(rows, lanes)
    return -(-rows // together) * together


def tiles_of(table_Rgb: np.ndarray, pages_R: Sequence[int], lanes: int) -> Tiles:
    """Tiles of the rows that begin with the same pages in all groups of layers. pages_R: how many pages each row begins
    with that may be shared, 0 for rows that are in no tile."""
    rows = len(pages_R)
    members: dict[bytes, list[int]] = {}
    for row, pages in enumerate(pages_R):
        if pages:
            members.setdefault(table_Rgb[row, :, :pages].tobytes(), []).append(row)
    rows_TG = np.full((tile_count(rows, lanes), lanes), rows, np.int32)
    pages_T = np.zeros(len(rows_TG), np.int32)
    parts = [own[at : at + lanes] for own in members.values() for at in range(0, len(own), lanes)]
    for tile, part in enumerate(parts):
        rows_TG[tile, : len(part)], pages_T[tile] = part, pages_R[part[0]]
    return Tiles(rows_TG, pages_T, np.asarray(pages_R, np.int32))


def begin(
    walk: Callable[[jax.Array, jax.Array, jax.Array], Carry], q_RKmh: jax.Array, table_Rb: jax.Array, tiles: Tiles
) -> Carry:
    """Attention of one query per row, with m heads for each of K kv heads, over the pages of its tile; empty for rows
    that are in none.

    walk(q_BKMh, table_Bb, pages_B) -> attention of tiles over their first pages_B pages, all of whose tokens are seen.
    """
    num_kv, heads, head_dim = q_RKmh.shape[1:]
    lanes = tiles.rows_TG.shape[1]
    together = tiles_at_once(q_RKmh.shape[0], lanes)

    def one(number: jax.Array, carry: Carry) -> Carry:
        rows_BG = lax.dynamic_slice_in_dim(tiles.rows_TG, number * together, together)
        pages_B = lax.dynamic_slice_in_dim(tiles.pages_T, number * together, together)
        q_BGKmh = q_RKmh.at[rows_BG].get(mode="clip")
        q_BKMh = q_BGKmh.transpose(0, 2, 1, 3, 4).reshape(together, num_kv, lanes * heads, head_dim)
        part = walk(q_BKMh, table_Rb.at[rows_BG[:, 0]].get(mode="clip"), pages_B)

        def updated(old_RKm: jax.Array, new_BKM: jax.Array) -> jax.Array:
            new_BKGm = new_BKM.reshape(together, num_kv, lanes, heads, *new_BKM.shape[3:])
            return put(old_RKm, rows_BG.reshape(-1), jnp.moveaxis(new_BKGm, 2, 1).reshape(-1, *old_RKm.shape[1:]))

        return jax.tree.map(updated, carry, part)

    rounds = (jnp.count_nonzero(tiles.pages_T) + together - 1) // together
    return lax.fori_loop(0, rounds, one, Carry.empty(q_RKmh))
