"""The rollout engine of a card."""

from __future__ import annotations

from typing import Any

from jax.sharding import Mesh

from models.config import ModelConfig
from models.pages import Loop, Ragged
from models.tokenizer import Tokenizer
from rollouts.engine import Engine
from rollouts.local import LocalRollouts
from rollouts.paged import PagedEngine, page_bytes
from rollouts.slots import EngineConfig
from rollouts.tools import BatchedTool
from scope_jax.config import Config
from scope_jax.run.indexing import DTYPES

THREADS = 256  # most responders at a time, unless the card says otherwise


def rollouts_of(
    cfg: Config, engine: Engine | PagedEngine, tokenizer: Tokenizer, search: BatchedTool[Any] | None
) -> LocalRollouts:
    """The engine with its driver. search: the tool that responders call, if the card's game searches."""
    threads = cfg.rollout.search_threads or min(cfg.rollout.slots, THREADS)
    return LocalRollouts(engine, tokenizer, seed=cfg.seed, threads=threads, tool=search)


def engine_for(cfg: Config, model: ModelConfig, mesh: Mesh) -> Engine | PagedEngine:
    """The engine that the card's [rollout] asks for. Raises ValueError if its budget cannot hold an episode."""
    card = cfg.rollout
    platform, dtype = mesh.devices.flat[0].platform, DTYPES[cfg.model.compute_dtype]
    # On CPU, XLA gathers pages more slowly than it reads dense columns.
    paged = card.cache == "paged" or (card.cache == "auto" and (platform != "cpu" or card.cache_gib is not None))
    pages = None
    if card.cache_gib is not None:
        pages = int(card.cache_gib * 2**30) // page_bytes(model, dtype, mesh.shape["tensor"])
    config = EngineConfig(
        slots=card.slots,
        max_length=card.max_length,
        prefill_buckets=card.prefill_buckets,
        prefill_batch=card.prefill_batch,
        decode_steps=card.decode_steps,
        compute_dtype=dtype,
        prefill_tokens=card.prefill_tokens,
        pages=pages,
    )
    if not paged:
        return Engine(model, config, mesh)
    kernel = platform == "tpu" and model.head_dim % 128 == 0  # the TPU kernel's condition
    return PagedEngine(model, config, mesh, Ragged() if kernel else Loop())
