"""The [log] table: what a run records beside its metrics, episodes and judgements."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import Section

Tracker = Literal["tensorboard", "wandb", "trackio"]


class LogSection(Section):
    """What a run records. Raises ValueError for entropies without the tokens whose they are."""

    tokens: bool = False  # every token of the episodes with its behaviour log-prob, in tokens.jsonl.gz
    entropies: bool = False  # there also the entropy of the distribution that each token was drawn from
    # experiment trackers that get all metrics; their libraries are optional
    trackers: Annotated[tuple[Tracker, ...], Field(strict=False)] = ()
    project: str = Field(default="scope-jax", min_length=1)  # W&B, trackio
    name: str | None = Field(default=None, min_length=1)  # of the run there; None: the run folder's
    wandb_mode: Literal["offline", "online"] = "offline"

    @model_validator(mode="after")
    def _checked(self) -> LogSection:
        if self.entropies and not self.tokens:
            raise ValueError("entropies = true needs tokens = true: they stand beside the tokens in tokens.jsonl.gz.")
        return self
