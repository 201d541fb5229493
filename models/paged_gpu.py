"""Attention over pages on a GPU: one Pallas (Triton) kernel for decoding and prefill, with or without a window.

Each program of the grid has a row, a kv head and a block of its queries, and goes through the row's pages once with a
running maximum (FlashAttention; Dao et al. 2022). It reads the pages where they are, so nothing is gathered, and only
those that hold tokens of the row. Scores and sums are in float32; products of float32 arrays are, too.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from models.pages import MASKED, PAGE, Loop, LoopPages, Where

QUERIES = 64  # most rows of a block: queries times query heads of a kv head
FEWEST = 16  # rows of a Triton product


class Triton(Loop):
    """The layout of `Loop`. interpret: Pallas's interpreter runs the kernel, on any platform."""

    def __init__(self, *, interpret: bool = False) -> None:
        self._interpret = interpret

    def attend(self, layer: LoopPages, q_RQHh: jax.Array, where: Where, window: int | None) -> jax.Array:
        rows, queries, num_heads, head_dim = q_RQHh.shape
        num_kv = layer.k_PKht.shape[1]
        together = num_heads // num_kv * queries
        size = min(QUERIES, max(FEWEST, 1 << (together - 1).bit_length()))
        blocks = -(-together // size)
        grouped = q_RQHh.reshape(rows, queries, num_kv, -1, head_dim).transpose(0, 2, 3, 1, 4)
        q_RKMh = grouped.reshape(rows, num_kv, together, head_dim)
        q_RKMh = jnp.pad(q_RKMh, ((0, 0), (0, 0), (0, blocks * size - together), (0, 0)))
        ends_R = jnp.where(where.counts_R > 0, where.starts_R + where.counts_R, 0)
        block = pl.BlockSpec((None, None, size, head_dim), lambda r, k, m: (r, k, m, 0))
        o_RKMh = pl.pallas_call(
            partial(_kernel, queries=queries, size=size, window=window),
            grid=(rows, num_kv, blocks),
            in_specs=[
                block,
                pl.BlockSpec((None, where.table.shape[1]), lambda r, k, m: (r, 0)),
                *[pl.BlockSpec((None,), lambda r, k, m: (r,))] * 2,
                *[pl.BlockSpec(memory_space=pl.ANY)] * 2,
            ],
            out_specs=block,
            out_shape=jax.ShapeDtypeStruct(q_RKMh.shape, q_RQHh.dtype),
            compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
            interpret=self._interpret,
            name="paged_attention",
        )(q_RKMh, where.table, where.starts_R, ends_R, layer.k_PKht, layer.v_PKth)
        out = o_RKMh[:, :, :together].reshape(rows, num_kv, -1, queries, head_dim)
        return out.transpose(0, 3, 1, 2, 4).reshape(q_RQHh.shape)


def _kernel(
    q_ref: Any,
    table_ref: Any,
    start_ref: Any,
    end_ref: Any,
    k_ref: Any,
    v_ref: Any,
    o_ref: Any,
    *,
    queries: int,
    size: int,
    window: int | None,
) -> None:
    head, q_Mh = pl.program_id(1), q_ref[...]
    start, end = start_ref[...], end_ref[...]
    # Rows of a block are ordered by query head, then by query; those beyond the last one are padding.
    position_M = start + (pl.program_id(2) * size + jnp.arange(size)) % queries
    scale = 1 / math.sqrt(q_Mh.shape[1])
    product = partial(triton.dot, precision=lax.Precision.HIGHEST if q_Mh.dtype == jnp.float32 else None)

    def add(b: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        top_M, mass_M, total_Mh = carry
        page = table_ref[b]
        behind_Mt = position_M[:, None] - (b * PAGE + jnp.arange(PAGE))[None]
        seen_Mt = behind_Mt >= 0 if window is None else (behind_Mt >= 0) & (behind_Mt < window)
        scores_Mt = jnp.where(seen_Mt, product(q_Mh, k_ref[page, head]).astype(jnp.float32) * scale, MASKED)
        new_top_M = jnp.maximum(top_M, jnp.max(scores_Mt, axis=1))
        shrink_M = jnp.exp(top_M - new_top_M)
        weights_Mt = jnp.exp(scores_Mt - new_top_M[:, None])
        part_Mh = product(weights_Mt.astype(v_ref.dtype), v_ref[page, head]).astype(jnp.float32)
        mass_M = mass_M * shrink_M + jnp.sum(weights_Mt, axis=1)
        return new_top_M, mass_M, total_Mh * shrink_M[:, None] + part_Mh

    empty = jnp.full(size, MASKED, jnp.float32), jnp.zeros(size, jnp.float32), jnp.zeros(q_Mh.shape, jnp.float32)
    _, mass_M, total_Mh = lax.fori_loop(0, (end + PAGE - 1) // PAGE, add, empty)
    # A row that adds nothing has seen nothing; its output is meaningless but must not be NaN.
    o_ref[...] = (total_Mh / jnp.maximum(mass_M, 1e-30)[:, None]).astype(o_ref.dtype)
