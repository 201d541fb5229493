"""Low-rank adapters of a decoder: which matrices they adapt, their declarations, and a base combined with them.

A policy's factors are a tree {"layers": {"q_D_Hh": {"a": [L, in, r], "b": [L, r, out]}, ...}}, or of several stacks
(`models.stacks`); those of experts have an X after L. The base is frozen and shared by all policies.
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
from scope_jax.models import stacks
from scope_jax.models.config import ModelConfig
from scope_jax.models.hf import hf_tensor
from scope_jax.models.kinds import FEEDS, INPUT_TARGETS, MIXERS
from scope_jax.models.lowrank import LowRank, factors_of, is_low_rank, merged
from scope_jax.models.transformer import Params, declare
from scope_jax.sharding.spec import Param, normal

TARGETS = {*INPUT_TARGETS, *(name for part in (*MIXERS.values(), *FEEDS.values()) for name in part.targets)}
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
    """The modules of a model's Hugging Face class that adapters may adapt, with our weights, in the order of `declare`.
    Of a module that is several weights here there is none."""
    found: dict[str, set[str]] = {}
    for path, name in stacks.paths(cfg, declare(cfg)["layers"]):
        tensor = hf_tensor(cfg, path)
        if name in TARGETS and tensor.rows is None:
            found.setdefault(tensor.name.removesuffix(".weight").rpartition(".")[2], set()).add(name)
    return found


def _experts(cfg: ModelConfig) -> list[str]:
    """The matrices of experts. Where one tensor holds those of several in files, adapters have no form in PEFT's."""
    own = stacks.named(cfg, declare(cfg)["layers"])
    return [name for name in EXPERTS if name in own]


def adapted(cfg: ModelConfig, targets: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the layer weights that these targets name, in the order of `declare`.

    Raises ValueError for targets that the model does not have.
    """
    weights = tuple(stacks.named(cfg, declare(cfg)["layers"]))
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
    return tuple(name for name in weights if name in chosen)


def declare_factors(cfg: ModelConfig, adapter: Adapter) -> Params:
    """The tree of Param of one policy's factors."""
    names, init = _names(cfg, adapter), normal(1 / adapter.rank) if adapter.init == "gaussian" else None

    def stack(own: Params) -> Params:
        factors = {name: factors_of(own[name], adapter.rank, adapter.dtype, init) for name in names if name in own}
        return {name: {"a": a, "b": b} for name, (a, b) in factors.items()}

    return {"layers": stacks.mapped(cfg, stack, declare(cfg)["layers"])}


def _names(cfg: ModelConfig, adapter: Adapter) -> tuple[str, ...]:
    return adapted(cfg, adapter.targets)


def declare_adapted(cfg: ModelConfig, adapter: Adapter, policies: int) -> Params:
    """`declare` with a LowRank for every adapted matrix, whose factors are those of so many policies side by side."""
    tree, names = declare(cfg), _names(cfg, adapter)

    def adapted_weight(weight: Param) -> LowRank:
        return LowRank(weight, *factors_of(weight, policies * adapter.rank, adapter.dtype), adapter.scale)

    def stack(own: Params) -> Params:
        return {name: adapted_weight(weight) if name in names else weight for name, weight in own.items()}

    return {**tree, "layers": stacks.mapped(cfg, stack, tree["layers"])}


def combined(cfg: ModelConfig, base: Params, factors: Params, scale: float) -> Params:
    """The base's weights, with those that have factors as LowRank; the base is not copied.

    The base's layers are stacked, or a tuple of trees (`transformer.unstack_layers`); the factors are stacked.
    """

    def layer(weights: Params, pairs: Mapping[str, Any]) -> Params:
        return {
            name: LowRank(weight, pairs[name]["a"], pairs[name]["b"], scale) if name in pairs else weight
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
