"""Writes of many rows at once, as scatters that XLA need not sort.

Where programs have to be deterministic, XLA sorts the updates of a scatter whose indices it does not know to be unique.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int


def apart(index_N: Int[Array, " N"], size: int) -> Int[Array, " N"]:
    """Row numbers that are all different, if those within `size` are: the others, which are past the end and write
    nothing, are spread out."""
    return jnp.where(index_N < size, index_N, size + jnp.arange(index_N.shape[0], dtype=jnp.int32))


def put(old: Array, index_N: Any, new: Any) -> Array:
    """The array with rows written; numbers past the end write nothing, all others are different."""
    return old.at[apart(jnp.asarray(index_N), old.shape[0])].set(new, mode="drop", unique_indices=True)
