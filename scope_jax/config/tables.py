"""Tables shared by all games: mesh, retrieval, rollouts, learner, data, run, external models, roles."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from scope_jax.config.base import (
    MOST,
    Address,
    CardPath,
    Count,
    Lengths,
    LocalPath,
    Seconds,
    Section,
    Seed,
    Share,
    Temperature,
    Weight,
    Whole,
)


# ------------------------------------------------------------------------------------------------------------- mesh
def _an_axis(size: int) -> int:
    if size == 0:
        raise ValueError("must be at least 1, or -1 for the remaining devices")
    return size


Axis = Annotated[int, Field(ge=-1, le=MOST), AfterValidator(_an_axis)]


class MeshSection(Section):
    """Devices per axis; -1: the remaining ones. Engine slots and batch rows are divided over data × fsdp.

    Without a mesh of its own, the engine has slots on the devices of a context group too.
    """

    data: Axis = 1
    fsdp: Axis = -1
    tensor: Axis = 1
    context: Axis = 1  # devices that the tokens of each row of a batch are divided over

    @model_validator(mode="after")
    def _one_is_left_open(self) -> MeshSection:
        if (self.data, self.fsdp, self.tensor, self.context).count(-1) > 1:
            raise ValueError("only one axis can be -1 (the remaining devices); give the others their number of devices")
        return self


# ------------------------------------------------------------------------------------------------------------ sources
Column = Literal[
    "question",
    "answers",
    "aliases",
    "searches",
    "rubric",
    "id",
    "title",
    "text",
    "family",
    "documents",
    "context",
    "options",
    "task",
    "quality",
]


class SourceSection(Section):
    """How rows are read from a file or a hub data set, see docs/data.md."""

    columns: dict[Column, str] = {}  # field -> column, dots access nested fields; published names are recognised
    split: str | None = None  # of a hub data set; None: train
    hub_config: str | None = None  # of a hub data set with several configurations


# ------------------------------------------------------------------------------------------------------- retrieval
class ScannSection(Section):
    num_leaves: Count = 200
    leaves_to_search: Count = 160  # hashed vectors do not cluster well: recall@3 .985 at 160 of 200, .82 at 40
    dimensions_per_block: Count = 4
    reorder: Count = 100
    brute_force_below: Whole = 5000  # passages; a smaller corpus is searched by brute force, without tree and codes

    @model_validator(mode="after")
    def _leaves_are_there(self) -> ScannSection:
        if self.leaves_to_search > self.num_leaves:
            raise ValueError(f"leaves_to_search must be at most num_leaves, {self.num_leaves}")
        return self


class EncoderSection(Section):
    checkpoint: CardPath | None = None  # Hugging Face folder of a BERT (E5) or Qwen3-Embedding; none = hashed lexical
    query_prefix: str | None = None  # None: E5's or Qwen3-Embedding's, by the folder's architecture
    passage_prefix: str | None = None
    max_tokens: int = Field(default=256, gt=2, le=MOST)  # per text, with prefix and special tokens; Search-R1's for E5
    batch: Count = 64  # passages per program, over all devices
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: float32 on CPU, bfloat16 elsewhere


Tries = Annotated[int, Field(ge=0, le=1000)]  # retries after the first attempt


class RetrievalSection(SourceSection):
    corpus: CardPath | None = None  # JSONL or Parquet file, or a hub name
    index: LocalPath | None = None  # folder of a built index; None: built in the run folder
    kind: Literal["exact", "scann"] = "exact"
    encoder: EncoderSection = EncoderSection()
    dim: int = Field(default=2048, ge=1, le=2**20)  # width of the hashed lexical embedding
    scann: ScannSection = ScannSection()
    url: Address | None = None  # a search server speaking the Search-R1 protocol, instead of corpus and index
    top_k: Count = 3  # SSP §4.1
    max_tokens: Count = 500  # tokens per search result, Search-R1
    timeout: Seconds = 30.0  # per remote search
    retries: Tries = 5

    @model_validator(mode="after")
    def _one_source(self) -> RetrievalSection:
        if (self.corpus is None) == (self.url is None):
            raise ValueError("give exactly one of `corpus` (a local corpus) and `url` (a search server)")
        return self


# --------------------------------------------------------------------------------------------------------- rollouts
TopP = Annotated[float, Field(gt=0, le=1)]


class SamplingSection(Section):
    temperature: Temperature = 1.0
    top_k: Whole = 0  # 0 = off
    top_p: TopP = 1.0
    max_tokens: Count = 8192  # sampled tokens per turn
    # everything after an episode's prompt, sampled or read; SSP Table 4, SCOPE Table 9
    max_response_tokens: Count = 8192


def differing(samples: int, sampling: SamplingSection) -> None:
    """Raises ValueError for several samples of a prompt that are all the same."""
    if samples > 1 and not sampling.temperature:
        raise ValueError(f"{samples} samples at temperature 0 are all the same; raise the temperature, or sample one")


class RolloutSection(Section):
    slots: Count = 64  # episodes decoded concurrently, over the whole mesh, of all processes
    max_length: Count = 12288  # tokens per episode, including prompt and observations
    prefill_buckets: Lengths = (64, 128, 256, 512, 1024, 2048, 4096)
    prefill_batch: Count = 4  # prompts per prefill program; fixed, so that results do not depend on the batch
    decode_steps: Count = 16  # tokens per dispatch
    cache: Literal["auto", "dense", "paged"] = "auto"
    cache_gib: float | None = Field(default=None, gt=0, le=65536)  # pages of keys and values on each device
    prefill_tokens: Count = 512  # of prompts and observations in one dispatch of the paged engine, on each row shard
    attention: Literal["auto", "loop"] = "auto"  # over pages: the platform's kernel, or XLA's operations
    cascade: Annotated[int, Field(ge=0, le=256)] = 0  # slots of a group that attend to its prompt together; 0: none
    devices: Count | None = None  # the last ones of each process, which generate; the others learn. None: all do both
    mesh: MeshSection | None = None  # of the engine, over the devices that generate; None: [mesh]
    ahead: Literal["auto"] | bool = "auto"  # launch a dispatch before the tokens of the one before are read
    search_threads: int | None = Field(default=None, ge=1, le=1024)  # None: one for each slot, up to 256

    @model_validator(mode="after")
    def _whole_rows(self) -> RolloutSection:
        if self.mesh is not None and self.mesh.context != 1:
            raise ValueError(
                f"mesh.context is {self.mesh.context}, but only an update divides rows over devices; "
                "set it in [mesh], or fsdp here"
            )
        return self

    @model_validator(mode="after")
    def _prompts_fit(self) -> RolloutSection:
        if self.prefill_buckets[-1] > self.max_length:
            raise ValueError(
                f"prefill_buckets go up to {self.prefill_buckets[-1]} tokens but max_length is {self.max_length}; "
                "remove the longer ones"
            )
        if self.cache == "dense" and self.cache_gib is not None:
            raise ValueError(
                'cache_gib is a budget for pages, but cache = "dense" has columns for slots x max_length tokens; '
                'set cache = "paged" or remove cache_gib'
            )
        if self.cache == "dense" and self.attention == "loop":
            raise ValueError(
                'attention = "loop" is a way to go through pages, but cache = "dense" has none; '
                'set cache = "paged" or remove attention'
            )
        if self.cascade == 1:
            raise ValueError("cascade is 1, but one slot attends alone anyway; set the size of a group, or 0")
        if self.cache == "dense" and self.cascade:
            raise ValueError(
                'cascade attention is for pages that slots share, but cache = "dense" has columns for each; '
                'set cache = "paged" or cascade = 0'
            )
        return self


# ---------------------------------------------------------------------------------------------------------- learner
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


# ------------------------------------------------------------------------------------------------------ data and run
class RowsSection(SourceSection):
    """How many of the rows are used."""

    limit: Count | None = None  # size of a random subset of the rows
    limit_seed: Seed = 0  # seed of the subset; independent of `seed`, so that runs to be compared share the subset


class DataSection(RowsSection):
    answers: CardPath | None = None  # SSP: ground-truth answers
    documents: CardPath | None = None  # SCOPE, SPICE: source of tasks; None: the corpus of [retrieval] (only SCOPE)
    prompts: CardPath | None = None  # SCOPE with scope.mode = "curated": tasks with rubrics
    clusters: CardPath | None = None  # SPELL: clusters of related documents
    questions: CardPath | None = None  # SPELL with spell.mode = "rlvr": questions about texts, with answers
    queries: CardPath | None = None  # SCORE: questions to report on
    # SSP: the number of searches requested from a proposer is uniform in this range, unless a row sets it
    max_searches: Whole = 1
    min_searches: Whole = 1

    @model_validator(mode="after")
    def _a_range(self) -> DataSection:
        if self.min_searches > self.max_searches:
            raise ValueError(f"min_searches must be at most max_searches, {self.max_searches}")
        return self


OWN_FIELDS = ("model", "messages", "temperature", "max_tokens", "max_completion_tokens", "stream", "n")


def _beside_ours(fields: dict[str, Any]) -> dict[str, Any]:
    if own := sorted(set(fields) & set(OWN_FIELDS)):
        raise ValueError(f"remove {', '.join(own)}: these fields of a request are set by other keys or not supported")
    json.dumps(fields, allow_nan=False)  # a ValueError for what JSON does not have
    return fields


class EndpointSection(Section):
    """A chat model behind an OpenAI-compatible endpoint."""

    url: Address
    model: str = Field(min_length=1)
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    # further fields of a request, e.g. { reasoning_effort = "low" }
    extra_body: Annotated[dict[str, JsonValue], AfterValidator(_beside_ours)] = {}
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # OpenAI's o-series: the latter
    timeout: Seconds = 600.0  # per reply, which may be max_tokens long
    retries: Tries = 8  # with the default delay, covers an outage of two minutes
    # seconds before the first retry; doubled each time, at most 30
    retry_delay: float = Field(default=1.0, ge=0, le=30)
    concurrency: int = Field(default=16, ge=1, le=1024)


class JudgeSection(EndpointSection):
    """An endpoint with the sampling settings of its replies."""

    required: ClassVar[bool] = True  # False: a run starts, and goes on, while the endpoint is down
    timeout: Seconds = 60.0
    temperature: Temperature = 0.1  # released SSP code
    max_tokens: Count = 70


class AskSection(Section):
    """A judge's job: done by the frozen base model, or by the model behind `endpoint`."""

    temperature: Temperature
    max_tokens: Count
    endpoint: EndpointSection | None = None


Ungraded = Literal["leave-out", "zero"]  # treatment of a criterion without a verdict


# ------------------------------------------------------------------------------------------------------------- roles
class GenerationSection(Section):
    """How one role of a game samples."""

    samples: Count
    max_prompt_tokens: Count = 4096  # longer prompts are not sampled; SSP Table 4
    sampling: SamplingSection = SamplingSection()

    @model_validator(mode="after")
    def _samples_differ(self) -> GenerationSection:
        differing(self.samples, self.sampling)
        return self


class RoleSection(GenerationSection):
    """A role that samples multi-turn episodes and has a loss card of its own."""

    max_turns: Count = 10  # SSP App. B.2
    loss: LossCard
