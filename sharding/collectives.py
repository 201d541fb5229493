"""Collectives inside a shard_map: gather fsdp-sharded weights, sum over the tensor group.

The functions are written for `jax.shard_map(..., check_vma=False)`: every device differentiates its own loss with
respect to its own shards. There JAX transposes `psum` to `psum`, which counts a cotangent that is equal on all devices
of the group once per device. The pair used here defines both directions instead (f and g in Shoeybi et al. 2019,
"Megatron-LM", figure 3):

    psum(x)   forward  y = Σ_t x_t     backward  ∂x_t = ∂y
    enter(x)  forward  y_t = x         backward  ∂x   = Σ_t ∂y_t

Use `enter` where a value that is replicated in the tensor group is multiplied by sharded weights, `psum` where the
partial results are added up again. A gather over fsdp needs no such pair: its transpose, reduce-scatter, sums over
different batch rows, as it must.

With sequence parallelism (Korthikanti et al. 2022, "Reducing activation recomputation", figure 5) the tokens of a row
are divided over the tensor group between the layers, and the two directions of the pair become gathers and
reduce-scatters along the tokens, which move the same bytes:

    leave_layer(x)  forward  own tokens of Σ_t x_t   backward  ∂x_t = ∂y of all tokens
    enter_layer(x)  forward  y_t = x of all tokens   backward  ∂x   = own tokens of Σ_t ∂y_t
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from scope_jax.sharding.mesh import SHARDED

ALL_REDUCE = 2**20  # bytes of the largest all-reduce of a step with fsdp; all else is gathered and scattered
# A layer's weights are gathered at once, beside the products of the layer before, and its gradients scattered beside
# those of the next: without, most gathers of GPUs have no product beside them.
PIPELINED = {
    "xla_gpu_enable_pipelined_all_gather": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
    "xla_gpu_enable_while_loop_double_buffering": True,  # else what is gathered ahead is copied
    "xla_gpu_all_gather_combine_threshold_bytes": 2**30,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 2**28,  # 2**29 keeps more gradients than it saves kernels
}
# Gathers of weights beside the products of the layer before (MaxText's "continuation fusion"). libtpu 0.0.50 refuses it
# on other chips, where 0.0.42 could not compile gpt-oss with it.
FUSED_GATHERS = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_enable_async_all_gather": True,
}


def compiler_options(mesh: Mesh) -> dict[str, Any] | None:
    """Options of XLA for programs on several devices: all-reduces are combined up to ALL_REDUCE bytes, gathers of fsdp
    overlap. None for one device and on CPUs."""
    device = mesh.devices.flat[0]
    if mesh.size == 1 or device.platform == "cpu":
        return None
    if device.platform == "gpu":
        pipelined = PIPELINED if any(mesh.shape[name] > 1 for name in SHARDED) else {}
        return {"xla_gpu_all_reduce_combine_threshold_bytes": ALL_REDUCE} | pipelined
    fused = FUSED_GATHERS if device.device_kind == "TPU v5 lite" else {}
    return {"xla_jf_crs_combiner_threshold_in_bytes": ALL_REDUCE} | fused


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _reduce(x: jax.Array, axis: str) -> jax.Array:
    return lax.psum(x, axis)


_reduce.defvjp(lambda x, axis: (lax.psum(x, axis), None), lambda axis, _, ct: (ct,))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _copy(x: jax.Array, axis: str) -> jax.Array:
    return x


_copy.defvjp(lambda x, axis: (x, None), lambda axis, _, ct: (lax.psum(ct, axis),))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(w_local: jax.Array, stages: tuple[tuple[int, str], ...], dtype: Any, own: Any) -> jax.Array:
    w = w_local.astype(dtype)
    for dim, axis in stages:
        w = lax.all_gather(w, axis, axis=dim, tiled=True)
    return w


def _scatter(stages: tuple[tuple[int, str], ...], dtype: Any, own: Any, _: None, ct: jax.Array) -> tuple[jax.Array]:
    """The transpose of `_gather`; its sums are float32 at least, whatever the dtype of the gathered weight."""
    ct = ct.astype(jnp.promote_types(ct.dtype, jnp.float32))
    for dim, axis in reversed(stages):
        ct = lax.psum_scatter(ct, axis, scatter_dimension=dim, tiled=True)
    return (ct.astype(own),)


_gather.defvjp(lambda w, stages, dtype, own: (_gather(w, stages, dtype, own), None), _scatter)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _all_tokens(x_ND: jax.Array, axis: str) -> jax.Array:
    return lax.all_gather(x_ND, axis, tiled=True)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _own_sum(x_ND: jax.Array, axis: str) -> jax.Array:
    return lax.psum_scatter(x_ND, axis, tiled=True)


_all_tokens.defvjp(lambda x, axis: (_all_tokens(x, axis), None), lambda axis, _, ct: (_own_sum(ct, axis),))
_own_sum.defvjp(lambda x, axis: (_own_sum(x, axis), None), lambda axis, _, ct: (_all_tokens(ct, axis),))


def _sharing(axis: str, parts: int) -> list[list[int]]:
    """The places along the axis, in groups of so many neighbours."""
    return [[*range(first, first + parts)] for first in range(0, lax.axis_size(axis), parts)]


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _all_columns(x: jax.Array, axis: str, parts: int) -> jax.Array:
    return lax.all_gather(x, axis, axis=x.ndim - 1, tiled=True, axis_index_groups=_sharing(axis, parts))


def _own_columns(axis: str, parts: int, _: None, ct: jax.Array) -> tuple[jax.Array]:
    groups = _sharing(axis, parts)
    return (lax.psum_scatter(ct, axis, scatter_dimension=ct.ndim - 1, tiled=True, axis_index_groups=groups),)


_all_columns.defvjp(lambda x, axis, parts: (_all_columns(x, axis, parts), None), _own_columns)


def mesh_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of one PartitionSpec entry, outermost first."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


@dataclass(frozen=True)
class Shards:
    """Names of the mesh axes a shard_map body runs over.

    fsdp: axes that rows of the weights are sharded over, outermost first. tensor: axis of the tensor group, None if
    there is none. data: axes that the weights are replicated over. context: axis that the tokens of a row are divided
    over, None if there is none; it is also one of fsdp. experts: axes that whole experts are distributed
    over while generating, outermost first, with tokens sharded over all of them but tensor; otherwise empty. sequence:
    the tokens of a row are divided over the tensor group between the layers. With no axes (LOCAL) every method is the
    identity.
    """

    fsdp: tuple[str, ...]
    tensor: str | None
    data: tuple[str, ...]
    experts: tuple[str, ...] = ()
    context: str | None = None
    sequence: bool = False

    @staticmethod
    def of(mesh: Mesh, sequence: bool = False) -> Shards:
        """Shards for a mesh made by make_mesh; axes of size 1 are left out, and with them their collectives.

        sequence: sequence parallelism, if there is a tensor group.
        """
        size = mesh.shape
        return Shards(
            fsdp=tuple(name for name in SHARDED if size[name] > 1),
            tensor="tensor" if size["tensor"] > 1 else None,
            data=("data",) if size["data"] > 1 else (),
            context="context" if size["context"] > 1 else None,
            sequence=sequence and size["tensor"] > 1,
        )

    @property
    def rows(self) -> tuple[str, ...]:
        """Axes that the tokens of the batch are divided over: data, then fsdp with context."""
        return self.data + self.fsdp

    @property
    def size(self) -> int:
        """Devices in the tensor group."""
        return 1 if self.tensor is None else lax.axis_size(self.tensor)

    @property
    def index(self) -> jax.Array | int:
        """This device's index in the tensor group, from 0."""
        return 0 if self.tensor is None else lax.axis_index(self.tensor)

    def gather(self, w_local: jax.Array, spec: PartitionSpec, dtype: Any) -> jax.Array:
        """All-gathers a weight over fsdp, in the given dtype; it stays sharded over tensor.

        The cast comes before the gather (half the bytes for bfloat16); gradients are summed in float32. With several
        fsdp axes the gathers are staged, innermost axis first: a single gather over several torus dimensions is lowered
        to an all-reduce.
        """
        stages = tuple(
            (dim, axis)
            for dim, entry in enumerate(spec)
            for axis in reversed([name for name in mesh_axes(entry) if name in self.fsdp])
        )
        return _gather(w_local, stages, jnp.dtype(dtype), w_local.dtype) if stages else w_local.astype(dtype)

    def psum(self, x: jax.Array) -> jax.Array:
        """Σ over the tensor group; the cotangent passes through unchanged."""
        return x if self.tensor is None else _reduce(x, self.tensor)

    def enter(self, x: jax.Array) -> jax.Array:
        """x itself; the cotangent is summed over the tensor group."""
        return x if self.tensor is None else _copy(x, self.tensor)

    def enter_layer(self, x_BTD: jax.Array) -> jax.Array:
        """The tokens that a layer with sharded weights gets; the cotangent is summed over the tensor group. With
        `sequence`, [1, B · T, D] from each device's own tokens [1, B · T / size, D]."""
        if not self.sequence:
            return self.enter(x_BTD)
        x_ND: Any = _all_tokens(x_BTD[0], str(self.tensor))
        return x_ND[None]

    def leave_layer(self, x_BTD: jax.Array) -> jax.Array:
        """Σ over the tensor group of a layer's partial results; with `sequence`, that of the own tokens."""
        if not self.sequence:
            return self.psum(x_BTD)
        # In three dimensions XLA makes an all-reduce of it, for TPUs.
        x_ND: Any = _own_sum(x_BTD.reshape(-1, x_BTD.shape[-1]), str(self.tensor))
        return x_ND[None]

    def whole_heads(self, x: jax.Array, head_dim: int) -> jax.Array:
        """Columns of heads, of which a tensor group larger than their number has divided each over neighbours: the
        whole head, which all of these get; its cotangents are summed over them."""
        parts = head_dim // x.shape[-1]
        return x if self.tensor is None or parts < 2 else _all_columns(x, self.tensor, parts)

    def between_layers(self, weight: jax.Array) -> jax.Array:
        """A replicated weight that is applied between the layers. With `sequence` each device applies it to its own
        tokens, and the cotangents are summed over the tensor group."""
        return self.enter(weight) if self.sequence else weight

    @property
    def token_axes(self) -> tuple[str, ...]:
        """Axes over which tokens are sharded, of those that experts are distributed over, outermost first."""
        return tuple(name for name in self.experts if name != self.tensor)

    def gather_tokens(self, x_N: jax.Array) -> jax.Array:
        """The tokens of all devices that experts are distributed over, one axis at a time; not differentiated."""
        for axis in reversed(self.token_axes):
            x_N = lax.all_gather(x_N, axis, tiled=True)
        return x_N

    def sum_tokens(self, x_N: jax.Array) -> jax.Array:
        """This device's tokens, summed over the devices that experts are distributed over; not differentiated."""
        for axis in self.token_axes:
            x_N = lax.psum_scatter(x_N, axis, tiled=True)
        return x_N if self.tensor is None else lax.psum(x_N, self.tensor)

    def pmax(self, x: jax.Array) -> jax.Array:
        """Maximum over the tensor group; not differentiated."""
        x = lax.stop_gradient(x)
        return x if self.tensor is None else lax.pmax(x, self.tensor)

    def sum_rows(self, x: jax.Array) -> jax.Array:
        """Σ over all row shards of the batch (data and fsdp), for counts and denominators; not differentiated."""
        x = lax.stop_gradient(x)
        return lax.psum(x, self.rows) if self.rows else x

    def sum_gradients(self, grads: Any, specs: Any) -> Any:
        """Gradients of the sum of all row shards' losses, from each device's own gradients.

        Each leaf is summed over the row axes its weight is not sharded over; over the sharded ones the transpose of
        `gather` has already summed. Nothing remains to be summed over tensor if `enter` and `psum` were used as
        described above. With fsdp, weights that are not sharded over it (norms and biases of all layers) are summed
        in parts of at most ALL_REDUCE bytes.
        """

        def complete(grad: jax.Array, spec: PartitionSpec) -> jax.Array:
            done = {name for entry in spec for name in mesh_axes(entry)}
            missing = tuple(name for name in self.rows if name not in done)
            if not missing:
                return grad
            parts = math.ceil(grad.nbytes / ALL_REDUCE)
            if parts == 1 or not self.fsdp or done.intersection(self.fsdp):
                return lax.psum(grad, missing)
            return jnp.concatenate([lax.psum(part, missing) for part in jnp.array_split(grad, parts)])

        return jax.tree.map(complete, grads, specs)


LOCAL = Shards(fsdp=(), tensor=None, data=())
