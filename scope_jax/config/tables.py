"""Tables that every game has: model, mesh, retrieval, rollouts, learner, data, the run, outside models, roles."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from scope_jax import dialects
from scope_jax.config.base import CardPath, Section


# --------------------------------------------------------------------------------------------------- model and mesh
def _known_dialect(name: str) -> str:
    dialects.load(name)
    return name


class ModelSection(Section):
    checkpoint: CardPath  # Hugging Face folder: config.json, *.safetensors, tokenizer
    tokenizer: CardPath | None = None  # another tokenizer folder; the checkpoint's own otherwise
    chat_template: CardPath | None = None  # a .jinja file that replaces the tokenizer's template
    chat_template_kwargs: dict[str, bool | int | str] = {}  # handed to the template, e.g. enable_thinking = false
    # how the model writes a search and reads results (SCOPE Table 11): xml, hermes, function, or a TOML file
    dialect: Annotated[CardPath, AfterValidator(_known_dialect)] = "xml"
    turns: Literal["raw", "chat", "chat-trimmed"] = "raw"  # how an observation joins the conversation, see rollouts.md
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    param_dtype: Literal["float32", "bfloat16"] = "float32"  # master weights and Adam moments


class MeshSection(Section):
    """Devices by axis; -1 takes what is left. `slots` of the engine and rows of a batch spread over data × fsdp."""

    data: int = 1
    fsdp: int = -1
    tensor: int = 1


# ------------------------------------------------------------------------------------------------------------ sources
Column = Literal["question", "answers", "aliases", "searches", "rubric", "id", "title", "text"]


class SourceSection(Section):
    """How rows are read from a file or a hub data set; docs/data.md."""

    columns: dict[Column, str] = {}  # field -> its column, a dot leads into an object; published names are recognised
    split: str | None = None  # of a hub data set; None: train
    hub_config: str | None = None  # of a hub data set with several configurations


# ------------------------------------------------------------------------------------------------------- retrieval
class ScannSection(Section):
    num_leaves: int = 200
    leaves_to_search: int = 160  # hashed vectors do not cluster: recall@3 .985 at 160 of 200, .82 at 40
    dimensions_per_block: int = 4
    reorder: int = 100
    brute_force_below: int = 5000  # passages; a smaller corpus is searched without tree and codes


class EncoderSection(Section):
    checkpoint: CardPath | None = None  # Hugging Face folder of a BERT (E5) or Qwen3-Embedding; none = hashed lexical
    query_prefix: str | None = None  # none: E5's or Qwen3-Embedding's, by the folder's architecture
    passage_prefix: str | None = None
    max_tokens: int = Field(default=256, gt=2)  # of one text with prefix and marks; Search-R1's limit for E5
    batch: int = Field(default=64, gt=0)  # passages of one program, over all devices
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: float32 on CPU, bfloat16 elsewhere


class RetrievalSection(SourceSection):
    corpus: CardPath | None = None  # JSONL or Parquet file, or a hub name
    index: CardPath | None = None  # folder of a built index; made in the run folder when absent
    kind: Literal["exact", "scann"] = "exact"
    encoder: EncoderSection = EncoderSection()
    dim: int = 2048  # width of the hashed lexical embedding
    scann: ScannSection = ScannSection()
    url: str | None = None  # a search server speaking the Search-R1 protocol, instead of corpus and index
    top_k: int = 3  # SSP §4.1
    max_tokens: int = 500  # tokens of one search result, Search-R1
    timeout: float = 30.0  # seconds for one remote search
    retries: int = 5

    @model_validator(mode="after")
    def _one_source(self) -> RetrievalSection:
        if (self.corpus is None) == (self.url is None):
            raise ValueError("give exactly one of `corpus` (a local corpus) and `url` (a search server)")
        return self


# --------------------------------------------------------------------------------------------------------- rollouts
class SamplingSection(Section):
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=0, ge=0)  # 0 = off
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=8192, gt=0)  # sampled tokens of one turn


class RolloutSection(Section):
    slots: int = 64  # episodes decoded at the same time, over the whole mesh
    max_length: int = 12288  # tokens of one episode, prompt and observations included
    prefill_buckets: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    prefill_batch: int = 4  # prompts of one prefill program; fixed, so that numbers never depend on neighbours
    decode_steps: int = 16  # tokens per dispatch
    search_threads: int = 8


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
OrOff = BeforeValidator(lambda value: 0.0 if value is None else value)  # None means off, as 0 does


class LossCard(Section):
    """One update's objective: four choices (advantage, policy term, aggregation, KL) with their numbers.

    The learner knows nothing else about a role. docs/losses.md has the equations, and the cards of the published
    algorithms.
    """

    objective: Literal["policy", "supervised"] = "policy"
    # advantage: how an episode's reward is compared
    advantage: Advantage = "group-mean"
    advantage_ddof: Literal[0, 1] = 1  # of the standard deviation of a group or batch
    advantage_eps: float = 1e-6
    ema_decay: float = Field(default=0.7, ge=0, lt=1)  # SCORE §3.5; 0.95 in Spiral
    ema_start: float = 0.0  # b_0
    # policy term: ratio r = exp(logπ − logπ_old), what becomes of it, and how far it may go
    surrogate: Literal["clip", "weight"] = "clip"  # PPO's; CISPO's
    ratio: Literal["token", "sequence"] = "token"  # sequence: the geometric mean over the episode, GSPO
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.2, ge=0)
    dual_clip: Annotated[float, OrOff] = 3.0  # 0 = off
    log_ratio_bound: float = Field(default=20.0, gt=0)  # |log-ratios| before they are exponentiated
    old_logprobs: Literal["learner", "rollout"] = "learner"  # who computes logπ_old
    rollout_cap: float = Field(default=0.0, ge=0)  # C of the weight min(π_old/μ, C); 0 = no weight
    rollout_weight: Literal["token", "sequence"] = "token"
    # aggregation: what the sum over tokens is divided by
    aggregation: Literal["token-mean", "sequence-mean", "constant"] = "sequence-mean"
    constant_length: int = Field(default=1, gt=0)  # divisor of "constant": Σ tokens / (sequences · constant_length)
    # KL to the reference, and entropy
    kl: KL = "k3"
    kl_coef: float = 0.01  # beta
    kl_bound: float = Field(default=0.0, ge=0)  # |value| of a token's estimator; 0 = off
    entropy_coef: float = Field(default=0.0, ge=0)
    tempered: bool = True  # log-probs of the policy divided by the rollout temperature
    mini_batches: int = Field(default=1, gt=0)  # optimiser steps of one update

    @model_validator(mode="after")
    def _fits_together(self) -> LossCard:
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError("dual_clip bounds the loss at dual_clip · |A|: give a number above 1, or 0 for none")
        if self.dual_clip and self.surrogate == "weight" and self.objective == "policy":
            raise ValueError('dual_clip belongs to surrogate = "clip"; set dual_clip = 0 with surrogate = "weight"')
        if self.rollout_cap and self.old_logprobs == "rollout":
            raise ValueError(
                'rollout_cap weighs π_old against the rollout, but with old_logprobs = "rollout" they are the same; '
                'set rollout_cap = 0 or old_logprobs = "learner"'
            )
        return self


class OptimizerSection(Section):
    learning_rate: float = 1e-6
    warmup_steps: int = 5  # updates of a policy, as verl counts: one for each role that trains it in a step
    schedule: Literal["constant", "cosine"] = "constant"
    total_steps: int | None = None  # updates to the end of the cosine
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01  # of all weights, as torch's AdamW on model.parameters()
    max_grad_norm: float = 1.0

    @model_validator(mode="after")
    def _cosine_has_an_end(self) -> OptimizerSection:
        if self.schedule == "cosine" and self.total_steps is None:
            raise ValueError('schedule = "cosine" needs total_steps, the update at which it reaches zero')
        return self


class LearnerSection(Section):
    buckets: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 12288)  # row lengths a batch may have
    packing: bool = True  # several episodes in one row
    micro_batch_rows: int = 8  # rows of one forward-backward over the whole mesh; 0 = all at once
    remat: Literal["full", "none"] = "full"
    logprob_chunk: int = 128  # no more logits exist at a time than these tokens have over the whole vocabulary
    attention: Literal["auto", "reference", "dot_product", "splash"] = "auto"  # docs/attention.md


# ------------------------------------------------------------------------------------------------------ data and run
class RowsSection(SourceSection):
    """How many of the rows are taken."""

    limit: int | None = Field(default=None, ge=1)  # a random subset of so many rows
    limit_seed: int = 0  # names that subset; not `seed`, so that runs and checkpoints that are compared share it


class DataSection(RowsSection):
    answers: CardPath | None = None  # SSP: ground-truth answers
    documents: CardPath | None = None  # SCOPE: what tasks are written from; None: the corpus of [retrieval]
    prompts: CardPath | None = None  # SCOPE with scope.mode = "curated": tasks with rubrics
    max_searches: int = (
        1  # a proposer is asked for n searches, n uniform in min_searches..max_searches if no column says
    )
    min_searches: int = 1


class EvalSet(RowsSection):
    name: str
    path: CardPath  # questions with answers; SCOPE: tasks with rubrics


class EvalSection(Section):
    sets: tuple[EvalSet, ...] = ()
    every: int = 0  # steps between evaluations; 0 = before the first and after the last step only
    temperature: float = 0.0  # SSP Table 4
    max_tokens: int = 1024  # sampled tokens of one turn


class TrainSection(Section):
    steps: int | None = None  # the run ends after so many; None: when the game says so
    batch_size: int = 256  # items (SSP: ground-truth answers) of one step
    save_every: int = 10
    keep: int = 2  # checkpoints that stay
    offload: bool = False  # policies lie in host memory while they are not trained


OWN_FIELDS = ("model", "messages", "temperature", "max_tokens", "max_completion_tokens", "stream", "n")


def _beside_ours(fields: dict[str, Any]) -> dict[str, Any]:
    if own := sorted(set(fields) & set(OWN_FIELDS)):
        raise ValueError(f"the fields {', '.join(own)} of a request come from keys of their own or not at all")
    json.dumps(fields, allow_nan=False)  # a ValueError for what JSON does not have
    return fields


class EndpointSection(Section):
    """A chat model behind an OpenAI-compatible endpoint."""

    url: str
    model: str
    api_key_env: str | None = None
    # what else a request says, e.g. { reasoning_effort = "low" }
    extra_body: Annotated[dict[str, JsonValue], AfterValidator(_beside_ours)] = {}
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # OpenAI's o-series: the latter
    timeout: float = 600.0  # seconds for one reply, which may be as long as max_tokens
    retries: int = 8  # with the delays below the endpoint may be gone for two minutes
    retry_delay: float = 1.0  # seconds before the first retry; doubled each time, at most 30
    concurrency: int = 16


class JudgeSection(EndpointSection):
    """Such a model, and how it replies."""

    timeout: float = 60.0
    temperature: float = 0.1  # released SSP code
    max_tokens: int = 70


class LaunchSection(Section):
    kind: Literal["local"] = "local"
    fake_devices: int = 0  # host devices to simulate on CPU


# ------------------------------------------------------------------------------------------------------------- roles
class RoleSection(Section):
    """How one role of a game samples and learns."""

    samples: int
    max_turns: int = 10  # SSP App. B.2
    sampling: SamplingSection = SamplingSection()
    loss: LossCard
