"""Rotary embeddings (Su et al. 2021) in the half-split order of Hugging Face checkpoints, and their scaled forms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from scope_jax.errors import UserError


@dataclass(frozen=True)
class Rope:
    """Rotary embedding parameters: the angle by which each pair of features is rotated per position.

    theta: base of the wavelengths. kind: "default"; "linear" (Chen et al. 2023) and "proportional" divide all angles by
    `factor`; "llama3" and "yarn" (Peng et al. 2023) scale long wavelengths only. original_positions: the context length
    before scaling. share: the leading share of a head's dimensions that turns, as a head of that size would; of kind
    "proportional" (Gemma 4), the leading share of its pairs, by their angles in the whole head. low_freq_factor,
    high_freq_factor: for llama3; wavelengths above original_positions / low_freq_factor are scaled by the full factor,
    those below original_positions / high_freq_factor not at all. beta_fast, beta_slow: for yarn; pairs
    that rotate more than beta_fast times within original_positions keep their angle, those that rotate less than
    beta_slow times are scaled by the full factor. truncate: yarn's bounds are rounded outwards to whole pairs.
    attention_factor: for yarn; multiplies the rotated queries and keys. Each kind ignores the parameters of the others.
    """

    theta: float
    kind: Literal["default", "linear", "llama3", "yarn", "proportional"] = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(f"Rope.share is {self.share}; the share of a head that turns is above 0 and at most 1.")
        if self.kind in ("llama3", "yarn") and self.original_positions < 1:
            raise UserError(f"Rope of kind {self.kind!r} needs original_positions, the length it was trained for.")
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise UserError(
                f"Rope of kind 'llama3' needs low_freq_factor ({self.low_freq_factor}) below high_freq_factor "
                f"({self.high_freq_factor})."
            )


def frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Angle per position of each pair that turns, float32; θ^(−2i/h) without scaling, h the dimensions that turn. Of
    kind "proportional", of all pairs: 0 for those that do not turn.

    The operations and their order are those of the reference implementation, so that float32 rounding agrees with it.
    """
    if rope.kind != "proportional":
        head_dim = int(head_dim * rope.share) // 2 * 2
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.power(np.float32(rope.theta), exponents)
    plain = np.float32(1) / powers
    if rope.kind == "linear":
        return plain / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        ramp = _yarn_ramp(rope, head_dim)
        stretched = np.float32(1) / (np.float32(rope.factor) * powers)
        return stretched * ramp + plain * (np.float32(1) - ramp)
    if rope.kind == "proportional":
        turning = np.arange(head_dim // 2) < int(rope.share * head_dim // 2)
        return np.where(turning, plain / np.float32(rope.factor), np.float32(0))
    return plain


def _llama3(rope: Rope, plain: np.ndarray) -> np.ndarray:
    """The full factor for long wavelengths, none for short ones, an interpolation in between."""
    wavelengths = np.float32(2 * math.pi) / plain
    turns = np.float32(rope.original_positions) / wavelengths
    low, high = np.float32(rope.low_freq_factor), np.float32(rope.high_freq_factor)
    blend = np.clip((turns - low) / (high - low), np.float32(0), np.float32(1))
    return (np.float32(1) - blend) * plain / np.float32(rope.factor) + blend * plain


def _yarn_ramp(rope: Rope, head_dim: int) -> np.ndarray:
    """Scaling weight of each pair: 0 below the pair that rotates beta_fast times, 1 above that of beta_slow."""

    def pair_of(turns: float) -> float:
        return head_dim * math.log(rope.original_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    pairs = np.arange(head_dim // 2, dtype=np.float32)
    return np.clip((pairs - np.float32(low)) / np.float32(high - low), np.float32(0), np.float32(1))


def cos_sin(positions: Int[Array, "..."], rope: Rope, head_dim: int) -> tuple[jax.Array, jax.Array]:
    """(cos, sin) of position · frequency_i, [..., pairs] in float32, times the rope's attention_factor."""
    angles = positions[..., None].astype(jnp.float32) * frequencies(rope, head_dim)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if rope.attention_factor != 1.0:
        cos, sin = cos * rope.attention_factor, sin * rope.attention_factor
    return cos, sin


def rotate(x_BTHh: Float[Array, "B T H h"], positions_BT: Int[Array, "B T"], rope: Rope) -> Float[Array, "B T H h"]:
    """x with the pair (i, i + n/2) of the n leading dimensions of each head that turn (`Rope.share`) rotated by
    position · frequency_i; computed in float32."""
    cos, sin = (x_BTp[:, :, None] for x_BTp in cos_sin(positions_BT, rope, x_BTHh.shape[-1]))
    half = cos.shape[-1]
    low, high = x_BTHh[..., :half].astype(jnp.float32), x_BTHh[..., half : 2 * half].astype(jnp.float32)
    turned = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x_BTHh.dtype)
    rest = x_BTHh[..., 2 * half :]
    return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned
