"""Tables of the learner: advantages, losses, the optimiser, batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from scope_jax.config.base import Count, Lengths, Section, Share, Weight, Whole

Advantage = Literal[
    "group-zscore",
    "group-mean",
    "leave-one-out",
    "group-mean-whiten",
    "batch-mean",
    "batch-zscore",
    "token-whiten",
    "ema",
    "none",
]
KL = Literal["none", "k1", "k2", "k3", "k2-plain", "k3-plain"]
Coefficient = Annotated[float, Field(ge=0, le=100)]
OrOff = BeforeValidator(lambda value: 0.0 if value is None else value)  # None means off, like 0


class AdvantageCard(Section):
    """How an episode's advantage is computed from the rewards of its role; docs/losses.md has the equations."""

    advantage: Advantage = "group-mean"
    """How rewards become advantages: `group-zscore`, `group-mean`, `leave-one-out`, `group-mean-whiten`, `batch-mean`,
    `batch-zscore`, `token-whiten`, `ema`, `none`."""
    advantage_ddof: int = Field(default=1, ge=0, le=1)
    """Delta degrees of freedom of the standard deviation of a group or batch."""
    advantage_eps: Share = 1e-6
    """Added to that deviation, or to the variance under the root when whitening."""
    ema_decay: float = Field(default=0.7, ge=0, lt=1)
    """`ema`: b_t = decay · b_{t−1} + (1 − decay) · mean reward of the update (SCORE §3.5; 0.95 in Spiral)."""
    ema_start: float = Field(default=0.0, ge=-1e6, le=1e6)
    """`ema`: b_0."""


class LossCard(AdvantageCard):
    """The objective of an update: advantage, policy term, aggregation and KL, with their coefficients.

    The learner knows nothing else about a role. docs/losses.md has the equations, and cards for the published
    algorithms.
    """

    objective: Literal["policy", "supervised", "dpo"] = "policy"
    """`policy`, `supervised`, or `dpo`: ranked pairs, groups of two episodes (docs/losses.md#dpo)."""
    # policy term: the ratio, its surrogate, and its bounds
    surrogate: Literal["clip", "weight"] = "clip"
    """`clip`: PPO's clipped ratio; `weight`: clipped ratio as a constant weight of log π (CISPO, REINFORCE)."""
    ratio: Literal["token", "sequence"] = "token"
    """r = exp(log π − log π_old) of each `token`, or of the `sequence`: geometric mean over the episode (GSPO)."""
    clip_low: Share = 0.2
    """The ratio is clipped to 1 − `clip_low` …"""
    clip_high: Weight = 0.2
    """… 1 + `clip_high`."""
    dual_clip: Annotated[Weight, OrOff] = 3.0
    """With the surrogate `clip`: bound for negative advantages, above 1; 0: none."""
    log_ratio_bound: float = Field(default=20.0, gt=0, le=80)
    """Log-ratios are clamped to ± this before exponentiation."""
    old_logprobs: Literal["learner", "rollout"] = "learner"
    """Source of log π_old: the `learner`, or the engine while sampling (`rollout`)."""
    rollout_cap: Weight = 0.0
    """C of the weight min(π_old/μ, C) for samples of an older policy or with other rounding; 0: no weight."""
    rollout_weight: Literal["token", "sequence"] = "token"
    """This weight per `token`, or for the whole `sequence` (product)."""
    rollout_floor: Weight = 0.0
    """The weight is at least this."""
    rollout_mask: Literal["none", "token", "sequence", "geometric"] = "none"
    """Leaves tokens out of the policy term whose π_old/μ is beyond the bounds below: each `token`, or an episode by the
    product (`sequence`) or the geometric mean (`geometric`) of its ratios (docs/losses.md#which-log-π_old)."""
    rollout_mask_low: Weight = 0.0
    """Lower bound of `rollout_mask`; 0: none."""
    rollout_mask_high: Weight = 0.0
    """Upper bound of `rollout_mask`; 0: none."""
    # aggregation: what the sum over tokens is divided by
    aggregation: Literal["token-mean", "sequence-mean", "constant"] = "sequence-mean"
    """What the sum over tokens is divided by: `token-mean`, `sequence-mean`, `constant` (docs/losses.md#the-loss)."""
    constant_length: Count = 1
    """Divisor of `constant`, in addition to the number of sequences."""
    # KL to the reference, and entropy
    kl: KL = "k3"
    """Estimator of the KL to the reference: `k1`, `k2`, `k3`, `k2-plain`, `k3-plain`, `none`
    (docs/losses.md#kl-to-the-reference)."""
    kl_coef: Coefficient = 0.01
    """Its coefficient, β."""
    kl_bound: Weight = 0.0
    """A token's estimate is clamped to ± this; 0: no bound."""
    teacher: Literal["none", "k1", "k2", "k3"] = "none"
    """Estimator of the KL to a teacher, whose log-probs of its episodes the game gets with `step.tools.score`: `k1`,
    `k2`, `k3`, `none` (docs/losses.md#kl-to-a-teacher)."""
    teacher_coef: Coefficient = 1.0
    """Its coefficient."""
    entropy_coef: Coefficient = 0.0
    """Coefficient of the entropy bonus."""
    tempered: bool = True
    """Compute log-probs at the temperature of the rollout."""
    mini_batches: Count = 1
    """Optimiser steps per update, each on its part of the groups of every role."""
    # objective "dpo"
    dpo_beta: float = Field(default=0.1, gt=0, le=100)
    """`dpo`: β, the scale of the implicit reward β · log π/π_ref."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """`dpo`: share of pairs assumed to be ranked the wrong way round."""

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares the policy with the reference."""
        return self.objective == "dpo" or (self.objective == "policy" and self.kl != "none")

    @property
    def corrects_rollout(self) -> bool:
        """Whether π_old/μ weighs or masks tokens."""
        return self.objective == "policy" and (self.rollout_cap > 0 or self.rollout_mask != "none")

    @property
    def rollout_by_sequence(self) -> bool:
        """Whether it does so by whole episodes."""
        weighs = self.rollout_cap > 0 and self.rollout_weight == "sequence"
        return self.objective == "policy" and (weighs or self.rollout_mask in ("sequence", "geometric"))

    @model_validator(mode="after")
    def _fits_together(self) -> LossCard:
        if self.objective != "dpo" and self.changed("dpo_beta", "label_smoothing"):
            raise ValueError('dpo_beta and label_smoothing are for objective = "dpo"; remove them, or set it')
        if self.objective != "policy" and self.teacher != "none":
            raise ValueError('teacher is a term of objective = "policy"; remove one of the two')
        if self.teacher == "none" and self.changed("teacher_coef"):
            raise ValueError('teacher_coef has no effect with teacher = "none"; set an estimator, or remove it')
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError("dual_clip bounds the loss at dual_clip · |A|: give a number above 1, or 0 for none")
        if self.dual_clip and self.surrogate == "weight" and self.objective == "policy":
            raise ValueError(
                'dual_clip only works with surrogate = "clip"; set dual_clip = 0 with surrogate = "weight"'
            )
        if self.rollout_weight == "sequence" and not self.rollout_cap:
            raise ValueError(
                'rollout_weight = "sequence" has no effect without rollout_cap; set rollout_cap, or remove it'
            )
        if self.rollout_floor > self.rollout_cap:
            raise ValueError(
                f"rollout_floor is {self.rollout_floor:g}, but the weight is at most rollout_cap = "
                f"{self.rollout_cap:g}; set a lower floor, or a cap"
            )
        low, high = self.rollout_mask_low, self.rollout_mask_high
        if (self.rollout_mask == "none") != (low == high == 0):
            raise ValueError(
                "rollout_mask and its bounds belong together: name what is masked, and rollout_mask_low or "
                "rollout_mask_high, or remove them"
            )
        if high and low >= high:
            raise ValueError(f"rollout_mask_low is {low:g} and rollout_mask_high {high:g}: nothing would be left")
        if self.corrects_rollout and self.old_logprobs == "rollout":
            raise ValueError(
                'rollout_cap and rollout_mask compare π_old with the rollout, but with old_logprobs = "rollout" they '
                'are the same; remove them, or set old_logprobs = "learner"'
            )
        return self


class OptimizerSection(Section):
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Learning rate after the warm-up."""
    warmup_steps: Whole = 5
    """Updates of linear warm-up, counted per policy as in verl: one for every role update in a training step, whatever
    its `mini_batches` (SSP: two per step)."""
    schedule: Literal["constant", "cosine"] = "constant"
    """After the warm-up the rate stays (`constant`), or falls to zero (`cosine`)."""
    total_steps: Count | None = None
    """Number of updates, counted the same way, after which the cosine reaches zero; only with `cosine`."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of Adam's first moment."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of Adam's second moment."""
    eps: float = Field(default=1e-8, gt=0, le=1)
    """Added to the root of the second moment."""
    weight_decay: Share = 0.01
    """Decay of all weights, as with torch's AdamW on `model.parameters()`."""
    max_grad_norm: float = Field(default=1.0, gt=0, le=1e9)
    """Norm to which gradients are clipped."""
    # limits at which a run counts as diverged and ends
    max_param_rms: float = Field(default=1.0, gt=0, le=1e9)
    """A run whose weights are non-finite, or have a larger root mean square, has diverged and stops with an error (for
    language models it is below 0.1)."""
    max_skipped: Whole = 8
    """The run also stops after more consecutive optimiser steps with a non-finite gradient."""

    @model_validator(mode="after")
    def _cosine_has_an_end(self) -> OptimizerSection:
        if self.schedule == "cosine" and self.total_steps is None:
            raise ValueError('schedule = "cosine" needs total_steps, the update at which it reaches zero')
        if self.schedule == "constant" and self.total_steps is not None:
            raise ValueError('total_steps is the end of a cosine; set schedule = "cosine", or remove it')
        if self.total_steps is not None and self.total_steps <= self.warmup_steps:
            raise ValueError(f"total_steps must be larger than warmup_steps, {self.warmup_steps}")
        return self


class LearnerSection(Section):
    buckets: Lengths = (512, 1024, 2048, 4096, 8192, 12288)
    """Allowed row lengths; the largest must fit the longest episode."""
    packing: bool = True
    """Pack several episodes into one row."""
    share_prefixes: Literal["auto", "never"] = "auto"
    """Compute once what episodes begin with, such as a group's prompt: `auto` (if it saves 5 % of the FLOPs), `never`
    (docs/models.md#what-a-token-sees). Models whose layers have states never do."""
    micro_batch_rows: Whole | Literal["auto"] = "auto"
    """Most rows per forward and backward pass, over the whole mesh; 0: all at once; `auto`: 8, on CPUs as many as fit
    its cache, of larger models two on each shard."""
    remat: Literal["auto", "full", "attention", "qkv", "dots", "none"] = "auto"
    """What is kept of a layer for the backward pass: `full` its input, `attention` also the result of attention, `qkv`
    also queries, keys and values, `dots` also the results of its dense products (not of experts), `none` everything;
    the rest is computed again. `auto`: the most that has room by the plan's arithmetic, on CPUs `none` if it fits the
    cache (docs/plans.md#what-auto-keeps)."""
    logprob_chunk: Count | Literal["auto"] = "auto"
    """Logits in memory at a time, in tokens × vocabulary (128 tokens of Qwen3: 74 MiB); `auto`: 128, on GPUs 1024 if
    they have room for it."""
    attention: Literal["auto", "reference", "dot_product", "splash"] = "auto"
    """`auto` is `splash` on TPU, cuDNN's kernels on a GPU in bfloat16 or float16 and `dot_product` there in float32,
    `reference` elsewhere; `dot_product` is cuDNN's kernel with a mask where `auto` is cuDNN, else XLA's program
    (docs/models.md#attention)."""
    context_attention: Literal["auto", "ulysses", "ring"] = "auto"
    """How attention crosses the devices of `mesh.context`: `ulysses` (all-to-alls over the heads), `ring`, or `auto`:
    `ulysses` if they divide the kv heads of a tensor shard, otherwise `ring`."""
    router_replay: bool = False
    """Of a model with experts: an update's log-probs, and those at its start, take the experts that the engine picked
    for each token, not those that the learner's routers pick (docs/losses.md#experts-that-the-engine-picked)."""
    sequence_parallel: bool = False
    """With `mesh.tensor` > 1: between the layers, where norms are applied and `remat` keeps activations, the tokens of
    the rows are divided over the tensor group; all-reduces of activations become gathers and reduce-scatters
    (docs/rollouts.md#meshes)."""
