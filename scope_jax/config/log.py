"""The [log] table: what a run records beside its metrics, episodes and judgements."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scope_jax.config.base import Section

Tracker = Literal["tensorboard", "wandb", "trackio"]


class LogSection(Section):
    tokens: bool = False  # every token of the episodes with its behaviour log-prob, in tokens.jsonl.gz
    # experiment trackers that get all metrics; their libraries are optional
    trackers: Annotated[tuple[Tracker, ...], Field(strict=False)] = ()
    project: str = Field(default="scope-jax", min_length=1)  # W&B, trackio
    name: str | None = Field(default=None, min_length=1)  # of the run there; None: the run folder's
    wandb_mode: Literal["offline", "online"] = "offline"
