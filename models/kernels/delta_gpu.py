"""A token of Gated DeltaNet on a GPU: one Pallas (Triton) kernel, which reads each state once and writes it once.

XLA's program reads it three times: for the product with the key, for that with the query, and to write it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float

SIDES = (16, 256)  # of a state, which a block of threads has in its registers


def takes(key_dim: int, value_dim: int) -> bool:
    """Whether the kernel takes states of this size."""
    return all(SIDES[0] <= side <= SIDES[1] and side.bit_count() == 1 for side in (key_dim, value_dim))


def token_step(
    q_RHh: Float[Array, "R H h"],
    k_RHh: Float[Array, "R H h"],
    v_RHe: Float[Array, "R H e"],
    reach_RH: Float[Array, "R H"],
    beta_RH: Float[Array, "R H"],
    added_R: Bool[Array, " R"],
    state_BHhe: Float[Array, "B H h e"],
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "R H e"], Float[Array, "B H h e"]]:
    """(o, the states) after a token of the first R rows, all in float32: with γ = reach and S the state before,

        n = β (v − γ Sᵀ k),    o = γ Sᵀ q + (q · k) n,    S' = γ S + k nᵀ

    Rows that are not `added` keep their states bit for bit, as do those behind the first R. interpret: Pallas's
    interpreter runs the kernel, on any platform.
    """
    rows, heads, key_dim = q_RHh.shape
    keys = pl.BlockSpec((None, None, key_dim), lambda r, h: (r, h, 0))
    values = pl.BlockSpec((None, None, v_RHe.shape[2]), lambda r, h: (r, h, 0))
    number = pl.BlockSpec((None, None), lambda r, h: (r, h))
    states = pl.BlockSpec((None, None, *state_BHhe.shape[2:]), lambda r, h: (r, h, 0, 0))
    return pl.pallas_call(
        _kernel,
        grid=(rows, heads),
        in_specs=[keys, keys, values, number, number, pl.BlockSpec((None,), lambda r, h: (r,)), states],
        out_specs=[values, states],
        out_shape=[jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (v_RHe, state_BHhe)],
        input_output_aliases={6: 1},
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
        interpret=interpret,
        name="delta_token_step",
    )(q_RHh, k_RHh, v_RHe, reach_RH, beta_RH, added_R, state_BHhe)


def _kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    reach_ref: Any,
    beta_ref: Any,
    added_ref: Any,
    s_ref: Any,
    o_ref: Any,
    new_ref: Any,
) -> None:
    q_h, k_h, reach, state_he = q_ref[...], k_ref[...], reach_ref[...], s_ref[...]
    of_key_e, of_query_e = (jnp.sum(state_he * x_h[:, None], axis=0) for x_h in (k_h, q_h))
    pseudo_e = beta_ref[...] * (v_ref[...] - reach * of_key_e)
    o_ref[...] = reach * of_query_e + jnp.sum(q_h * k_h) * pseudo_e
    new_ref[...] = jnp.where(added_ref[...], reach * state_he + k_h[:, None] * pseudo_e[None], state_he)
