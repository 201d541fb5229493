"""The meshes that an engine may have: which fit beside everything else, with what cache, and how fast they sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.models.config import ModelConfig
from scope_jax.models.kinds import cached, has_sinks, head_dim, kept_bytes
from scope_jax.models.transformer import check_mesh, declare
from scope_jax.plan import memory
from scope_jax.plan.architectures import SHAPES, public
from scope_jax.plan.estimates import known, pace
from scope_jax.plan.hardware import GIB, Hardware
from scope_jax.plan.planning import RESERVE, Needs, Planner
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.paged import PagedEngine
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.run.engines import attention_over_pages, engine_for
from scope_jax.run.meshes import rollout_mesh
from scope_jax.sharding.mesh import MeshConfig, make_mesh


def floored(size: float) -> float:
    """GiB of so many bytes, to three digits, rounded down."""
    unit = 10.0 ** (math.floor(math.log10(size / GIB)) - 2)
    return float(f"{math.floor(size / GIB / unit) * unit:.6g}")


def meshes(planner: Planner, needs: Needs) -> list[dict[str, Any]]:
    """Every division of the devices that generate into tensor groups that fits, the fastest first: tokens per second
    with all slots at half of max_length, or with as many as the cache holds that is left beside everything else. What
    is temporary is by arithmetic. The card's own mesh has the card's own budget. [] for a chip whose figures are not
    known, or an engine without pages."""
    if not known(planner.on) or needs.engine.budget is None:
        return []
    tensor = needs.engine.mesh.shape["tensor"]
    found = [_row(planner.on, needs.engine, needs.held.cache, own=True, limit=None)]
    for engine, room in _others(planner, needs):
        whole = memory.device_bytes(engine.abstract_state().cache)
        assert engine.budget is not None
        if room < engine.budget.least_bytes:
            continue
        cache = min(room, whole)
        row = _row(planner.on, engine, cache, own=False, limit=None if cache == whole else floored(cache))
        if engine.mesh.shape["tensor"] != tensor or row["tokens_per_second"] > found[0]["tokens_per_second"]:
            found.append(row)
    return sorted(found, key=lambda row: -row["tokens_per_second"])


def _row(on: Hardware, engine: Engine, cache: float, own: bool, limit: float | None) -> dict[str, Any]:
    tensor, shards = engine.mesh.shape["tensor"], engine.mesh.size // engine.mesh.shape["tensor"]
    given = pace(engine, on, cache, engine.config.max_length / 2)
    change = [] if own else [f"rollout.mesh={{fsdp={shards}, tensor={tensor}}}"]
    change += [] if limit is None else [f"rollout.cache_gib={limit}"]
    return {
        "fsdp": shards,
        "tensor": tensor,
        "cache_gib": round(cache / GIB, 2),
        "tokens_per_second": round(given.tokens_per_second),
        "milliseconds": given.milliseconds,
        "slots": round(given.slots, 1),
        "card": own,
        "set": change,
    }


def _others(planner: Planner, needs: Needs) -> Iterator[tuple[Engine, float]]:
    """Engines of other meshes, with pages for all slots at max_length, and the bytes that are left for pages."""
    cfg, searching = needs.cfg, rollout_mesh(needs.cfg, planner.on.devices)
    count, near = searching.size, searching.size // planner.on.domains  # tensor groups stay within a slice or node
    for tensor in (size for size in range(1, near + 1) if near % size == 0):
        engine = _engine(cfg, planner.model, searching, {"data": 1, "fsdp": count // tensor, "tensor": tensor})
        if engine is None:
            continue
        held = planner.residents(cfg, needs.learner, engine, searching)
        bucket, slots = cfg.learner.buckets[-1], engine.config.slots
        logits = memory.arithmetic_peak(held, "generate", needs.learner, bucket, slots, engine.mesh).parts["logits"]
        beside = sum(held.parts("generate").values()) - held.cache
        temporaries = max(logits, needs.peaks["generate"].parts.get("temporaries", 0.0))
        if sum(held.parts("publish").values()) <= planner.limit:
            yield engine, planner.limit - beside - temporaries


def _engine(cfg: Config, model: ModelConfig, searching: Mesh, sizes: dict[str, int]) -> Engine | None:
    """The card's engine on such a mesh, without a budget; None if slots, heads or page tables do not allow it."""
    section = type(cfg.mesh)(**sizes)
    card = cfg.model_copy(
        update={"rollout": cfg.rollout.model_copy(update={"mesh": section, "cache": "paged", "cache_gib": None})}
    )
    try:
        return engine_for(card, model, searching)
    except UserError:
        return None


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
        cache = slots * cached(models[name], 1, lambda window: min(length, window or length))
        cache += slots * kept_bytes(models[name], 2) // 2
        if 2 * (weights[name] + cache) > len(on.devices) * limit:  # however they are divided
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
        config = EngineConfig(slots, length, (length,), 1, 16, jnp.bfloat16)
        try:
            mesh = make_mesh(MeshConfig(1, -1, tensor), on.devices)
            check_mesh(model, mesh)
            engine = PagedEngine(
                model, config, mesh, attention_over_pages(on.platform, head_dim(model), has_sinks(model))
            )
        except UserError:
            continue
        state = engine.abstract_state()
        logits = 3.0 * 4 * slots / engine.row_shards * model.table_rows / tensor
        size = memory.device_bytes(engine.abstract_weights()) + memory.device_bytes(state) + logits
        given = pace(engine, on, memory.device_bytes(state.cache), length / 2)
        yield Largest(name, tensor, size, given.tokens_per_second)
