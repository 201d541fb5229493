"""The rollout engine of a card."""

from __future__ import annotations

from jax.sharding import Mesh

from models.config import ModelConfig
from models.pages import Loop, Ragged
from models.tokenizer import Tokenizer
from rollouts.engine import Engine
from rollouts.local import LocalRollouts
from rollouts.paged import PagedEngine, page_bytes
from rollouts.slots import EngineConfig
from scope_jax.config import Config
from scope_jax.run.indexing import DTYPES


def rollouts_of(cfg: Config, model: ModelConfig, tokenizer: Tokenizer, mesh: Mesh) -> LocalRollouts:
    """The engine with its driver."""
    engine = engine_for(cfg, model, mesh)
    return LocalRollouts(engine, tokenizer, seed=cfg.seed, threads=cfg.rollout.search_threads)


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
