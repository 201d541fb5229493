"""The [log] table: what a run records beside its metrics, episodes and judgements."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import Section

Tracker = Literal["tensorboard", "wandb", "trackio"]


class LogSection(Section):
    """What a run records. Raises ValueError for entropies without the tokens whose they are."""

    tokens: bool = False
    """Write every token of the episodes with its behaviour log-prob to `tokens.jsonl.gz`, to be seen in the report."""
    entropies: bool = False
    """With `log.tokens`: also measure the entropy of the distribution that each token is drawn from. Tokens and
    log-probs stay the same bits; every sampled token costs one more pass over its logits: on a CPU 4 % of the time of
    generation with a vocabulary of 4,096 and 15 % with one of 151,936, for a model of 4 layers of width 256."""
    trackers: Annotated[tuple[Tracker, ...], Field(strict=False)] = ()
    """Experiment trackers that get every metric: `tensorboard`, `wandb`, `trackio`
    (docs/operations.md#experiment-trackers)."""
    project: str = Field(default="scope-jax", min_length=1)
    """Project in W&B and trackio."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the run there; default: the run folder's."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline`, or `online`: W&B's server gets the metrics during the run."""

    @model_validator(mode="after")
    def _checked(self) -> LogSection:
        if self.entropies and not self.tokens:
            raise ValueError("entropies = true needs tokens = true: they stand beside the tokens in tokens.jsonl.gz.")
        return self
