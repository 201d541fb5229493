"""Whether an engine fits the memory of this machine, and for a model without a card: how many replies at a time, of
which length, do."""

from __future__ import annotations

from collections.abc import Callable, Collection

from jax.sharding import Mesh

from scope_jax.config import ServedModel
from scope_jax.errors import UserError
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.plan.memory import device_bytes, generating_bytes
from scope_jax.rollouts.engine import Engine
from scope_jax.run import host_memory
from scope_jax.run.engines import engine_for

Tell = Callable[[str], None]

GIB = 2**30
SHARE = 0.9  # of the memory that is free: the rest is for what the programs need meanwhile
SHORTEST = 512  # tokens of a row, below which no length is tried


def free_bytes(engine: Engine) -> float:
    """What a device of the engine has free; on a CPU, which all devices share, its part of what the machine has."""
    device = engine.mesh.devices.flat[0]
    if device.platform == "cpu":
        return (host_memory.free() - generating_bytes(engine)) / engine.mesh.devices.size
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit", float("inf")) - stats.get("bytes_in_use", 0)


def needed_bytes(engine: Engine) -> tuple[int, int]:
    """(weights, cache) on each device."""
    return device_bytes(engine.abstract_weights()), device_bytes(engine.abstract_state())


def check_fits(engine: Engine) -> None:
    """Raises UserError, before anything is allocated, if the engine does not fit."""
    if _fits(engine):
        return
    weights, cache = needed_bytes(engine)
    room = SHARE * free_bytes(engine)
    slots, length = engine.config.slots, engine.config.max_length
    raise UserError(
        f"on a device the weights take {weights / GIB:.2f} GiB and the cache {cache / GIB:.2f} GiB (rollout.slots = "
        f"{slots}, of rollout.max_length = {length} tokens), but there is room for {max(0.0, room) / GIB:.2f} GiB; "
        "lower one of the two, such as --set rollout.slots=1, or take a smaller model."
    )


def fitted(cfg: ServedModel, model: ModelConfig, mesh: Mesh, free: Collection[str], tell: Tell) -> ServedModel:
    """The card with sizes that fit, of those that may be chosen (`free`: slots, max_length): fewer slots first, then
    shorter rows. Says what they are if they are less than the card's."""
    asked = tried = cfg.rollout
    while not _fits(engine := engine_for(cfg.model_copy(update={"rollout": tried}), model, mesh)):
        if "slots" in free and tried.slots > 1 and tried.slots // 2 % engine.row_shards == 0:
            tried = tried.model_copy(update={"slots": tried.slots // 2})
        elif "max_length" in free and tried.max_length // 2 >= SHORTEST:
            tried = tried.model_copy(update={"max_length": tried.max_length // 2})
        else:
            check_fits(engine)
    if tried != asked:
        _, cache = needed_bytes(engine)
        tell(
            f"the memory has room for rollout.slots = {tried.slots}, of rollout.max_length = {tried.max_length} "
            f"tokens: {cache / GIB:.2f} GiB of cache"
        )
    return cfg.model_copy(update={"rollout": tried})


def _fits(engine: Engine) -> bool:
    return sum(needed_bytes(engine)) <= SHARE * free_bytes(engine)
