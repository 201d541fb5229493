"""Copies weights to other shardings, device to device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def reshard(params: Any, shardings: Any, dtype: Any = None) -> Any:
    """The same values under `shardings` (one for all leaves, or a tree of them), cast to dtype if one is given.

    Always allocates new buffers, even where a leaf already has its sharding: the source may be donated afterwards.
    Nothing passes through the host. Source and target must be on the same devices; or have no device in common, each
    process asking for a copy on its own devices; or the source is sharded over all processes, and each of them asks for
    a copy on all of its own devices, with meshes of the same sizes.
    """

    def move(x: jax.Array, sharding: Any) -> jax.Array:
        cast = x if dtype is None else x.astype(dtype)
        if x.sharding.device_set.isdisjoint(sharding.device_set):
            return _on_other_devices(cast, sharding)
        if sharding.is_fully_addressable and not x.is_fully_addressable:
            return _on_own_devices(cast, sharding)
        return jax.device_put(cast, sharding, may_alias=False)

    if isinstance(shardings, jax.sharding.Sharding):
        return jax.tree.map(lambda x: move(x, shardings), params)
    return jax.tree.map(move, params, shardings)


def _on_other_devices(x: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """A copy of a sharded array on devices that have no part of it: it is gathered on its own devices, which then send
    the parts in turn. (Between shardings with different parts JAX itself goes through the host.)"""
    if not x.sharding.is_fully_replicated:
        assert isinstance(x.sharding, NamedSharding), x.sharding
        # By a program: `device_put` goes through the host here since JAX 0.12.
        x = jax.jit(lambda x: x, out_shardings=NamedSharding(x.sharding.mesh, PartitionSpec()))(x)
    whole = [shard.data for shard in x.addressable_shards]
    places = sharding.addressable_devices_indices_map(x.shape)
    parts = [
        jax.device_put(whole[number % len(whole)][place], device, may_alias=False)
        for number, (device, place) in enumerate(places.items())
    ]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, parts)


def _on_own_devices(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """A copy of an array of all processes, on this process's devices: it is sharded over the devices of each process
    as over its own, and copied to every process."""
    own = {device: place for place, device in enumerate(_of(jax.process_index()))}
    devices = np.asarray(sharding.mesh.devices)
    order = [own[device] for device in devices.flat]
    grid = np.array([[_of(process)[place] for place in order] for process in range(jax.process_count())])
    mesh = Mesh(grid.reshape(jax.process_count(), *devices.shape), ("process", *sharding.mesh.axis_names))
    copies = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*sharding.spec)), may_alias=False)
    parts = {shard.device: shard.data for shard in copies.addressable_shards}
    return jax.make_array_from_single_device_arrays(x.shape, sharding, [parts[device] for device in devices.flat])


def _of(process: int) -> list[Any]:
    return sorted((d for d in jax.devices() if d.process_index == process), key=lambda device: device.id)
