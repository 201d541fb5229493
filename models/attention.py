"""Reference attention: grouped queries, causal inside segments, softmax in float32."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


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

    Keys and values are never repeated in memory: the queries of one kv head form a dimension of their own.
    """
    rows, length, num_heads, head_dim = q_BTHh.shape
    num_kv = k_BUKh.shape[2]
    q = q_BTHh.reshape(rows, length, num_kv, num_heads // num_kv, head_dim)
    scores = jnp.einsum("BTKqh,BUKh->BKqTU", q, k_BUKh, preferred_element_type=jnp.float32) / math.sqrt(head_dim)
    scores = jnp.where(mask_BTU[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v_BUKh.dtype)
    return jnp.einsum("BKqTU,BUKh->BTKqh", weights, v_BUKh).reshape(q_BTHh.shape)
