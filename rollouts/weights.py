"""The engine's copy of a model's weights, and the adapters of several policies over it.

With adapters the base is copied once. The factors of all policies stand side by side (`models.decoder.lowrank`);
publishing a policy writes its own, and a row of a batch is multiplied by those of its slot's policy, or by none for the
base.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from scope_jax.errors import UserError
from scope_jax.models.decoder import stacks
from scope_jax.models.decoder.adapter import TARGETS, declare_adapted, declare_factors, pair
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import INPUT_TARGETS
from scope_jax.models.decoder.lowrank import LowRank, gate_rows, is_low_rank
from scope_jax.models.decoder.quantized import Quantized, declare_quantized, is_quantized, quantize
from scope_jax.models.decoder.transformer import Params, check_mesh, declare
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.sharding.mesh import row_shards
from scope_jax.sharding.reshard import reshard
from scope_jax.sharding.rules import decode_rules
from scope_jax.sharding.spec import abstract_params, param_shardings

# Those that `EngineConfig.quantized` keeps in 8 bits: not what has few columns, nor experts.
MATRICES = frozenset(TARGETS) - {"beta_DH", "decay_DH", *INPUT_TARGETS}


class EngineWeights:
    """The engine's copy of a model's weights on a mesh."""

    def __init__(self, model: ModelConfig, config: EngineConfig, mesh: Mesh) -> None:
        check_mesh(model, mesh)
        rows, rules = row_shards(mesh), decode_rules(model.num_experts, mesh.shape)
        if config.slots % rows:
            raise UserError(
                f"rollout slots={config.slots} is not divisible by data x fsdp = {rows}; choose a multiple of it."
            )
        if config.max_length > model.max_positions:
            raise UserError(
                f"rollout max_length={config.max_length} exceeds the model's {model.max_positions} positions; lower it."
            )
        self.model = model
        self.config = config
        self.mesh = mesh
        self._weight_shardings = param_shardings(declare(model), mesh, rules)
        # One program for all layers: the place is an argument.
        self._layer = jax.jit(lambda stack, place: jax.tree.map(lambda weight: weight[place], stack))
        adapter, count = config.adapter, len(config.policies)
        # As the programs get it, with the leading L of all layers.
        self.declared = declare(model) if adapter is None else declare_adapted(model, adapter, count)
        if config.quantized:
            self.declared = _with_matrices(model, self.declared, declare_quantized)
            base = param_shardings(_with_matrices(model, declare(model), declare_quantized), mesh, rules)
            self._quantized_shardings = self._of_each_layer(base)
            self._quantize = jax.jit(partial(_each_matrix, change=quantize))
        self.shardings = param_shardings(self.declared, mesh, rules)
        if adapter is not None:
            self._factor_shardings = param_shardings(declare_factors(model, adapter), mesh, rules)
            factors = self._each_factors(lambda sharding: NamedSharding(mesh, PartitionSpec(*sharding.spec[1:])))
            self._empty = jax.jit(self._no_factors, out_shardings=factors)
            self._put = jax.jit(self._put_program, donate_argnums=0, out_shardings=factors)

    # --------------------------------------------------------------------------------------------------------- base
    def load_params(self, params: Params) -> Params:
        """The engine's own copy of stacked weights: in compute_dtype, under `decode_rules`, one tree per layer; with
        adapters, whose factors are zero at first.

        The source may be donated afterwards; nothing passes through the host.
        """
        dtype, shardings = self.config.compute_dtype, self._weight_shardings
        targets = self._of_each_layer(shardings)
        own, layers = stacks.split(self.model, params["layers"]), []
        # One at a time: beside both copies there is never a third.
        for number, ((stack, place), target) in enumerate(zip(stacks.places(self.model), targets, strict=True)):
            layer = reshard(self._layer(own[stack], place), target, dtype)
            layers.append(jax.block_until_ready(self._kept(layer, number)))
        rest = {name: reshard(tree, shardings[name], dtype) for name, tree in params.items() if name != "layers"}
        return self._with_adapters({**rest, "layers": tuple(layers)})

    def take_params(self, params: Params) -> Params:
        """Like load_params, but frees the source weight by weight: at most one weight exists twice at any time."""
        shardings = self._weight_shardings

        def take(weight: jax.Array, sharding: NamedSharding) -> jax.Array:
            taken = reshard(weight, sharding, self.config.compute_dtype).block_until_ready()
            weight.delete()
            return taken

        def take_layers(weight: jax.Array, sharding: NamedSharding) -> tuple[jax.Array, ...]:
            taken = take(weight, sharding)
            return jax.block_until_ready(tuple(self._layer(taken, place) for place in range(taken.shape[0])))

        apart = jax.tree.map(take_layers, params["layers"], shardings["layers"])
        layers = stacks.each(self.model, apart, is_leaf=lambda rows: isinstance(rows, tuple))
        layers = tuple(self._kept(layer, number) for number, layer in enumerate(layers))
        rest = {name: jax.tree.map(take, tree, shardings[name]) for name, tree in params.items() if name != "layers"}
        return self._with_adapters({**rest, "layers": layers})

    def _of_each_layer(self, shardings: Params) -> tuple[Params, ...]:
        """The shardings of one tree per layer, of those of stacks."""
        return stacks.each(
            self.model,
            shardings["layers"],
            lambda sharding, _: NamedSharding(self.mesh, PartitionSpec(*sharding.spec[1:])),
        )

    def _kept(self, layer: Params, number: int) -> Params:
        """A layer as the engine keeps it: its matrices may be quantised."""
        if not self.config.quantized:
            return layer
        return jax.device_put(self._quantize(layer), self._quantized_shardings[number])

    # ----------------------------------------------------------------------------------------------------- adapters
    def number(self, policy: str | None) -> int:
        """The policy's place among the adapters; None: the base, after all of them. Raises ValueError if there is no
        such policy."""
        if policy is None:
            return len(self.config.policies)
        if policy not in self.config.policies:
            known = ", ".join(self.config.policies) or "none"
            raise ValueError(f"The engine has no adapter of the policy {policy!r}; it has: {known}.")
        return self.config.policies.index(policy)

    def load_adapter(self, params: Params, policy: str, factors: Params) -> Params:
        """The engine's weights with a copy of this policy's factors, in compute_dtype; nothing else is moved.

        Consumes the factors in `params`, not its base. `factors` may be donated afterwards.
        """
        moved = reshard(factors, self._factor_shardings, self.config.compute_dtype)
        held = tuple({name: (w.a, w.b) for name, w in layer.items() if is_low_rank(w)} for layer in params["layers"])
        return _with_factors(params, self._put(held, moved["layers"], self.number(policy)))

    def gated(self, params: Params, policy_R: Int[Array, " R"]) -> Params:
        """The weights for a batch of rows, row R of policy number policy_R[R]."""
        if self.config.adapter is None:
            return params
        places_r = jnp.arange(len(self.config.policies) * self.config.adapter.rank) // self.config.adapter.rank
        return gate_rows(params, (policy_R[:, None] == places_r).astype(self.config.compute_dtype))

    def _with_adapters(self, params: Params) -> Params:
        if self.config.adapter is None:
            return params
        scale = self.config.adapter.scale
        layers = tuple(
            {name: LowRank(w, None, None, scale) if name in factors else w for name, w in layer.items()}
            for layer, factors in zip(params["layers"], self._each_factors(lambda sharding: None), strict=True)
        )
        return _with_factors({**params, "layers": layers}, self._empty())

    def _each_factors(self, of: Callable[[NamedSharding], Any]) -> tuple[dict[str, tuple[Any, Any]], ...]:
        """of(sharding in its stack) for both factors of every adapted weight, one tree per layer."""
        layers = stacks.each(self.model, self.shardings["layers"], lambda w, _: w, is_leaf=is_low_rank)
        return tuple({name: (of(w.a), of(w.b)) for name, w in layer.items() if is_low_rank(w)} for layer in layers)

    def _no_factors(self) -> Any:
        layers = stacks.each(self.model, self.declared["layers"], lambda w, _: w, is_leaf=is_low_rank)
        return tuple(
            {
                name: tuple(jnp.zeros(side.shape[1:], self.config.compute_dtype) for side in (w.a, w.b))
                for name, w in layer.items()
                if is_low_rank(w)
            }
            for layer in layers
        )

    def _put_program(self, held: Any, layers: Params, number: Any) -> Any:
        assert self.config.adapter is not None
        first = number * self.config.adapter.rank

        def put(into: jax.Array, new: jax.Array, axis: int) -> jax.Array:
            return lax.dynamic_update_slice_in_dim(into, new, first, axis)

        def both(name: str, a: jax.Array, b: jax.Array, new: Any) -> tuple[jax.Array, jax.Array]:
            new_a, new_b = pair(new, name)
            return put(a, new_a, -1), put(b, new_b, -2)

        return tuple(
            {name: both(name, a, b, new) for name, (a, b) in one.items()}
            for one, new in zip(held, stacks.each(self.model, layers), strict=True)
        )

    # ----------------------------------------------------------------------------------------------- abstract values
    def abstract(self) -> Params:
        """Shapes and shardings of the weights as the programs get them, one tree per layer."""

        def leaf(shape: Any, sharding: Any, first: int) -> Any:
            if is_quantized(shape):
                parts = (shape.values, sharding.values), (shape.scale, sharding.scale)
                return Quantized(*(placed(*part, first, part[0].dtype) for part in parts))
            return placed(shape, sharding, first, self.config.compute_dtype)

        def placed(shape: Any, sharding: NamedSharding, first: int, dtype: Any) -> jax.ShapeDtypeStruct:
            own = NamedSharding(self.mesh, PartitionSpec(*sharding.spec[first:]))
            return jax.ShapeDtypeStruct(shape.shape[first:], dtype, sharding=own)

        def leaves(name: str, first: int) -> Any:
            return jax.tree.map(partial(leaf, first=first), shapes[name], self.shardings[name], is_leaf=is_quantized)

        shapes = abstract_params(self.declared)
        whole = {name: leaves(name, 0) for name in shapes if name != "layers"}
        stacked = leaves("layers", 1)
        return {**whole, "layers": stacks.each(self.model, stacked, lambda one, _: one)}


def _each_matrix(layer: Params, change: Callable[[Any], Any]) -> Params:
    """The weights of a layer or a stack, of which MATRICES are changed, adapted ones too."""

    def changed(w: Any) -> Any:
        return replace(w, weight=change(w.weight)) if is_low_rank(w) else change(w)

    return {name: changed(w) if name in MATRICES else w for name, w in layer.items()}


def _with_matrices(model: ModelConfig, tree: Params, change: Callable[[Any], Any]) -> Params:
    layers = stacks.mapped(model, partial(_each_matrix, change=change), tree["layers"])
    return {**tree, "layers": layers}


def without_adapters(params: Params) -> Params:
    """The base in the engine's weights, the same buffers."""
    return jax.tree.map(lambda w: w.weight if is_low_rank(w) else w, params, is_leaf=is_low_rank)


def _with_factors(params: Params, factors: Any) -> Params:
    layers = tuple(
        {name: replace(w, a=own[name][0], b=own[name][1]) if name in own else w for name, w in layer.items()}
        for layer, own in zip(params["layers"], factors, strict=True)
    )
    return {**params, "layers": layers}
