"""The largest of the known models whose engine fits a machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from scope_jax.errors import UserError
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import cached_bytes, has_sinks, head_dim, kept_bytes
from scope_jax.models.decoder.transformer import check_mesh, declare
from scope_jax.plan.architectures import SHAPES, public
from scope_jax.plan.estimates import pace
from scope_jax.plan.hardware import Hardware
from scope_jax.plan.planning import RESERVE
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.run.engines import attention_over_pages
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.program import device_bytes


@dataclass(frozen=True)
class Largest:
    """A model whose engine fits a machine."""

    model: str
    tensor: int
    bytes: float
    """Of weights, cache and the rest, on each device."""
    tokens_per_second: float
    """Of all slots, each with half of its tokens."""


def largest(on: Hardware, slots: int, length: int) -> Largest | None:
    """The largest of the known models whose engine, alone on these devices and with room for all slots at `length`
    tokens in bfloat16, fits with some mesh; of several meshes the fastest. None if there is none."""
    limit = (1 - RESERVE) * on.chip.hbm
    models = {name: model for name in SHAPES if (model := public(name)) is not None}
    weights = {name: _weights(model) for name, model in models.items()}
    for name in sorted(models, key=lambda name: -weights[name]):  # of equal ones the first that is listed
        cache = slots * cached_bytes(models[name], 1, jnp.bfloat16, lambda window: min(length, window or length))
        cache += slots * kept_bytes(models[name], 2)
        if 2 * weights[name] + cache > len(on.devices) * limit:  # however they are divided
            continue
        fits = [one for one in _held(on, name, models[name], slots, length) if one.bytes <= limit]
        if fits:
            return max(fits, key=lambda one: one.tokens_per_second)
    return None


def _weights(model: ModelConfig) -> int:
    return sum(math.prod(param.shape) for param in jax.tree.leaves(declare(model)))


def _held(on: Hardware, name: str, model: ModelConfig, slots: int, length: int) -> Iterator[Largest]:
    """The engine of every mesh that heads and slots allow."""
    count = len(on.devices)
    for tensor in (size for size in range(1, count + 1) if count % size == 0):
        config = EngineConfig(slots, length, 16, jnp.bfloat16)
        try:
            mesh = make_mesh(MeshConfig(1, -1, tensor), on.devices)
            check_mesh(model, mesh)
            engine = Engine(model, config, mesh, attention_over_pages(on.platform, head_dim(model), has_sinks(model)))
        except UserError:
            continue
        state = engine.abstract_state()
        logits = 3.0 * 4 * slots / engine.row_shards * model.table_rows / tensor
        size = device_bytes(engine.abstract_weights()) + device_bytes(state) + logits
        given = pace(engine, on, device_bytes(state.cache), length / 2)
        yield Largest(name, tensor, size, given.tokens_per_second)
