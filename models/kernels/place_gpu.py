"""What a layer does with new tokens before attention over pages, as one Pallas (Triton) kernel for GPUs: norm and
rotation of queries and keys, and writing keys and values into their pages.

XLA's program starts five kernels for this in every layer, which for the few tokens of decoding take longer to start
than to run. A program of the grid has a token, a kv head and its query heads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

from scope_jax.models.kernels.rope import Rope, cos_sin


def place_tokens(
    q_NHh: Float[Array, "N H h"],
    k_NKh: Float[Array, "N K h"],
    v_NKh: Float[Array, "N K h"],
    k_PKht: Float[Array, "P K h t"],
    v_PKth: Float[Array, "P K t h"],
    page_N: Int[Array, " N"],
    column_N: Int[Array, " N"],
    positions_N: Int[Array, " N"],
    *,
    rope: Rope,
    scales: tuple[jax.Array, ...] | None,
    eps: float,
    interpret: bool = False,
) -> tuple[Float[Array, "N H h"], Float[Array, "P K h t"], Float[Array, "P K t h"]]:
    """Queries and keys by head, each divided by its root mean square and multiplied by one of the two scales [h] (None:
    the model has no such norm), and rotated; and the pages with the tokens, no two in one place, as
    `kernels.attention.storable` leaves them. A page past the end writes nothing.

    h is a power of two. interpret: Pallas's interpreter runs the kernel, on any platform.
    """
    tokens, num_kv, head_dim = k_NKh.shape
    # Of projections that XLA has joined, nothing is copied: they are parts of one product.
    all_NCh = jnp.concatenate([q_NHh, k_NKh, v_NKh], axis=1)
    cos_Np, sin_Np = cos_sin(positions_N, rope, head_dim)
    pairs = cos_Np.shape[1]
    still_Nx = jnp.ones((tokens, head_dim - 2 * pairs), jnp.float32)
    turns_N2h = jnp.concatenate([cos_Np, cos_Np, still_Nx, -sin_Np, sin_Np, 0 * still_Nx], axis=1)
    norms = () if scales is None else tuple(scale.astype(jnp.float32) for scale in scales)
    number = pl.BlockSpec((None,), lambda n, k: (n,))
    pages = pl.BlockSpec(memory_space=pl.ANY)
    first = 4 + len(norms)
    return pl.pallas_call(
        partial(_kernel, group=q_NHh.shape[1] // num_kv, pairs=pairs, eps=eps),
        grid=(tokens, num_kv),
        in_specs=[
            pl.BlockSpec((None, *all_NCh.shape[1:]), lambda n, k: (n, 0, 0)),
            pl.BlockSpec((None, 2 * head_dim), lambda n, k: (n, 0)),
            *(number, number),
            *[pl.BlockSpec((head_dim,), lambda n, k: (0,))] * len(norms),
            *(pages, pages),
        ],
        out_specs=[pl.BlockSpec((None, *q_NHh.shape[1:]), lambda n, k: (n, 0, 0)), pages, pages],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q_NHh, k_PKht, v_PKth)],
        input_output_aliases={first: 1, first + 1: 2},
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=1),
        interpret=interpret,
        name="place_tokens",
    )(all_NCh, turns_N2h, page_N, column_N, *norms, k_PKht, v_PKth)


def _kernel(
    x_ref: Any,
    turns_ref: Any,
    page_ref: Any,
    column_ref: Any,
    *refs: Any,
    group: int,
    pairs: int,
    eps: float,
) -> None:
    *norms, _, _, q_out, k_out, v_out = refs
    kv, num_kv = pl.program_id(1), k_out.shape[1]
    head_dim = x_ref.shape[1]
    dim_h, cos_h, sin_h = jnp.arange(head_dim), turns_ref[:head_dim], turns_ref[head_dim:]
    partner_h = jnp.where(dim_h < pairs, dim_h + pairs, jnp.where(dim_h < 2 * pairs, dim_h - pairs, dim_h))

    def turned(head_g: jax.Array, number: int) -> jax.Array:
        def normed(at_h: jax.Array) -> jax.Array:
            one_gh = triton.load(x_ref.at[head_g[:, None], at_h[None]])
            if not norms:
                return one_gh.astype(jnp.float32)
            wide_gh = one_gh.astype(jnp.float32)
            root_g = lax.rsqrt(jnp.mean(jnp.square(wide_gh), axis=1) + eps)
            scaled_gh = wide_gh * root_g[:, None] * triton.load(norms[number].at[at_h])[None]
            return scaled_gh.astype(x_ref.dtype).astype(jnp.float32)

        turned_gh = normed(dim_h) * cos_h + normed(partner_h) * sin_h
        return turned_gh.astype(x_ref.dtype)

    # A block has a power of two of heads: those beyond the last one repeat it and are not stored.
    head_g = jnp.arange(1 << (group - 1).bit_length())
    q_gh = turned(kv * group + jnp.minimum(head_g, group - 1), 0)
    within_g = head_g < group
    triton.store(q_out.at[(kv * group + head_g)[:, None], dim_h[None]], q_gh, mask=within_g[:, None])
    page, column, key = page_ref[...], column_ref[...], num_kv * group + kv

    @pl.when(page < k_out.shape[0])
    def _() -> None:
        k_h, v_h = turned(key[None], 1)[0], x_ref[key + num_kv, :]
        finite = jnp.max(jnp.where(jnp.abs(v_h) < jnp.inf, 0, 1)) == 0
        k_out[page, kv, :, column] = jnp.where(finite, k_h, jnp.nan).astype(k_out.dtype)
        v_out[page, kv, column, :] = jnp.where(finite, v_h, 0).astype(v_out.dtype)
