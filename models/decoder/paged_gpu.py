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

from scope_jax.models.decoder.delta import TokenStep
from scope_jax.models.decoder.kinds import HeadTransform
from scope_jax.models.decoder.pages import Before, Loop, LoopPages
from scope_jax.models.decoder.paging import PAGE, Where
from scope_jax.models.kernels.cascade import MASKED, Carry
from scope_jax.models.kernels.delta_gpu import takes, token_step
from scope_jax.models.kernels.place_gpu import place_tokens

QUERIES = 64  # most rows of a block: queries times query heads of a kv head
FEWEST = 16  # rows of a Triton product
WIDEST = 256  # dimensions of a head: of wider ones the pages do not fit the memory of a multiprocessor


def _takes(head_dim: int) -> bool:
    return FEWEST <= head_dim <= WIDEST and head_dim.bit_count() == 1


class Triton(Loop):
    """The layout of `Loop`, which computes heads that the kernels do not take. interpret: Pallas's interpreter runs
    the kernels, on any platform."""

    def __init__(self, *, interpret: bool = False) -> None:
        self._interpret = interpret

    def place(
        self,
        layer: LoopPages,
        page_N: jax.Array,
        column_N: jax.Array,
        how: HeadTransform,
        positions_RQ: jax.Array,
        q_RQn: jax.Array,
        k_RQn: jax.Array,
        v_RQKh: jax.Array,
    ) -> tuple[jax.Array, LoopPages]:
        """While rows decode, by a kernel; keys and values in 8 bits by XLA."""
        narrow, several = layer.k_PKt is not None, positions_RQ.shape[1] > 1
        if several or narrow or how.mixer.rope is None or not _takes(how.mixer.head_dim):
            return super().place(layer, page_N, column_N, how, positions_RQ, q_RQn, k_RQn, v_RQKh)
        q_NHh, k_NKh, v_NKh = (x.reshape(len(x), -1, how.mixer.head_dim) for x in (q_RQn, k_RQn, v_RQKh))
        q_NHh, *pages = place_tokens(
            *(q_NHh, k_NKh, v_NKh),
            *(layer.k_PKht, layer.v_PKth),
            *(page_N, column_N, positions_RQ[:, 0]),
            rope=how.mixer.rope,
            scales=how.scales,
            eps=how.eps,
            interpret=self._interpret,
        )
        return q_NHh[:, None], LoopPages(*pages)

    def token_step(self, key_dim: int, value_dim: int) -> TokenStep | None:
        return partial(token_step, interpret=self._interpret) if takes(key_dim, value_dim) else None

    def _attention(
        self, layer: LoopPages, q_RKmh: jax.Array, where: Where, queries: int, window: int | None, before: Before
    ) -> jax.Array:
        if not _takes(q_RKmh.shape[-1]):
            return super()._attention(layer, q_RKmh, where, queries, window, before)
        return self._pages(layer, q_RKmh, where, queries, window, before)[0]

    def _sums(self, layer: LoopPages, q_BKMh: jax.Array, where: Where) -> Carry:
        if not _takes(q_BKMh.shape[-1]):
            return super()._sums(layer, q_BKMh, where)
        return Carry(*self._pages(layer, q_BKMh, where, 1, None, None, ends=False))

    def _pages(
        self,
        layer: LoopPages,
        q_RKmh: jax.Array,
        where: Where,
        queries: int,
        window: int | None,
        before: Before,
        ends: bool = True,
    ) -> tuple[jax.Array, ...]:
        """Attention of the rows' queries over their pages: with `ends` its result, otherwise the parts of a `Carry`."""
        rows, num_kv, together, head_dim = q_RKmh.shape
        size = min(QUERIES, max(FEWEST, 1 << (together - 1).bit_length()))
        ends_R = jnp.where(where.counts_R > 0, where.starts_R + where.counts_R, 0)
        vectors = pl.BlockSpec((None, None, together, head_dim), lambda r, k, m: (r, k, 0, 0))
        numbers = pl.BlockSpec((None, None, together), lambda r, k, m: (r, k, 0))
        row = pl.BlockSpec((None,), lambda r, k, m: (r,))
        carry, specs = (), ()
        if before is not None:
            carry, specs = (before[1], *before[0]), (row, numbers, numbers, vectors)
        cache = [one for one in layer if one is not None]
        shape = (rows, num_kv, together)
        sums = [jax.ShapeDtypeStruct(x, jnp.float32) for x in (shape, shape, q_RKmh.shape)]
        return pl.pallas_call(
            partial(
                _kernel,
                queries=queries,
                size=size,
                window=window,
                begun=before is not None,
                scaled=layer.k_PKt is not None,
            ),
            grid=(rows, num_kv, -(-together // size)),
            in_specs=[
                vectors,
                pl.BlockSpec((None, where.table.shape[1]), lambda r, k, m: (r, 0)),
                *[row] * 2,
                *[pl.BlockSpec(memory_space=pl.ANY)] * len(cache),
                *specs,
            ],
            out_specs=[vectors] if ends else [numbers, numbers, vectors],
            out_shape=[jax.ShapeDtypeStruct(q_RKmh.shape, q_RKmh.dtype)] if ends else sums,
            compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
            interpret=self._interpret,
            name="paged_attention" if ends else "shared_pages_attention",
        )(q_RKmh, where.table, where.starts_R, ends_R, *cache, *carry)


def _kernel(
    q_ref: Any,
    table_ref: Any,
    start_ref: Any,
    end_ref: Any,
    k_ref: Any,
    v_ref: Any,
    *others: Any,
    queries: int,
    size: int,
    window: int | None,
    begun: bool,
    scaled: bool,
) -> None:
    """others: of keys and values in 8 bits the scales; with `begun` the first page and the three parts of a carry; then
    the outputs, one or three."""
    scales, others = others[: 2 * scaled], others[2 * scaled :]
    # Rows of a block are ordered by query head, then by query; those beyond the last one repeat it and are not stored.
    head, row_M = pl.program_id(1), pl.program_id(2) * size + jnp.arange(size)
    last = q_ref.shape[0] - 1

    def at(ref: Any, row_M: jax.Array) -> Any:
        return ref.at[row_M] if len(ref.shape) == 1 else ref.at[row_M[:, None], dim_h[None]]

    def read(ref: Any) -> jax.Array:
        return triton.load(at(ref, jnp.minimum(row_M, last)))

    def store(ref: Any, x: jax.Array) -> None:
        stored = row_M <= last if x.ndim == 1 else (row_M <= last)[:, None]
        triton.store(at(ref, row_M), x.astype(ref.dtype), mask=stored)

    dim_h = jnp.arange(q_ref.shape[1])
    q_Mh = read(q_ref)
    start, end = start_ref[...], end_ref[...]
    position_M = start + jnp.minimum(row_M, last) % queries
    scale = 1 / math.sqrt(q_Mh.shape[1])
    product = partial(triton.dot, precision=lax.Precision.HIGHEST if q_Mh.dtype == jnp.float32 else None)

    def add(b: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        top_M, mass_M, total_Mh = carry
        page = table_ref[b]
        behind_Mt = position_M[:, None] - (b * PAGE + jnp.arange(PAGE))[None]
        seen_Mt = behind_Mt >= 0 if window is None else (behind_Mt >= 0) & (behind_Mt < window)
        scores_Mt = product(q_Mh, k_ref[page, head].astype(q_Mh.dtype)).astype(jnp.float32) * scale
        if scaled:
            scores_Mt *= scales[0][page, head][None]
        scores_Mt = jnp.where(seen_Mt, scores_Mt, MASKED)
        new_top_M = jnp.maximum(top_M, jnp.max(scores_Mt, axis=1))
        shrink_M = jnp.exp(top_M - new_top_M)
        weights_Mt = jnp.exp(scores_Mt - new_top_M[:, None])
        scaled_Mt = weights_Mt * scales[1][page, head][None] if scaled else weights_Mt
        part_Mh = product(scaled_Mt.astype(q_Mh.dtype), v_ref[page, head].astype(q_Mh.dtype)).astype(jnp.float32)
        mass_M = mass_M * shrink_M + jnp.sum(weights_Mt, axis=1)
        return new_top_M, mass_M, total_Mh * shrink_M[:, None] + part_Mh

    if begun:
        first_ref, *before, o_ref = others
        first, (top_M, mass_M, total_Mh) = first_ref[...], map(read, before)
    else:
        first, top_M, mass_M = 0, jnp.full(size, MASKED, jnp.float32), jnp.zeros(size, jnp.float32)
        total_Mh, o_ref = jnp.zeros(q_Mh.shape, jnp.float32), others[-1]
    carry = lax.fori_loop(first, (end + PAGE - 1) // PAGE, add, (top_M, mass_M, total_Mh))
    if not begun and len(others) > 1:
        for ref, part in zip(others, carry, strict=True):
            store(ref, part)
        return
    # A row that adds nothing has seen nothing; its output is meaningless but must not be NaN.
    store(o_ref, carry[2] / jnp.maximum(carry[1], 1e-30)[:, None])
