"""The `[serve]` table, and the card of a model that is served without a game."""

from __future__ import annotations

from pydantic import Field

from scope_jax.config.base import Count, Section, Seed, Whole
from scope_jax.config.model import ModelSection
from scope_jax.config.tables import MeshSection, RetrievalSection, RolloutSection


class ServeSection(Section):
    """Limits of `scope-jax serve`."""

    queue: Whole = 256
    """Samples that may wait for a slot; a request that would exceed it gets status 429."""
    max_tokens: Count = 4096
    """Most sampled tokens of a reply, which is also how many a request gets that names no number."""
    max_samples: Count = 16
    """Most samples of one request: prompts times `n`; never more than `rollout.slots` and `serve.queue` together."""
    max_body: int = Field(default=1 << 20, ge=1024, le=1 << 30)
    """Bytes of a request; a larger one gets status 413."""
    max_turns: Count = 10
    """Most sampled turns of a reply with searches."""


class ServedModel(Section):
    """The part of a `Config` that generation needs: for a model folder that is served without a card."""

    seed: Seed = 0
    """The seed of all random numbers."""
    model: ModelSection
    """The model."""
    mesh: MeshSection = MeshSection()
    """The devices."""
    retrieval: RetrievalSection | None = None
    """The search tool; default: none."""
    rollout: RolloutSection = RolloutSection()
    """The engine that generates."""
    serve: ServeSection = ServeSection()
    """Limits of requests."""
