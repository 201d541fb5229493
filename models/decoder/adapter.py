"""Low-rank adapters of a decoder: which matrices they adapt, their declarations, and a base combined with them.

A policy's factors are a tree {"layers": {"q_D_Hh": {"a": [L, in, r], "b": [L, r, out]}, ...}}, or of several stacks
(`models.decoder.stacks`); those of experts have an X after L. Weights that are rows of one module in files, as the
queries, keys and values of Qwen3.5's Gated DeltaNet, share the module's A: only the first of them, `FIRST`, has it. The
base is frozen and shared by all policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from scope_jax.errors import UserError
from scope_jax.models.decoder import stacks
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.hf import hf_tensor
from scope_jax.models.decoder.kinds import FEEDS, INPUT_TARGETS, MIXERS
from scope_jax.models.decoder.lowrank import LowRank, factors_of, is_low_rank, merged
from scope_jax.models.decoder.transformer import Params, declare
from scope_jax.sharding.spec import Param, normal

TARGETS = {*INPUT_TARGETS, *(name for part in (*MIXERS.values(), *FEEDS.values()) for name in part.targets)}
FIRST = "q_D_Kh"  # of the weights that share an A
EXPERTS = tuple(name for part in FEEDS.values() for name in part.expert_targets)


@dataclass(frozen=True)
class Adapter:
    """What the adapters of all policies have in common.

    alpha: the product of the factors is multiplied by alpha/rank, or with rslora by alpha/√rank (Kalajdzievski 2023).
    targets: names of Hugging Face's modules; "all-linear": all of attention and of a dense feed-forward layer;
    "experts": the three matrices of every expert. init: of A, "kaiming" as PEFT's default, "gaussian" N(0, 1/rank²).
    dtype: of factors and moments. base_dtype: of the base.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    rslora: bool = False
    init: Literal["kaiming", "gaussian"] = "kaiming"
    dtype: Any = jnp.float32
    base_dtype: Any = jnp.bfloat16

    @property
    def scale(self) -> float:
        """The factor before the product."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def linear(cfg: ModelConfig) -> dict[str, set[str]]:
    """The modules of a model's Hugging Face class that adapters may adapt, with the paths of our weights, in the order
    of `declare`."""
    found: dict[str, set[str]] = {}
    for path, name in stacks.paths(cfg, declare(cfg)["layers"]):
        if name in TARGETS:
            module = hf_tensor(cfg, path).name.removesuffix(".weight").rpartition(".")[2]
            found.setdefault(module, set()).add(path)
    return found


def _experts(cfg: ModelConfig) -> list[str]:
    """The paths of the matrices of experts. Where one tensor holds those of several in files, adapters have no form in
    PEFT's."""
    return [path for path, name in stacks.paths(cfg, declare(cfg)["layers"]) if name in EXPERTS]


def adapted(cfg: ModelConfig, targets: tuple[str, ...]) -> tuple[str, ...]:
    """The paths of the layer weights that these targets name, in the order of `declare`.

    Raises ValueError for targets that the model does not have.
    """
    dense, experts = linear(cfg), _experts(cfg)
    chosen: set[str] = set()
    for target in targets:
        if target == "all-linear":
            chosen |= set().union(*dense.values())
        elif target == "experts" and experts:
            chosen |= set(experts)
        elif target in dense:
            chosen |= dense[target]
        else:
            known = ", ".join((*dense, "all-linear", *(["experts"] if experts else [])))
            raise UserError(
                f"model.adapter.targets names {target!r}, but the model ({cfg.architecture}) has only {known}; choose "
                "among these."
            )
    return tuple(path for path, _ in stacks.paths(cfg, declare(cfg)["layers"]) if path in chosen)


def _stacks(cfg: ModelConfig, adapter: Adapter) -> list[dict[str, bool]]:
    """Of each stack, the names of the adapted weights, and whether they share the A of FIRST."""
    found: list[dict[str, bool]] = [{} for _ in stacks.stacks(cfg)]
    for path in adapted(cfg, adapter.targets):
        stack, name = stacks.by_path(path)
        found[stack][name] = hf_tensor(cfg, path).rows is not None and name not in (FIRST, *EXPERTS)
    return found


def declare_factors(cfg: ModelConfig, adapter: Adapter) -> Params:
    """The tree of Param of one policy's factors."""
    init = normal(1 / adapter.rank) if adapter.init == "gaussian" else None

    def stack(own: Params, names: Mapping[str, bool]) -> Params:
        factors = {name: factors_of(own[name], adapter.rank, adapter.dtype, init) for name in names}
        return {name: {"b": b} if names[name] else {"a": a, "b": b} for name, (a, b) in factors.items()}

    own = stacks.split(cfg, declare(cfg)["layers"])
    return {"layers": stacks.joined(list(map(stack, own, _stacks(cfg, adapter))))}


def declare_adapted(cfg: ModelConfig, adapter: Adapter, policies: int) -> Params:
    """`declare` with a LowRank for every adapted matrix, whose factors are those of so many policies side by side."""
    tree = declare(cfg)

    def adapted_weight(weight: Param) -> LowRank:
        return LowRank(weight, *factors_of(weight, policies * adapter.rank, adapter.dtype), adapter.scale)

    def stack(own: Params, names: Mapping[str, bool]) -> Params:
        return {name: adapted_weight(weight) if name in names else weight for name, weight in own.items()}

    own = stacks.split(cfg, tree["layers"])
    return {**tree, "layers": stacks.joined(list(map(stack, own, _stacks(cfg, adapter))))}


def pair(factors: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """A and B of a weight of a stack or layer."""
    own = factors[name]
    return (own if "a" in own else factors[FIRST])["a"], own["b"]


def combined(cfg: ModelConfig, base: Params, factors: Params, scale: float) -> Params:
    """The base's weights, with those that have factors as LowRank; the base is not copied.

    The base's layers are stacked, or a tuple of trees (`transformer.unstack_layers`); the factors are stacked.
    """

    def layer(weights: Params, pairs: Mapping[str, Any]) -> Params:
        return {
            name: LowRank(weight, *pair(pairs, name), scale) if name in pairs else weight
            for name, weight in weights.items()
        }

    layers, pairs = base["layers"], factors["layers"]
    if isinstance(layers, dict):
        return {**base, "layers": stacks.mapped(cfg, layer, layers, pairs)}

    def taken_apart(own: Params) -> Params:
        # The gradient of a split is a concatenation; that of an index per layer would be a sum of stacks full of zeros.
        return jax.tree.map(lambda x: [part[0] for part in lax.split(x, [1] * len(x))], own)

    apart = stacks.mapped(cfg, taken_apart, pairs)
    own = stacks.each(cfg, apart, is_leaf=lambda x: isinstance(x, list))
    return {**base, "layers": tuple(map(layer, layers, own))}


def merge(cfg: ModelConfig, base: Params, factors: Params, scale: float, dtype: Any) -> Params:
    """Whole weights of a policy, W + scale · A B, computed in float32 and rounded once."""
    whole = jax.tree.map(merged, combined(cfg, base, factors, scale), is_leaf=is_low_rank)
    return jax.tree.map(lambda w: w.astype(dtype), whole)
