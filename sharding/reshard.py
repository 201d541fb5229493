"""Copies weights to other shardings, device to device."""

from __future__ import annotations

from typing import Any

import jax


def reshard(params: Any, shardings: Any, dtype: Any = None) -> Any:
    """The same values under `shardings` (one for all leaves, or a tree of them), cast to dtype if one is given.

    Always allocates new buffers, even where a leaf already has its sharding: the source may be donated afterwards.
    Nothing passes through the host. Source and target must be on the same devices, or on two sets of devices that XLA
    can transfer between.
    """

    def move(x: jax.Array, sharding: Any) -> jax.Array:
        cast = x if dtype is None else x.astype(dtype)
        return jax.device_put(cast, sharding, may_alias=False)

    if isinstance(shardings, jax.sharding.Sharding):
        return jax.tree.map(lambda x: move(x, shardings), params)
    return jax.tree.map(move, params, shardings)
