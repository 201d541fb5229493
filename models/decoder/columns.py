"""Pages as long as the longest row, one for each slot (`Paging.by_slot`), for platforms where gathering pages is slow.

Rows that add one token each are the slots in order, so that attention reads the pages where they are. The columns of a
page are split into blocks of BLOCK, so that both matmuls of attention read contiguous memory, and these into segments
of 2, 2, 4 or of 8, 24, 96, … blocks: the first segments can be read alone, without a copy, while rows are short. A row
has the same bits whatever the other rows contain and however many segments are read: every product, sum and exponential
covers one block, in operations whose shape per block is fixed, and the blocks are added in order; a block without
visible tokens adds exact zeros.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from scope_jax.models.decoder.paging import BaseImplementation, Paging, Where, by_kv_head, by_query
from scope_jax.models.kernels.attention import storable
from scope_jax.models.kernels.cascade import MASKED, Carry

BLOCK = 64  # columns
BEYOND = 2**24  # more blocks than any page has
FEW = 8  # blocks of a page so short that it has segments of 2 and 4; of longer ones, the first segment
UNROLLED = 8  # most blocks that are added one by one in a program, which otherwise has a loop


class ColumnPages(NamedTuple):
    """Keys and values of one layer, by segment (or their shardings)."""

    k_PKbht: tuple[Any, ...]
    v_PKbth: tuple[Any, ...]


def widths(blocks: int) -> tuple[int, ...]:
    """The blocks that the first segments hold together, in order: 2, 4, 8 of short pages, 8, 32, 128, … of longer ones,
    and all. Few, as a program has the attention over each of these for each layer: of 30 layers and 128 blocks, those
    over 2 and 4 took two fifths of the time to compile and to load it.

    At least two: XLA unrolls a loop over a single block, then fuses and rounds differently.
    """
    found, width = list[int](), 2 if blocks <= FEW else FEW
    while width < blocks:
        found.append(width)
        width *= 2 if width < FEW else 4
    return (*found, blocks)


class Columns(BaseImplementation):
    """`paging.Implementation` of pages that hold `longest` tokens, in whole blocks."""

    heads_axis = 1
    cascade = False

    def __init__(self, longest: int) -> None:
        blocks = -(-longest // BLOCK)
        self.paging = Paging(blocks * BLOCK, by_slot=True)
        self._ends = widths(blocks)

    def empty(self, pages: int, kv_heads: int, head_dim: int, dtype: Any) -> ColumnPages:
        shapes = [(pages, kv_heads, count) for count in np.diff([0, *self._ends]).tolist()]
        return ColumnPages(
            tuple(jnp.zeros((*shape, head_dim, BLOCK), dtype) for shape in shapes),
            tuple(jnp.zeros((*shape, BLOCK, head_dim), dtype) for shape in shapes),
        )

    # `write` and `attend` are traced, and stand in the program's text, once for all layers that are alike.
    @partial(jax.jit, static_argnums=0)
    def write(self, layer: ColumnPages, k_NKh: Array, v_NKh: Array, page_N: Array, column_N: Array) -> ColumnPages:
        k_NKh, v_NKh = storable(k_NKh, v_NKh)
        block_N, offset_N, start = column_N // BLOCK, column_N % BLOCK, 0
        k_PKbht, v_PKbth = list[Array](), list[Array]()
        for keys, values in zip(*layer, strict=True):
            here_N = jnp.where(block_N < start, BEYOND + block_N, block_N - start)  # past the end: another segment's
            how = {"mode": "drop", "unique_indices": True}
            k_PKbht.append(keys.at[page_N, :, here_N, :, offset_N].set(k_NKh.astype(keys.dtype), **how))
            v_PKbth.append(values.at[page_N, :, here_N, offset_N].set(v_NKh.astype(values.dtype), **how))
            start += keys.shape[2]
        return ColumnPages(tuple(k_PKbht), tuple(v_PKbth))

    def copy(self, layer: ColumnPages, source_N: Array, target_N: Array, tokens_N: Array) -> ColumnPages:
        """One page after another, and of each the segments up to the last that one of them needs."""
        pages, starts = layer.k_PKbht[0].shape[0], (0, *self._ends)

        def copied(x: Array, start: int) -> Array:
            wanted_N = (target_N < pages) & (tokens_N > start * BLOCK)
            count = jnp.max(jnp.where(wanted_N, 1 + jnp.arange(len(wanted_N)), 0))

            def one(i: Array, x: Array) -> Array:
                page = lax.dynamic_slice_in_dim(x, source_N[i], 1)
                return lax.dynamic_update_slice_in_dim(x, page, target_N[i], 0)

            return lax.fori_loop(0, count, one, x)

        return ColumnPages(*(tuple(map(copied, segments, starts[:-1])) for segments in layer))

    @partial(jax.jit, static_argnums=(0, 4))
    def attend(
        self, layer: ColumnPages, q_RQHh: Array, where: Where, window: int | None, sinks_H: Array | None = None
    ) -> Array:
        if q_RQHh.shape[1] > 1:
            return self._attend_many(layer, q_RQHh, where, window, sinks_H)
        longest = jnp.max(jnp.where(where.counts_R > 0, where.starts_R + 1, 0))
        segments = jnp.searchsorted(jnp.asarray(self._ends) * BLOCK, longest)

        def first(count: int, layer: ColumnPages, q_RHh: Array, starts_R: Array) -> Array:
            part = ColumnPages(layer.k_PKbht[:count], layer.v_PKbth[:count])
            behind_RC = starts_R[:, None] - jnp.arange(self._ends[count - 1] * BLOCK)
            return _attend_one(part, q_RHh, _seen(behind_RC, window), sinks_H)

        ways = [partial(first, count) for count in range(1, len(self._ends) + 1)]
        return lax.switch(segments, ways, layer, q_RQHh[:, 0], where.starts_R)[:, None]

    def _attend_many(
        self, layer: ColumnPages, q_RQHh: Array, where: Where, window: int | None, sinks_H: Array | None
    ) -> Array:
        """As `pages.Loop`, block by block."""
        q_RKmh = by_kv_head(q_RQHh, layer.k_PKbht[0].shape[1])
        page_R, starts_R = where.table[:, 0], where.starts_R
        position_RQ = starts_R[:, None] + jnp.arange(q_RQHh.shape[1])
        added_R = where.counts_R > 0
        last = jnp.max(jnp.where(added_R, starts_R + where.counts_R, 0)) - 1
        lowest = 0 if window is None else jnp.min(jnp.where(added_R, starts_R, last)) - window + 1
        first_block, blocks = jnp.maximum(lowest, 0) // BLOCK, last // BLOCK + 1

        def add(keys: Array, values: Array, start: int, b: Array, carry: Carry) -> Carry:
            behind_RQt = position_RQ[..., None] - ((start + b) * BLOCK + jnp.arange(BLOCK))
            return carry.with_tokens(q_RKmh, _seen(behind_RQt, window), keys[page_R, :, b], values[page_R, :, b])

        carry, start = Carry.empty(q_RKmh), 0
        carry = carry if sinks_H is None else carry.with_sinks(sinks_H)
        for keys, values in zip(*layer, strict=True):
            count = keys.shape[2]
            low, high = (jnp.clip(bound - start, 0, count) for bound in (first_block, blocks))
            carry = lax.fori_loop(low, high, partial(add, keys, values, start), carry)
            start += count
        return by_query(carry.output(), q_RQHh)


def _seen(behind: Array, window: int | None) -> Array:
    """True for the columns a token attends to; `behind` is each column's distance back from the token's own column."""
    return (behind >= 0) if window is None else (behind >= 0) & (behind < window)


def _attend_one(layer: ColumnPages, q_RHh: Array, seen_RC: Array, sinks_H: Array | None) -> Array:
    """softmax(q K / √h) V for one query per page: the maximum over all columns, then sums block by block.

    The exponentials are computed in a loop over the blocks: in one operation over all columns, their last bit would
    depend on the number of columns (XLA emits different code for different sizes).
    """
    rows, _, head_dim = q_RHh.shape
    counts, num_kv = [keys.shape[2] for keys in layer.k_PKbht], layer.k_PKbht[0].shape[1]
    ends, blocks = np.cumsum(counts), sum(counts)
    q_RK1qh = q_RHh.reshape(rows, num_kv, 1, -1, head_dim)

    def products(k_RKbht: Array) -> Array:
        q_RKbqh = jnp.broadcast_to(q_RK1qh, (*k_RKbht.shape[:3], *q_RK1qh.shape[3:]))
        return jnp.einsum("RKbqh,RKbht->RKbqt", q_RKbqh, k_RKbht, preferred_element_type=jnp.float32)

    scores = jnp.concatenate([products(k_RKbht) for k_RKbht in layer.k_PKbht], axis=2)
    seen_RKbqt = seen_RC.reshape(rows, 1, blocks, 1, BLOCK)
    scores = jnp.where(seen_RKbqt, scores / math.sqrt(head_dim), MASKED)
    top_RKq = jnp.max(scores, axis=(2, 4))
    sinks_Kq = None if sinks_H is None else sinks_H.astype(jnp.float32).reshape(num_kv, -1)
    top_RKq = top_RKq if sinks_Kq is None else jnp.maximum(top_RKq, sinks_Kq)
    dtype = layer.v_PKbth[0].dtype

    def weigh(scores_RKqt: Array) -> tuple[Array, Array]:
        weights = jnp.exp(scores_RKqt - top_RKq[..., None])
        return weights.astype(dtype), jnp.sum(weights, axis=-1)

    weights_bRKqt, masses_bRKq = lax.map(weigh, jnp.moveaxis(scores, 2, 0))
    total, mass = jnp.float32(0), jnp.float32(0) if sinks_Kq is None else jnp.exp(sinks_Kq - top_RKq)
    for weights, v_RKbth in zip(jnp.split(weights_bRKqt, ends[:-1]), layer.v_PKbth, strict=True):
        parts = jnp.einsum("bRKqt,RKbth->RKbqh", weights, v_RKbth, preferred_element_type=jnp.float32)
        total = _added(total, parts, 2)
    mass = _added(mass, masses_bRKq, 0)
    return (total / mass[..., None]).reshape(q_RHh.shape).astype(q_RHh.dtype)


def _added(total: Array, blocks: Array, axis: int) -> Array:
    """The total and each block, added in order."""
    count = blocks.shape[axis]
    if count <= UNROLLED:
        for b in range(count):
            total = total + lax.index_in_dim(blocks, b, axis, keepdims=False)
        return total
    first = total + lax.index_in_dim(blocks, 0, axis, keepdims=False)
    return lax.fori_loop(
        1, count, lambda b, sums: sums + lax.dynamic_index_in_dim(blocks, b, axis, keepdims=False), first
    )
