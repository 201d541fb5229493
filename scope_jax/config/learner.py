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
    advantage_ddof: int = Field(default=1, ge=0, le=1)  # for the standard deviation of a group or batch
    advantage_eps: Share = 1e-6
    ema_decay: float = Field(default=0.7, ge=0, lt=1)  # SCORE §3.5; 0.95 in Spiral
    ema_start: float = Field(default=0.0, ge=-1e6, le=1e6)  # b_0


class LossCard(AdvantageCard):
    """The objective of an update: advantage, policy term, aggregation and KL, with their coefficients.

    The learner knows nothing else about a role. docs/losses.md has the equations, and cards for the published
    algorithms.
    """

    objective: Literal["policy", "supervised", "dpo"] = "policy"
    # policy term: ratio r = exp(logπ − logπ_old), its surrogate, and its bounds
    surrogate: Literal["clip", "weight"] = "clip"  # PPO's; CISPO's
    ratio: Literal["token", "sequence"] = "token"  # sequence: the geometric mean over the episode, GSPO
    clip_low: Share = 0.2
    clip_high: Weight = 0.2
    dual_clip: Annotated[Weight, OrOff] = 3.0  # 0 = off
    log_ratio_bound: float = Field(default=20.0, gt=0, le=80)  # |log-ratios| before they are exponentiated
    old_logprobs: Literal["learner", "rollout"] = "learner"  # source of logπ_old
    rollout_cap: Weight = 0.0  # C in the weight min(π_old/μ, C); 0 = no weight
    rollout_weight: Literal["token", "sequence"] = "token"
    # aggregation: what the sum over tokens is divided by
    aggregation: Literal["token-mean", "sequence-mean", "constant"] = "sequence-mean"
    constant_length: Count = 1  # divisor of "constant": Σ tokens / (sequences · constant_length)
    # KL to the reference, and entropy
    kl: KL = "k3"
    kl_coef: Coefficient = 0.01  # beta
    kl_bound: Weight = 0.0  # bound on |value| of a token's estimator; 0 = off
    entropy_coef: Coefficient = 0.0
    tempered: bool = True  # log-probs of the policy at the rollout temperature
    mini_batches: Count = 1  # optimiser steps per update
    # objective "dpo"
    dpo_beta: float = Field(default=0.1, gt=0, le=100)  # beta of the implicit reward beta · log π/ref
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)  # share of pairs taken to be ranked wrongly

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares the policy with the reference."""
        return self.objective == "dpo" or (self.objective == "policy" and self.kl != "none")

    @model_validator(mode="after")
    def _fits_together(self) -> LossCard:
        own = {name: LossCard.model_fields[name].default for name in ("dpo_beta", "label_smoothing")}
        if self.objective != "dpo" and {name: getattr(self, name) for name in own} != own:
            raise ValueError('dpo_beta and label_smoothing are for objective = "dpo"; remove them, or set it')
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError("dual_clip bounds the loss at dual_clip · |A|: give a number above 1, or 0 for none")
        if self.dual_clip and self.surrogate == "weight" and self.objective == "policy":
            raise ValueError(
                'dual_clip only works with surrogate = "clip"; set dual_clip = 0 with surrogate = "weight"'
            )
        if self.rollout_weight == "sequence" and not self.rollout_cap:
            raise ValueError(
                'rollout_weight = "sequence" is no weight without rollout_cap; set rollout_cap, or remove it'
            )
        if self.rollout_cap and self.old_logprobs == "rollout":
            raise ValueError(
                'rollout_cap weighs π_old against the rollout, but with old_logprobs = "rollout" they are the same; '
                'set rollout_cap = 0 or old_logprobs = "learner"'
            )
        return self


class OptimizerSection(Section):
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    warmup_steps: Whole = 5  # updates of a policy, counted as in verl: one per role that trains it in a step
    schedule: Literal["constant", "cosine"] = "constant"
    total_steps: Count | None = None  # updates until the end of the cosine
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0, le=1)
    weight_decay: Share = 0.01  # of all weights, as torch's AdamW on model.parameters()
    max_grad_norm: float = Field(default=1.0, gt=0, le=1e9)
    # limits at which a run counts as diverged and ends
    max_param_rms: float = Field(default=1.0, gt=0, le=1e9)  # root mean square of all weights
    max_skipped: Whole = 8  # consecutive optimiser steps with a non-finite gradient

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
    buckets: Lengths = (512, 1024, 2048, 4096, 8192, 12288)  # possible row lengths of a batch
    packing: bool = True  # several episodes per row
    micro_batch_rows: Whole = 8  # rows per forward-backward pass over the whole mesh; 0 = all at once
    remat: Literal["full", "qkv", "dots", "none"] = "full"
    logprob_chunk: Count = 128  # at most as many logits at a time as this number of tokens has over the vocabulary
    attention: Literal["auto", "reference", "dot_product", "splash"] = "auto"  # docs/attention.md
    context_attention: Literal["auto", "ulysses", "ring"] = "auto"  # across the devices of mesh.context
    sequence_parallel: bool = False  # between the layers, tokens are divided over the devices of mesh.tensor
