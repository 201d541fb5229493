"""The table of the training loop: its length, its checkpoints, and what ends it early."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scope_jax.config.base import Count, LocalPath, Seconds, Section, Whole


class WatchRule(Section):
    """A bound of one metric that ends the run early."""

    metric: str = Field(min_length=1)
    """Name of a metric, as in `metrics.jsonl`."""
    below: float | None = Field(default=None, ge=-1e9, le=1e9)
    """A value below this is out of bounds. A rule has either this or `above`."""
    above: float | None = Field(default=None, ge=-1e9, le=1e9)
    """A value above this is out of bounds."""
    steps: Count = 1
    """Consecutive values out of bounds that end the run."""

    @model_validator(mode="after")
    def _one_bound(self) -> WatchRule:
        if (self.below is None) == (self.above is None):
            raise ValueError(f"the watch of {self.metric!r} needs one bound; give either below or above")
        return self


class TrainSection(Section):
    steps: Count | None = None
    """Number of steps; none: until the game is finished (SCOPE, R-Zero and Dr. Zero, whose iterations end them, and
    games in a file that have an end)."""
    batch_size: Count = 256
    """Items per step: SSP's answers, SPICE's documents, SCORE's questions, Dr. Zero's passages or pairs, rows of
    `rlvr`, `sft` and `dpo`; in Absolute Zero the tasks of each kind that are proposed, and that are solved. SCOPE,
    SPELL, R-Zero and SPIRAL have their own keys and reject it."""
    save_every: Count = 10
    """Steps between checkpoints."""
    keep: Count = 2
    """Number of checkpoints to keep."""
    keep_iterations: bool = False
    """In games with iterations (SCOPE, R-Zero, Dr. Zero): at the end of each, evaluate and keep the checkpoint, as
    `checkpoints/45-iteration-1`."""
    origin: LocalPath | None = None
    """`RUN`, `RUN@45` or `RUN@iteration-1`: start from the state of another run (`scope-jax train CARD --from`;
    docs/operations.md#starting-from-another-run)."""
    watch: tuple[WatchRule, ...] = Field(default=(), strict=False)
    """Rules that end a run early (docs/operations.md#stopping-early)."""
    one_step_off_policy: bool = False
    """Play a step with the weights before the last update, while that one is computed
    (docs/rollouts.md#one-step-off-policy); needs `rollout.devices`, and `rollout_cap` or `old_logprobs = "rollout"` in
    the losses."""
    max_staleness: Whole = 0
    """Updates that the weights with which a step begins to be played may lack; newer weights are taken over while its
    rollouts are under way, and steps overlap (docs/asynchronous.md). Needs `rollout_cap`, `rollout_mask` or
    `old_logprobs = "rollout"` in the losses. 0: steps follow each other."""
    plays: Count | None = None
    """Steps that are played at a time; default, and most: `max_staleness` + 1. What a game remembers of its steps is
    read so many steps late, less one."""
    offload: bool = False
    """Keep policies (weights, moments, reference) in host memory while they are not trained; the engine keeps the
    weights of the policy being sampled."""
    compilation_cache: LocalPath = ".cache/jax"
    """Folder in which compiled programs are kept for later starts, unless `JAX_COMPILATION_CACHE_DIR` is set
    (docs/operations.md#a-run-that-hangs)."""
    stall_timeout: Seconds | None = None
    """Seconds without progress after which a phase of a step is reported as hanging
    (docs/operations.md#a-run-that-hangs); none: never."""
    stall_action: Literal["report", "exit"] = "report"
    """What follows: `report`, or `exit`: then also end the process; needs `train.stall_timeout`."""
    stop_grace: Seconds = 100.0
    """Seconds after SIGTERM or Ctrl-C for the rest of the step and its checkpoint (docs/operations.md#stopping-a-run);
    less than the `grace` of the launcher in use."""
    spool: LocalPath = ".cache/objects"
    """Local folder for copies of runs and data on object storage (docs/operations.md#object-storage)."""

    @property
    def overlapping(self) -> int:
        """Steps that are played at a time."""
        return self.max_staleness + 1 if self.plays is None else self.plays

    @model_validator(mode="after")
    def _steps_overlap_in_one_way(self) -> TrainSection:
        if self.one_step_off_policy and self.max_staleness:
            raise ValueError(
                "one_step_off_policy and max_staleness are two ways to play steps before the updates before them; "
                "remove one"
            )
        if self.overlapping > self.max_staleness + 1:
            raise ValueError(
                f"plays is {self.plays}, but with max_staleness = {self.max_staleness} a step begins when no more than "
                f"{self.max_staleness} of the updates before it are missing; lower it to {self.max_staleness + 1}"
            )
        if self.steps is not None and self.max_staleness >= self.steps:
            raise ValueError(
                f"max_staleness is {self.max_staleness}, but there are {self.steps} steps, before the last of which "
                f"{self.steps - 1} updates can be missing; lower it"
            )
        return self

    @model_validator(mode="after")
    def _a_stall_is_noticed(self) -> TrainSection:
        if self.stall_action == "exit" and self.stall_timeout is None:
            raise ValueError('stall_action = "exit" needs stall_timeout, the seconds after which a phase hangs; set it')
        return self
