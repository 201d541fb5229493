"""What a policy's state consists of and how it lies on a mesh: whole weights, or the factors of an adapter.

Whole weights: the state has the weights, their moments, and the reference in buffers of its own. Adapters: the state
has the factors and their moments; the reference is the frozen base, one set of buffers for all policies, which the
forward pass combines with the factors and which no program changes, donates or differentiates.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scope_jax.config import OptimizerSection
from scope_jax.learner.state import TrainState, fresh, specs_like
from scope_jax.models.decoder import adapter as adapters
from scope_jax.models.decoder import stacks, transformer
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import Param, abstract_params, init_params, param_shardings, partition_specs


class Layout:
    """Declarations, shapes and shardings of a policy's state. Raises ValueError if the mesh does not divide the model.

    adapter: None for whole weights. param_dtype: of what is trained and of its moments, for an adapter its own dtype;
    reference_dtype: of the reference, for an adapter that of the base, otherwise the smaller of param_dtype and
    compute_dtype: its weights are only ever cast to compute_dtype, so nothing is lost. unstacked: the layers of the
    base are a tuple of trees, the engine's own buffers, so that it is in memory once.
    """

    def __init__(
        self,
        model: ModelConfig,
        mesh: Mesh,
        optimizer: OptimizerSection,
        *,
        param_dtype: Any,
        compute_dtype: Any,
        adapter: Adapter | None,
        unstacked: bool = False,
    ) -> None:
        transformer.check_mesh(model, mesh)
        self.model, self.mesh, self.optimizer, self.adapter = model, mesh, optimizer, adapter
        self.compute_dtype, self.unstacked = jnp.dtype(compute_dtype), unstacked
        whole = transformer.declare(model)
        self._reference = _unstacked(model, whole) if unstacked else whole
        self.reference_specs = partition_specs(self._reference, TRAIN)
        if adapter is None:
            self.param_dtype = jnp.dtype(param_dtype)
            self.reference_dtype = min(self.param_dtype, self.compute_dtype, key=lambda dtype: dtype.itemsize)
            self._declared = whole
        else:
            self.param_dtype, self.reference_dtype = jnp.dtype(adapter.dtype), jnp.dtype(adapter.base_dtype)
            self._declared = adapters.declare_factors(model, adapter)
            param_shardings(whole, mesh, TRAIN)  # raises ValueError if the base does not fit the mesh
        self.specs = partition_specs(self._declared, TRAIN)
        self.param_shardings = param_shardings(self._declared, mesh, TRAIN)
        self.param_count = sum(math.prod(param.unpadded) for param in jax.tree.leaves(self._declared))

    def whole(self, params: Any, reference: Any) -> Any:
        """Weights for the forward pass: what is trained, or the base combined with it."""
        return params if self.adapter is None else adapters.combined(self.model, reference, params, self.adapter.scale)

    def _abstract(self) -> Any:
        """Shape and dtype of everything that is trained."""
        declared = abstract_params(self._declared)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, self.param_dtype), declared)

    def state_specs(self, reference: bool) -> TrainState:
        """PartitionSpec of every array of the state."""
        everywhere = PartitionSpec()
        opt_specs = specs_like(self.optimizer, self._abstract(), self.specs)
        return TrainState(everywhere, everywhere, self.specs, opt_specs, self.reference_specs if reference else None)

    def state_shardings(self, reference: bool) -> TrainState:
        """NamedSharding of every array of the state."""
        return jax.tree.map(partial(NamedSharding, self.mesh), self.state_specs(reference))

    def abstract_state(self, reference: bool) -> TrainState:
        """Shape, dtype and sharding of every array of the state, for restoring a checkpoint."""
        shapes = jax.eval_shape(partial(fresh, section=self.optimizer, ref_params=None), self._abstract())
        if reference:
            base = abstract_params(self._reference)
            base = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, self.reference_dtype), base)
            shapes = shapes.replace(ref_params=base)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            self.state_shardings(reference),
        )

    def init_state(self, params: Any, reference: bool = True) -> TrainState:
        """State before the first update. Weights and reference (equal at first) are copies, never aliases.

        With an adapter, params are its factors (`init_factors`), and the caller enters the base as ref_params.
        """
        reference = reference and self.adapter is None

        def build(params: Any) -> TrainState:
            copy = jax.tree.map(lambda weight: jnp.array(weight, self.param_dtype, copy=True), params)
            ref = jax.tree.map(lambda weight: jnp.array(weight, self.reference_dtype, copy=True), params)
            return fresh(copy, self.optimizer, ref if reference else None)

        return jax.jit(build, out_shardings=self.state_shardings(reference))(params)

    def init_factors(self, key: jax.Array) -> Any:
        """An adapter's factors before training: A random, B zero, so that the policy is the base."""
        return jax.jit(partial(init_params, self._declared), out_shardings=self.param_shardings)(key)


def _unstacked(model: ModelConfig, declared: Any) -> Any:
    """The declarations with "layers" as a tuple of trees without the leading L."""

    def one(param: Param, _: int) -> Param:
        return replace(param, shape=param.shape[1:], axes=param.axes[1:])

    return {**declared, "layers": stacks.each(model, declared["layers"], one)}
