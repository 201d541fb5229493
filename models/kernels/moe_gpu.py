"""Grouped matrix products of experts on a GPU, as Pallas (Triton) kernels; see `models.decoder.moe.grouped_matmul`.

All blocks of all experts run side by side, each with one fixed shape, so that a row's bits do not depend on the other
rows. Sums are in float32; products of float32 arrays are, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

FEWEST = 16  # rows and columns of a Triton product
ROWS, WIDTH, INNER = 64, 128, 64  # of a block: rows, columns of the result, and what is multiplied at a time


def _size(most: int, length: int) -> int:
    """The power of two that covers `length`, from FEWEST to `most`."""
    return min(most, max(FEWEST, 1 << (length - 1).bit_length()))


def _product(dtype: Any) -> Any:
    return partial(triton.dot, precision=lax.Precision.HIGHEST if dtype == jnp.float32 else None)


def _call(kernel: Any, grid: tuple[int, ...], out: jax.ShapeDtypeStruct, interpret: bool) -> Any:
    whole = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[whole] * 4,
        out_specs=whole,
        out_shape=out,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name=kernel.func.__name__,
    )


def triton_matmul(
    x_JI: jax.Array, w_XIO: jax.Array, sizes_X: jax.Array, transposed: bool = False, interpret: bool = False
) -> jax.Array:
    """grouped_matmul, [J, O]; with transposed: x_JO times each expert's transpose, [J, I].

    interpret: Pallas's interpreter runs the kernel, on any platform. Rows behind the last group are arbitrary.
    """
    (rows, inner), experts = x_JI.shape, sizes_X.shape[0]
    width = w_XIO.shape[1 if transposed else 2]
    size = _size(ROWS, rows)
    # Every group starts a new block of rows: at most rows / size + X blocks.
    ends_X, counts_X = jnp.cumsum(sizes_X), -(-sizes_X // size)
    block_b = jnp.arange(-(-rows // size) + experts)
    expert_b = jnp.minimum(jnp.searchsorted(jnp.cumsum(counts_X), block_b, side="right"), experts - 1)
    first_b = (ends_X - sizes_X)[expert_b] + size * (block_b - (jnp.cumsum(counts_X) - counts_X)[expert_b])
    stop_b = ends_X[expert_b]
    blocks = size, _size(WIDTH, width), _size(INNER, inner)
    kernel = partial(_matmul_kernel, blocks=blocks, width=width, inner=inner, transposed=transposed)
    grid = (len(block_b), -(-width // blocks[1]))
    where = jnp.stack([first_b, stop_b], axis=1).astype(jnp.int32)
    out = jax.ShapeDtypeStruct((rows, width), x_JI.dtype)
    return _call(kernel, grid, out, interpret)(x_JI, w_XIO, where, expert_b.astype(jnp.int32))


def _matmul_kernel(
    x_ref: Any,
    w_ref: Any,
    where_ref: Any,
    expert_ref: Any,
    o_ref: Any,
    *,
    blocks: tuple[int, int, int],
    width: int,
    inner: int,
    transposed: bool,
) -> None:
    block, (size, wide, step) = pl.program_id(0), blocks
    first, stop, expert = where_ref[block, 0], where_ref[block, 1], expert_ref[block]
    row_m = first + jnp.arange(size)
    column = pl.program_id(1) * wide
    own_m, inside_n = row_m < stop, column + jnp.arange(wide) < width
    product = _product(x_ref.dtype)

    def add(k: jax.Array, total_mn: jax.Array) -> jax.Array:
        within_k = k * step + jnp.arange(step) < inner
        x = triton.load(
            x_ref.at[pl.ds(first, size), pl.ds(k * step, step)], mask=own_m[:, None] & within_k[None], other=0
        )
        if transposed:
            w = triton.load(
                w_ref.at[expert, pl.ds(column, wide), pl.ds(k * step, step)],
                mask=inside_n[:, None] & within_k[None],
                other=0,
            ).T
        else:
            w = triton.load(
                w_ref.at[expert, pl.ds(k * step, step), pl.ds(column, wide)],
                mask=within_k[:, None] & inside_n[None],
                other=0,
            )
        return total_mn + product(x, w).astype(jnp.float32)

    @pl.when(first < stop)
    def _() -> None:
        total_mn = lax.fori_loop(0, -(-inner // step), add, jnp.zeros((size, wide), jnp.float32))
        triton.store(
            o_ref.at[pl.ds(first, size), pl.ds(column, wide)],
            total_mn.astype(o_ref.dtype),
            mask=own_m[:, None] & inside_n[None],
        )


def triton_outer(x_JI: jax.Array, y_JO: jax.Array, sizes_X: jax.Array, interpret: bool = False) -> jax.Array:
    """Σ x yᵀ over each group's rows: [X, I, O] in float32."""
    height, width, experts = x_JI.shape[1], y_JO.shape[1], sizes_X.shape[0]
    blocks = _size(WIDTH, height), _size(WIDTH, width), _size(INNER, x_JI.shape[0])
    grid = (experts, -(-height // blocks[0]), -(-width // blocks[1]))
    ends_X = jnp.cumsum(sizes_X).astype(jnp.int32)
    out = jax.ShapeDtypeStruct((experts, height, width), jnp.float32)
    kernel = partial(_outer_kernel, blocks=blocks, height=height, width=width)
    return _call(kernel, grid, out, interpret)(x_JI, y_JO, ends_X - sizes_X.astype(jnp.int32), ends_X)


def _outer_kernel(
    x_ref: Any,
    y_ref: Any,
    start_ref: Any,
    end_ref: Any,
    o_ref: Any,
    *,
    blocks: tuple[int, int, int],
    height: int,
    width: int,
) -> None:
    expert, (tall, wide, step) = pl.program_id(0), blocks
    start, end = start_ref[expert], end_ref[expert]
    top, left = pl.program_id(1) * tall, pl.program_id(2) * wide
    inside_i, inside_o = top + jnp.arange(tall) < height, left + jnp.arange(wide) < width
    product = _product(x_ref.dtype)

    def add(k: jax.Array, total: jax.Array) -> jax.Array:
        first = start + k * step
        own_j = first + jnp.arange(step) < end
        x = triton.load(x_ref.at[pl.ds(first, step), pl.ds(top, tall)], mask=own_j[:, None] & inside_i[None], other=0)
        y = triton.load(y_ref.at[pl.ds(first, step), pl.ds(left, wide)], mask=own_j[:, None] & inside_o[None], other=0)
        return total + product(x.T, y).astype(jnp.float32)

    total = lax.fori_loop(0, (end - start + step - 1) // step, add, jnp.zeros((tall, wide), jnp.float32))
    triton.store(o_ref.at[expert, pl.ds(top, tall), pl.ds(left, wide)], total, mask=inside_i[:, None] & inside_o[None])
