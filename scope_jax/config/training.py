"""The table of the training loop: its length, its checkpoints, and what ends it early."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scope_jax.config.base import Count, LocalPath, Seconds, Section


class WatchRule(Section):
    """A bound of one metric that ends the run early."""

    metric: str = Field(min_length=1)  # as in metrics.jsonl
    below: float | None = Field(default=None, ge=-1e9, le=1e9)  # out of bounds if smaller
    above: float | None = Field(default=None, ge=-1e9, le=1e9)  # out of bounds if larger
    steps: Count = 1  # values out of bounds in a row that end the run

    @model_validator(mode="after")
    def _one_bound(self) -> WatchRule:
        if (self.below is None) == (self.above is None):
            raise ValueError(f"the watch of {self.metric!r} needs one bound; give either below or above")
        return self


class TrainSection(Section):
    steps: Count | None = None  # length of the run; None: the game decides when it ends
    batch_size: Count = 256  # items (SSP: ground-truth answers) per step
    save_every: Count = 10
    keep: Count = 2  # number of latest checkpoints to keep
    keep_iterations: bool = False  # also keep a named checkpoint after each iteration, and evaluate there
    origin: LocalPath | None = None  # RUN or RUN@STEP whose state the run starts from (--from)
    watch: tuple[WatchRule, ...] = Field(default=(), strict=False)  # end the run early; docs/configuration.md
    one_step_off_policy: bool = False  # play a step with the weights before the last update, while that one is computed
    offload: bool = False  # keep policies in host memory while they are not trained
    compilation_cache: LocalPath = ".cache/jax"  # folder of compiled programs, unless JAX_COMPILATION_CACHE_DIR is set
    stall_timeout: Seconds | None = None  # without progress, after which a phase of a step is reported as hanging
    stall_action: Literal["report", "exit"] = "report"
    stop_grace: Seconds = 100.0  # after SIGTERM or Ctrl-C, for the rest of the step and its checkpoint
    spool: LocalPath = ".cache/objects"  # local copies of what is on object storage

    @model_validator(mode="after")
    def _a_stall_is_noticed(self) -> TrainSection:
        if self.stall_action == "exit" and self.stall_timeout is None:
            raise ValueError('stall_action = "exit" needs stall_timeout, the seconds after which a phase hangs; set it')
        return self
