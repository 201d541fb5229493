"""Whether an engine fits the memory of this machine, and how many replies at a time, of which length, do."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypeVar

import jax.numpy as jnp
from jax.sharding import Mesh

from scope_jax.config import Config, ServedModel
from scope_jax.errors import UserError
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.rollouts.engine import Engine
from scope_jax.run import host_memory
from scope_jax.run.engines import engine_for
from scope_jax.sharding.program import device_bytes

Card = TypeVar("Card", bound=Config | ServedModel)

GIB = 2**30
SHARE = 0.9  # of the memory that is free: the rest is for what the programs need meanwhile
SHORTEST = 512  # tokens of a row, below which no length is tried
# Bytes of host memory of a process beside its arrays, as measured (docs/plans.md): Python and its libraries, half of it
# files; an entry of a tokenizer's vocabulary; what is kept of a program, compiled and traced, for each layer that it
# spells out (4.8 MiB of the 6 are XLA's executable); what the compiler has besides.
PROCESS, ENTRY, PASS, COMPILER = 0.44 * 2**30, 1000, 6 * 2**20, 0.25 * 2**30


def engine_process_bytes(engine: Engine) -> float:
    """What a process with this engine has in host memory beside its arrays."""
    programs = sum(engine.most_programs().values())
    return PROCESS + ENTRY * engine.model.vocab_size + PASS * programs * engine.model.num_layers


def needed_bytes(engine: Engine) -> tuple[int, int]:
    """(weights, cache) on each device."""
    return device_bytes(engine.abstract_weights()), device_bytes(engine.abstract_state())


def check_fits(engine: Engine) -> None:
    """Raises UserError, before anything is allocated, if weights and cache alone are more than there is."""
    weights, cache = needed_bytes(engine)
    if weights + cache <= (there := _there(engine)):
        return
    fewer = "one of the two, such as --set rollout.slots=1," if engine.config.slots > 1 else "rollout.max_length"
    raise UserError(
        f"on a device the weights take {weights / GIB:.2f} GiB and the cache {cache / GIB:.2f} GiB "
        f"({_sizes(engine)}), but {there / GIB:.2f} GiB are free; lower {fewer} "
        "or take a smaller model."
    )


def told(engine: Engine) -> str:
    """What the engine takes, in a sentence."""
    weights, cache = needed_bytes(engine)
    there = _there(engine)
    of = f", of {there / GIB:.2f} GiB free" if math.isfinite(there) else ""
    dtype = jnp.dtype(engine.config.compute_dtype).name
    sizes = f"weights {weights / GIB:.2f} GiB in {dtype}, cache {cache / GIB:.2f} GiB ({_sizes(engine)})"
    return f"memory of a device: {sizes}{of}"


def fitted(cfg: Card, model: ModelConfig, mesh: Mesh, free: Collection[str]) -> Card:
    """The card with sizes that fit beside what else the process needs, of those that may be chosen (`free`: slots,
    max_length): fewer slots first, then shorter rows. With compute_dtype in `free`, a CPU computes in float32 unless
    rows would have to be shorter: its programs convert bfloat16 at every use, which takes a model of 135M 2.4 times as
    long. Raises UserError if the smallest cannot fit."""
    found = _shrunk(cfg, model, mesh, free)
    if "compute_dtype" in free and mesh.devices.flat[0].platform == "cpu":
        exact = cfg.model.model_copy(update={"compute_dtype": "float32"})
        wide = _shrunk(cfg.model_copy(update={"model": exact}), model, mesh, free)
        same = wide.rollout.max_length == found.rollout.max_length
        found = wide if same and _fits(engine_for(wide, model, mesh)) else found
    check_fits(engine_for(found, model, mesh))
    return found


def _shrunk(cfg: Card, model: ModelConfig, mesh: Mesh, free: Collection[str]) -> Card:
    """The largest sizes that fit, or the smallest that may be chosen."""
    while not _fits(engine := engine_for(cfg, model, mesh)):
        asked = cfg.rollout
        if "slots" in free and asked.slots > 1 and asked.slots // 2 % engine.row_shards == 0:
            smaller = {"slots": asked.slots // 2}
        elif "max_length" in free and asked.max_length // 2 >= SHORTEST:
            smaller = {"max_length": asked.max_length // 2}
        else:
            break
        cfg = cfg.model_copy(update={"rollout": asked.model_copy(update=smaller)})
    return cfg


def free_sizes(overrides: Collection[str], card: bool) -> set[str]:
    """What `fitted` may choose where these overrides, KEY=VALUE, are given. card: there is a card, which says how long
    rows are and in which dtype they are computed."""
    given = {override.partition("=")[0].strip() for override in overrides}
    keys = {"slots": "rollout"} if card else {"slots": "rollout", "max_length": "rollout", "compute_dtype": "model"}
    return {key for key, table in keys.items() if given.isdisjoint((table, f"{table}.{key}"))}


def _fits(engine: Engine) -> bool:
    device, room = engine.mesh.devices.flat[0], _there(engine)
    if device.platform == "cpu":  # its memory is the host's, which has the process as well
        process = engine_process_bytes(engine) + COMPILER - host_memory.resident()
        room -= max(0.0, process) / engine.mesh.devices.size
    return sum(needed_bytes(engine)) <= SHARE * room


def _there(engine: Engine) -> float:
    """What a device of the engine has free; on a CPU, which all devices share, its part of what the machine has.
    Infinite where nobody says."""
    device = engine.mesh.devices.flat[0]
    if device.platform == "cpu":
        return host_memory.available() / engine.mesh.devices.size if host_memory.total() else math.inf
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit", math.inf) - stats.get("bytes_in_use", 0)


def _sizes(engine: Engine) -> str:
    config = engine.config
    return f"rollout.slots = {config.slots}, of rollout.max_length = {config.max_length} tokens"
