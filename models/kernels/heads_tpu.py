"""Norm and rotation of the queries and keys of a few tokens, as one Pallas kernel for TPUs.

When each row decodes one token, these are ten small operations of XLA's in every layer, half of which only change a
layout. Here the heads are read as the projections wrote them, and written as attention reads them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from scope_jax.models.kernels.rope import Rope, cos_sin

ROWS = 64  # most tokens at a time


def norm_and_rotate(
    q_NHh: Float[Array, "N Hh"],
    k_NKh: Float[Array, "N Kh"],
    scales: tuple[jax.Array, ...] | None,
    positions_N: Int[Array, " N"],
    rope: Rope,
    head_dim: int,
    eps: float,
    interpret: bool = False,
) -> tuple[Float[Array, "N H h"], Float[Array, "N K h"]]:
    """`models.decoder.kinds.plain_heads`: queries and keys by head, each divided by its root mean square and multiplied
    by one of the two scales [h] (None: the model has no such norm), and rotated.

    head_dim is a multiple of 128. interpret: Pallas's interpreter runs the kernel, on any platform.
    """
    tokens = q_NHh.shape[0]
    cos_Np, sin_Np = cos_sin(positions_N, rope, head_dim)
    cos_Nh, sin_Nh = (jnp.concatenate(pair, axis=-1) for pair in ((cos_Np, cos_Np), (-sin_Np, sin_Np)))
    size = min(ROWS, tokens)

    def rows(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((size, *shape), lambda n: (n, *(0 for _ in shape)))

    def heads(y: jax.Array) -> tuple[int, int]:
        return y.shape[1] // head_dim, head_dim

    norms = [] if scales is None else [scale.astype(jnp.float32)[None] for scale in scales]
    return pl.pallas_call(
        partial(_kernel, eps=eps),
        grid=(-(-tokens // size),),
        in_specs=[
            *(rows(x.shape[1]) for x in (q_NHh, k_NKh, cos_Nh, sin_Nh)),
            *(pl.BlockSpec((1, head_dim), lambda n: (0, 0)) for _ in norms),
        ],
        out_specs=[rows(*heads(q_NHh)), rows(*heads(k_NKh))],
        out_shape=[jax.ShapeDtypeStruct((tokens, *heads(y)), y.dtype) for y in (q_NHh, k_NKh)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=interpret,
        name="norm_and_rotate",
    )(q_NHh, k_NKh, cos_Nh, sin_Nh, *norms)


def _kernel(q_ref: Any, k_ref: Any, cos_ref: Any, sin_ref: Any, *refs: Any, eps: float) -> None:
    *norms, q_out, k_out = refs
    for number, (y_ref, o_ref) in enumerate(((q_ref, q_out), (k_ref, k_out))):
        head_dim = o_ref.shape[2]
        for head in range(o_ref.shape[1]):
            x_Nh = y_ref[:, head * head_dim : (head + 1) * head_dim].astype(jnp.float32)
            if norms:
                normed = x_Nh * lax.rsqrt(jnp.mean(jnp.square(x_Nh), axis=-1, keepdims=True) + eps)
                x_Nh = (normed * norms[number][...]).astype(o_ref.dtype).astype(jnp.float32)
            turned_Nh = pltpu.roll(x_Nh, head_dim // 2, 1)
            o_ref[:, head, :] = (x_Nh * cos_ref[...] + turned_Nh * sin_ref[...]).astype(o_ref.dtype)
