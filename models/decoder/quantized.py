"""Matrices in 8 bits with a scale for each output, as the engine may keep them: W ≈ q s, q = round(W / s).

s = max |W| / 127 over an output's inputs, so that the largest one is exact (symmetric, without a zero point). Half of
the bytes of bfloat16 are read for each token, and the scale comes after the product. Keys and values of the cache are
rounded alike, with a scale for each token and head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from scope_jax.sharding.spec import Param, ones

LARGEST = 127


@partial(jax.tree_util.register_dataclass, data_fields=("values", "scale"), meta_fields=())
@dataclass(frozen=True)
class Quantized:
    """A quantised matrix; leaves are arrays, or their declarations or shardings."""

    values: Any
    """int8 [..., in, out]."""
    scale: Any
    """float32 [..., out]."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrix."""
        return self.values.shape


def is_quantized(w: Any) -> bool:
    """For `is_leaf` of tree functions."""
    return isinstance(w, Quantized)


def quantize(w: jax.Array) -> Quantized:
    """The matrix [..., in, out] in 8 bits. An output without weights has scale 1."""
    wide = w.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=-2)
    scale = jnp.where(largest > 0, largest / LARGEST, 1.0)
    return Quantized(jnp.round(wide / scale[..., None, :]).astype(jnp.int8), scale)


def round_vectors(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(int8 [..., h], float32 [...]): vectors in 8 bits and their scales. One without numbers has scale 1, one that is
    not finite none that is."""
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=-1)
    scale = jnp.where(largest == 0, 1.0, largest / LARGEST)
    return jnp.round(wide / scale[..., None]).astype(jnp.int8), scale


def dequantized(w: Quantized) -> jax.Array:
    """What the matrix stands for, in float32."""
    return w.values.astype(jnp.float32) * w.scale[..., None, :]


def quantized_product(x_TI: jax.Array, w: Quantized, precision: lax.Precision | None = None) -> jax.Array:
    """x W, [T, out] in the dtype of x; the sum over inputs is scaled in float32."""
    # With x: alone the values, which a loop over tokens does not change, would be converted before it, all at once.
    values, x_TI = lax.optimization_barrier((w.values, x_TI))
    sums = jnp.matmul(x_TI, values.astype(x_TI.dtype), precision=precision, preferred_element_type=jnp.float32)
    return (sums * w.scale).astype(x_TI.dtype)


def declare_quantized(weight: Param) -> Quantized:
    """The declaration of a matrix in 8 bits, sharded as the matrix."""
    values = Param(weight.shape, weight.axes, weight.init, jnp.int8)
    scale = Param((*weight.shape[:-2], weight.shape[-1]), (*weight.axes[:-2], weight.axes[-1]), ones, jnp.float32)
    return Quantized(values, scale)
