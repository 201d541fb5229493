"""Rotary positions (Su et al. 2021) in the half-split order of Hugging Face checkpoints."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def frequencies(head_dim: int, theta: float) -> np.ndarray:
    """θ^(−2i/h) for i < h/2, float32, rounded as the reference implementation does (a power, then its inverse)."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.float32(1.0) / np.power(np.float32(theta), exponents)


def rotate(x_BTHh: Float[Array, "B T H h"], positions_BT: Int[Array, "B T"], theta: float) -> Float[Array, "B T H h"]:
    """x with the pair (i, i + h/2) of each head turned by the angle position · θ^(−2i/h); computed in float32."""
    half = x_BTHh.shape[-1] // 2
    angles = (positions_BT[..., None].astype(jnp.float32) * frequencies(2 * half, theta))[:, :, None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    low, high = x_BTHh[..., :half].astype(jnp.float32), x_BTHh[..., half:].astype(jnp.float32)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x_BTHh.dtype)
