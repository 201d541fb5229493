"""The `[serve]` table, and the card of a model that is served without a game."""

from __future__ import annotations

from pydantic import Field

from scope_jax.config.base import Count, Section, Seed, Whole
from scope_jax.config.model import ModelSection
from scope_jax.config.tables import MeshSection, RetrievalSection, RolloutSection


class ServeSection(Section):
    """Limits of `scope-jax serve`."""

    queue: Whole = 256  # samples that may wait for a slot; a request beyond that is refused with status 429
    max_tokens: Count = 4096  # most sampled tokens of a reply; also the default of requests that name no number
    max_samples: Count = 16  # most samples of one request: prompts times n
    max_body: int = Field(default=1 << 20, ge=1024, le=1 << 30)  # bytes of a request
    max_turns: Count = 10  # most sampled turns of a reply with searches


class ServedModel(Section):
    """The part of a `Config` that generation needs: for a model folder that is served without a card."""

    seed: Seed = 0
    model: ModelSection
    mesh: MeshSection = MeshSection()
    retrieval: RetrievalSection | None = None
    rollout: RolloutSection = RolloutSection()
    serve: ServeSection = ServeSection()
