"""One declaration per weight; initial values, abstract values and shardings are tree maps over the declarations."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scope_jax.errors import UserError
from scope_jax.sharding.rules import Rules

Initializer = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]
Tree = Any  # nested dicts with one kind of leaf


@dataclass(frozen=True)
class Param:
    """Declaration of a weight: shape, logical name of each axis (None: never sharded), initializer, dtype.

    padding: rows at the end of the first dimension that are zero, so that the number of devices divides it; files of
    other libraries do not have them.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: Initializer
    dtype: Any
    padding: int = 0

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.axes):
            raise ValueError(f"Param of shape {self.shape} names {len(self.axes)} axes; give one name per dimension.")

    @property
    def unpadded(self) -> tuple[int, ...]:
        """The shape without padding."""
        return (self.shape[0] - self.padding, *self.shape[1:]) if self.padding else self.shape


def normal(std: float) -> Initializer:
    """Initializer: N(0, std²), drawn in float32."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return (std * jax.random.normal(key, shape, jnp.float32)).astype(dtype)

    return init


def ones(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Initializer: all ones."""
    del key
    return jnp.ones(shape, dtype)


def zeros(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Initializer: all zeros."""
    del key
    return jnp.zeros(shape, dtype)


def path_name(path: tuple[Any, ...]) -> str:
    """A tree path as "layers.q_D_Hh"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def init_params(tree: Tree, key: jax.Array) -> Tree:
    """Initial values. Each weight's key is `key` folded with a checksum of its path, so that adding a weight to the
    tree does not change the others, and the values do not depend on the mesh when this runs under jit with
    out_shardings.
    """

    def init(path: tuple[Any, ...], param: Param) -> jax.Array:
        seed = zlib.crc32(path_name(path).encode())
        values = param.init(jax.random.fold_in(key, seed), param.unpadded, param.dtype)
        return jnp.pad(values, [(0, param.padding)] + [(0, 0)] * (values.ndim - 1)) if param.padding else values

    return jax.tree_util.tree_map_with_path(init, tree)


def abstract_params(tree: Tree) -> Tree:
    """jax.ShapeDtypeStruct for each weight."""
    return jax.tree.map(lambda param: jax.ShapeDtypeStruct(param.shape, param.dtype), tree)


def spec_for(param: Param, rules: Rules) -> PartitionSpec:
    """PartitionSpec of one weight, one entry per dimension.

    Raises ValueError if the weight names a logical axis that the rules do not list.
    """
    table = dict(rules)
    taken: set[str] = set()
    entries: list[str | tuple[str, ...] | None] = []
    for axis in param.axes:
        if axis is None:
            entries.append(None)
            continue
        if axis not in table:
            raise ValueError(f"Logical axis {axis!r} is not in the sharding rules (known: {', '.join(table)}).")
        free = tuple(name for name in table[axis] if name not in taken)
        taken.update(free)
        entries.append(free if len(free) > 1 else free[0] if free else None)
    return PartitionSpec(*entries)


def partition_specs(tree: Tree, rules: Rules) -> Tree:
    """PartitionSpec for each weight."""
    return jax.tree.map(lambda param: spec_for(param, rules), tree)


def shards_per_dim(spec: PartitionSpec, mesh: Mesh) -> tuple[int, ...]:
    """The number of shards that the spec splits each dimension into on this mesh."""
    names = [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec]
    return tuple(math.prod(mesh.shape[name] for name in entry) for entry in names)


def param_shardings(tree: Tree, mesh: Mesh, rules: Rules) -> Tree:
    """NamedSharding for each weight.

    Raises ValueError naming the weight and the dimension if a dimension is not divisible.
    """

    def sharding(path: tuple[Any, ...], param: Param) -> NamedSharding:
        spec = spec_for(param, rules)
        for size, axis, pieces in zip(param.shape, param.axes, shards_per_dim(spec, mesh), strict=True):
            if size % pieces:
                raise UserError(
                    f"Weight {path_name(path)}: its {axis} dimension of {size} is not divisible by {pieces}; "
                    f"choose mesh sizes (now {dict(mesh.shape)}) that divide it."
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(sharding, tree)
