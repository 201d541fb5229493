"""The meshes that an engine may have: which fit beside everything else, with what cache, and how fast they sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jax.sharding import Mesh

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.plan import memory
from scope_jax.plan.estimates import known, pace
from scope_jax.plan.hardware import GIB, Hardware
from scope_jax.plan.planning import Needs, Planner
from scope_jax.rollouts.engine import Engine
from scope_jax.run.engines import engine_for
from scope_jax.run.meshes import rollout_mesh
from scope_jax.sharding.program import device_bytes


def floored(size: float) -> float:
    """GiB of so many bytes, to three digits, rounded down."""
    unit = 10.0 ** (math.floor(math.log10(size / GIB)) - 2)
    return float(f"{math.floor(size / GIB / unit) * unit:.6g}")


def meshes(planner: Planner, needs: Needs) -> list[dict[str, Any]]:
    """Every division of the devices that generate into tensor groups that fits, the fastest first: tokens per second
    with all slots at half of max_length, or with as many as the cache holds that is left beside everything else. What
    is temporary is by arithmetic. The card's own mesh has the card's own budget. [] for a chip whose figures are not
    known."""
    if not known(planner.on):
        return []
    tensor = needs.engine.mesh.shape["tensor"]
    found = [_row(planner.on, needs.engine, needs.held.cache, own=True, limit=None)]
    for engine, room in _others(planner, needs):
        whole = device_bytes(engine.abstract_state().cache)
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
    card = cfg.model_copy(update={"rollout": cfg.rollout.model_copy(update={"mesh": section, "cache_gib": None})})
    try:
        return engine_for(card, model, searching)
    except UserError:
        return None
