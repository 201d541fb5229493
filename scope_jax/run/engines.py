"""The rollout engine of a card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from scope_jax.config import Config, ServedModel
from scope_jax.errors import UserError
from scope_jax.models.decoder.backends import attention_over_pages
from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import has_sinks, head_dim
from scope_jax.models.decoder.paging import Implementation
from scope_jax.models.decoder.transformer import check_mesh, declare
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.multihost import distributed
from scope_jax.rollouts.budget import least_bytes, pages_within, state_bytes
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.flight import FlightRollouts
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.run.adapters import DTYPES, adapter_of, policies_of
from scope_jax.sharding.mesh import MeshConfig, make_mesh, row_shards, without_context
from scope_jax.sharding.rules import TRAIN, Rules, decode_rules
from scope_jax.sharding.spec import param_shardings

THREADS = 256  # most responders at a time, unless the card says otherwise


def rollouts_of(cfg: Config, engine: Engine, tokenizer: Tokenizer, search: BatchedTool[Any] | None) -> LocalRollouts:
    """The engine with its driver. search: the tool that responders call, if the card's game searches."""
    threads, ahead = threads_of(cfg), ahead_of(cfg, engine)
    if cfg.train.max_staleness:
        return FlightRollouts(engine, tokenizer, seed=cfg.seed, threads=threads, ahead=ahead, tool=search)
    return LocalRollouts(engine, tokenizer, seed=cfg.seed, threads=threads, ahead=ahead, tool=search)


def threads_of(cfg: Config | ServedModel) -> int:
    """How many responders run at a time."""
    return cfg.rollout.search_threads or min(cfg.rollout.slots, THREADS)


def ahead_of(cfg: Config | ServedModel, engine: Engine) -> bool:
    """Whether a dispatch is launched before the one before is read."""
    if cfg.rollout.ahead == "auto":
        return engine.mesh.devices.flat[0].platform != "cpu"  # there the host has no processor of its own
    return cfg.rollout.ahead


def decode_layout(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh) -> tuple[Mesh, Rules]:
    """The engine's mesh, [rollout.mesh] over the devices of `mesh` or that itself (a context group's devices are row
    shards there), and its sharding rules.

    Raises ValueError if the sizes do not fit the devices or the model.
    """
    if cfg.rollout.mesh is None:
        mesh = without_context(mesh)
    else:
        try:
            mesh = make_mesh(MeshConfig(**cfg.rollout.mesh.model_dump()), list(mesh.devices.flat))
            check_mesh(model, mesh)
        except ValueError as error:  # its sentence begins with "mesh"
            raise UserError(f"rollout.{error}") from None
    return mesh, decode_rules(model.num_experts, mesh.shape)


def shares_base(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh) -> bool:
    """Whether the learner on `mesh` and the engine can use the same buffers of the base of adapters: in one process,
    in one dtype, on the same devices, and under the same shardings, as on one device or in one tensor group."""
    section = cfg.model.adapter
    if section is None or section.base_dtype != cfg.model.compute_dtype or distributed.count() > 1:
        return False
    if cfg.rollout.devices is not None or cfg.rollout.quantization is not None:
        return False
    declared, (own, rules) = declare(model), decode_layout(cfg, model, mesh)
    pairs = zip(
        jax.tree.leaves(declared),
        jax.tree.leaves(param_shardings(declared, mesh, TRAIN)),
        jax.tree.leaves(param_shardings(declared, own, rules)),
        strict=True,
    )
    return all(train.is_equivalent_to(decode, len(param.shape)) for param, train, decode in pairs)


def implementation(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh, longest: int) -> Implementation:
    """Layout of the engine's pages, and attention over them. On a CPU, where XLA gathers pages more slowly than it
    reads columns where they are, each slot has a page for the longest episode, unless the card has a budget, cascade
    attention, drafts, a cache in 8 bits, which the kernel of TPUs does not take either, or the loop."""
    card, platform = cfg.rollout, mesh.devices.flat[0].platform
    plain = card.attention == "auto" and card.cache_gib is None and card.kv_cache_dtype is None
    if platform == "cpu" and plain and not (card.cascade or card.draft_tokens):
        return Columns(longest)
    if card.attention == "loop" or (platform == "tpu" and card.kv_cache_dtype is not None):
        platform = "any"
    return attention_over_pages(platform, head_dim(model), has_sinks(model))


def prefill_tokens(cfg: Config | ServedModel, mesh: Mesh) -> int:
    """Tokens of prompts and observations in one dispatch."""
    if cfg.rollout.prefill_tokens != "auto":
        return cfg.rollout.prefill_tokens
    # A CPU computes few tokens nearly as fast as many, and computes the part of a dispatch that is empty, too.
    return 128 if mesh.devices.flat[0].platform == "cpu" else 512


def replays(cfg: Config | ServedModel, model: ModelConfig) -> bool:
    """Whether the engine keeps the experts that it picks. Raises UserError if the model cannot do that."""
    if not isinstance(cfg, Config) or not cfg.learner.router_replay:
        return False
    picked = model.picks[1] if model.num_experts else 0
    if picked < 2:
        reason = "has one expert for each token" if picked else "has no experts"
    elif None not in model.windows:
        reason = "has no layer that sees all tokens, so that its pages are given back too early"
    else:
        return True
    raise UserError(f"learner.router_replay is on, but the model in {cfg.model.checkpoint} {reason}; turn it off.")


def _engine_config(cfg: Config | ServedModel, model: ModelConfig, processes: int) -> EngineConfig:
    """What one of so many processes asks of its engine."""
    card = cfg.rollout
    return EngineConfig(
        slots=card.slots // processes,
        max_length=cfg.engine_length if isinstance(cfg, Config) else card.max_length,
        decode_steps=card.decode_steps,
        compute_dtype=DTYPES[cfg.model.compute_dtype],
        cascade=card.cascade,
        draft_tokens=card.draft_tokens,
        quantized=card.quantization is not None,
        cache_in_8_bits=card.kv_cache_dtype is not None,
        adapter=adapter_of(cfg.model.adapter),
        policies=() if cfg.model.adapter is None else policies_of(cfg),
        entropies=isinstance(cfg, Config) and cfg.log.entropies,
        picks=replays(cfg, model),
    )


def check_budget(cfg: Config | ServedModel, model: ModelConfig) -> None:
    """Raises UserError if rollout.cache_gib cannot hold one episode."""
    budget, mesh = cfg.rollout.cache_gib, cfg.rollout.mesh or cfg.mesh
    if budget is None or mesh.tensor < 1:  # all devices: known when there are some
        return
    config = replace(_engine_config(cfg, model, 1), cache_in_8_bits=False)  # as exams have it
    needed = least_bytes(model, config, mesh.tensor) / 2**30
    if needed > budget:
        raise UserError(
            f"rollout.cache_gib = {budget:g} cannot hold one episode of rollout.max_length = {config.max_length} (or "
            f"evaluate.max_length, if that is longer), which takes {needed:.3g} GiB on a device; raise it or lower it."
        )


def engine_for(cfg: Config | ServedModel, model: ModelConfig, mesh: Mesh) -> Engine:
    """The engine that the card's [rollout] asks for, on the devices of a mesh; of several processes, each has its part
    of the slots. Raises ValueError if its budget cannot hold an episode, if the processes do not divide the slots, if
    the platform's kernel has no cascade attention, if the model cannot have drafts, or as `decode_layout` does."""
    card, dtype, processes = cfg.rollout, DTYPES[cfg.model.compute_dtype], distributed.count()
    if card.slots % processes:
        raise UserError(
            f"rollout.slots is {card.slots}, which {processes} processes cannot share; "
            f"choose a multiple of {processes}."
        )
    mesh, _ = decode_layout(cfg, model, mesh)
    config = replace(_engine_config(cfg, model, processes), prefill_tokens=prefill_tokens(cfg, mesh))
    check_budget(cfg, model)
    if card.cache_gib is not None:
        slots, limit = config.slots // row_shards(mesh), int(card.cache_gib * 2**30)
        states = state_bytes(model, dtype, slots, mesh.shape["tensor"])
        if states > limit:
            raise UserError(
                f"rollout.cache_gib = {card.cache_gib:g} is less than the states of {slots} slots on a row shard and "
                f"their snapshots take, {states / 2**30:.2f} GiB; raise it or lower rollout.slots."
            )
        config = replace(config, pages=pages_within(model, config, mesh, limit - states))
    return Engine(model, config, mesh, implementation(cfg, model, mesh, config.max_length))
