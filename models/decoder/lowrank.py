"""Low-rank adaptation of one matrix (LoRA, Hu et al. 2021): y = x W + scale · ((x A) ∘ gate) B.

A `LowRank` takes the place of a matrix W [in, out] in a layer's weights; `product` and `models.decoder.moe` multiply by
it. A is [in, r] and B [r, out]; experts have a leading X. The factors of several policies stand side by side along r,
and `gate` keeps, for each row of the batch, those of its own policy: one product serves all of them, each factor is
read once, and a row's bits do not depend on the policies of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from scope_jax.models.decoder.quantized import Quantized, quantized_product
from scope_jax.sharding.collectives import Shards, mesh_axes
from scope_jax.sharding.spec import Initializer, Param, zeros


@partial(jax.tree_util.register_dataclass, data_fields=("weight", "a", "b", "gate"), meta_fields=("scale",))
@dataclass(frozen=True)
class LowRank:
    """An adapted matrix; leaves are arrays, or their declarations or shardings.

    gate: [R, r], 1 for the factors of the policy of row R and 0 for all others; None: one policy, of all rows.
    """

    weight: Any
    a: Any
    b: Any
    scale: float
    gate: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrix."""
        return self.weight.shape


def is_low_rank(w: Any) -> bool:
    """For `is_leaf` of tree functions."""
    return isinstance(w, LowRank)


def kaiming(fan_in: int) -> Initializer:
    """Initializer of A as in PEFT, kaiming_uniform_(a = √5): uniform within ±1/√fan_in."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        bound = 1 / math.sqrt(fan_in)
        return jax.random.uniform(key, shape, jnp.float32, -bound, bound).astype(dtype)

    return init


def factors_of(weight: Param, rank: int, dtype: Any, init: Initializer | None = None) -> tuple[Param, Param]:
    """Declarations of A and B, each sharded as the matrix on its outer axis. init: of A, None: `kaiming`; B is 0."""
    *lead, rows, columns = weight.shape
    *axes, row_axis, column_axis = weight.axes
    a = Param((*lead, rows, rank), (*axes, row_axis, None), kaiming(rows) if init is None else init, dtype)
    return a, Param((*lead, rank, columns), (*axes, None, column_axis), zeros, dtype)


def product(x: jax.Array, w: jax.Array | LowRank | Quantized, precision: lax.Precision | None = None) -> jax.Array:
    """x w over the last dimension of x; x is [R, ..., in]. precision: of the product with the matrix.

    The matmul runs on [tokens, in]: with batch and token dimensions separate, the gradient of w contracts two
    dimensions, for which XLA's CPU backend has no fast path (the gradient of a SwiGLU layer took twice as long).
    """
    flat = x.reshape(-1, x.shape[-1])
    if not isinstance(w, LowRank):
        return _times(flat, w, precision).reshape(*x.shape[:-1], w.shape[-1])
    low = flat @ w.a
    if w.gate is not None:
        low = (low.reshape(x.shape[0], -1, low.shape[-1]) * w.gate[:, None]).reshape(low.shape)
    return (_times(flat, w.weight, precision) + w.scale * (low @ w.b)).reshape(*x.shape[:-1], w.shape[-1])


def _times(x_TI: jax.Array, w: jax.Array | Quantized, precision: lax.Precision | None) -> jax.Array:
    if isinstance(w, Quantized):
        return quantized_product(x_TI, w, precision)
    return jnp.matmul(x_TI, w, precision=precision)


def gathered(shards: Shards, w: Any, spec: Any, dtype: Any) -> Any:
    """`Shards.gather` of a weight. spec: its PartitionSpec, or those of a LowRank.

    A factor that the tensor group has whole while its matrix is divided is multiplied by each device's own part: its
    gradient is the sum over the group.
    """
    if not isinstance(w, LowRank):
        return shards.gather(w, spec, dtype)

    def factor(x: jax.Array, own: PartitionSpec) -> jax.Array:
        whole = shards.gather(x, own, dtype)
        return shards.enter(whole) if _over_tensor(spec.weight) and not _over_tensor(own) else whole

    return replace(w, weight=shards.gather(w.weight, spec.weight, dtype), a=factor(w.a, spec.a), b=factor(w.b, spec.b))


def _over_tensor(spec: PartitionSpec) -> bool:
    return any("tensor" in mesh_axes(entry) for entry in spec)


def gate_rows(tree: Any, gate_Rr: jax.Array) -> Any:
    """The weights with this gate in every LowRank."""
    return jax.tree.map(lambda w: replace(w, gate=gate_Rr) if is_low_rank(w) else w, tree, is_leaf=is_low_rank)


def merged(w: jax.Array | LowRank) -> jax.Array:
    """W + scale · A B in float32; a matrix without factors as it is."""
    if not isinstance(w, LowRank):
        return w
    low = jnp.matmul(w.a.astype(jnp.float32), w.b.astype(jnp.float32), precision="highest")
    return w.weight.astype(jnp.float32) + w.scale * low
