"""Reference attention: grouped queries, causal inside segments, softmax in float32."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

MASKED = -1e30  # far below any score, and finite: its exponential is exactly 0 beside any other


def causal_mask(segments_BT: Int[Array, "B T"]) -> Bool[Array, "B T U"]:
    """True where token t may look at token u: u ≤ t in the same row and the same segment.

    Every token sees itself, so no row of the softmax is empty, not even in padding (segment 0).
    """
    length = segments_BT.shape[1]
    causal_TU = jnp.tril(jnp.ones((length, length), bool))
    return causal_TU & (segments_BT[:, :, None] == segments_BT[:, None, :])


def attention(
    q_BTHh: Float[Array, "B T H h"],
    k_BUKh: Float[Array, "B U K h"],
    v_BUKh: Float[Array, "B U K h"],
    mask_BTU: Bool[Array, "B T U"],
) -> Float[Array, "B T H h"]:
    """softmax(q kᵀ / √h) v over the tokens the mask allows; query head i reads kv head i // (H/K).

    Keys and values are never repeated in memory: the queries of one kv head are stacked along the rows of one product.
    The products are batched over [B, K] with contiguous rows, the form in which XLA's CPU backend calls its matmul
    kernel for the forward and the backward pass alike; weights are divided by their sum after the second product.
    """
    rows, length, num_heads, head_dim = q_BTHh.shape
    num_kv = k_BUKh.shape[2]
    grouped = (rows, num_kv, num_heads // num_kv, length)  # B K q T
    q = q_BTHh.reshape(rows, length, num_kv, -1, head_dim).transpose(0, 2, 3, 1, 4).reshape(rows, num_kv, -1, head_dim)
    scores = jnp.matmul(q, k_BUKh.transpose(0, 2, 3, 1), preferred_element_type=jnp.float32) / math.sqrt(head_dim)
    # Adding the mask is vectorised on CPU, selecting by it is not (it doubled the forward pass).
    bias_BTU = jnp.where(mask_BTU, 0.0, MASKED)
    scores = scores.reshape(*grouped, -1) + bias_BTU[:, None, None]
    weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    total = weights.sum(-1, keepdims=True)
    weights = weights.astype(v_BUKh.dtype).reshape(rows, num_kv, -1, k_BUKh.shape[1])
    out = jnp.matmul(weights, v_BUKh.transpose(0, 2, 1, 3), preferred_element_type=jnp.float32)
    out = (out.reshape(*grouped, head_dim) / total).astype(q_BTHh.dtype)
    return out.transpose(0, 3, 1, 2, 4).reshape(q_BTHh.shape)
