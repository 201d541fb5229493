"""Tables shared by all games: mesh, retrieval, rollouts, data, run, external models, roles."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from scope_jax.config.base import (
    MOST,
    Address,
    CardPath,
    Count,
    LocalPath,
    Seconds,
    Section,
    Seed,
    Temperature,
    Whole,
)
from scope_jax.config.learner import LossCard


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
    """Replicas of the weights, each with different rows."""
    fsdp: Axis = -1
    """Devices that share one copy of the weights and process different rows; -1: all remaining devices. On TPU, gathers
    and reduce-scatters over them take one dimension of the torus at a time."""
    tensor: Axis = 1
    """Devices that share the same rows: heads, ffn and vocabulary are split."""
    context: Axis = 1
    """Devices that share the same rows in an update: the tokens of each row are divided over them, and weights are
    sharded over them as over `fsdp`; `learner.buckets` must be multiples of twice this number. For generation they are
    further row shards (docs/rollouts.md#meshes)."""

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
    "messages",
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "system",
    "tools",
]


class SourceSection(Section):
    """How rows are read from a file or a hub data set, see docs/data.md."""

    columns: dict[Column, str] = {}
    """Column of each field, if it has none of the known names; dots reach nested fields (docs/data.md)."""
    split: str | None = None
    """Split of a hub data set; default: `train`."""
    hub_config: str | None = None
    """Configuration of a hub data set that has several."""


# ------------------------------------------------------------------------------------------------------- retrieval
class ScannSection(Section):
    num_leaves: Count = 200
    """Number of partitions; about the square root of the corpus size, or twice that."""
    leaves_to_search: Count = 160
    """Partitions searched per query. Hashed vectors do not cluster well: recall@3 is .985 at 160 of 200, .82 at 40."""
    dimensions_per_block: Count = 4
    """Dimensions per code; 2 is more accurate, 4 is faster."""
    reorder: Count = 100
    """Candidates whose scores are computed again exactly."""
    brute_force_below: Whole = 5000
    """Corpora with fewer passages are searched exhaustively, without tree and codes."""

    @model_validator(mode="after")
    def _leaves_are_there(self) -> ScannSection:
        if self.leaves_to_search > self.num_leaves:
            raise ValueError(f"leaves_to_search must be at most num_leaves, {self.num_leaves}")
        return self


class EncoderSection(Section):
    """A text encoder: of a corpus and its queries, or of documents to be clustered."""

    checkpoint: CardPath | None = None
    """Hugging Face folder, or model of the hub, of a BERT or RoBERTa encoder (E5, BGE, GTE) or of Qwen3-Embedding;
    default: the hashed lexical encoder."""
    query_prefix: str | None = None
    """Prefix of every query; default: the folder's own prompt, or without one E5's `query: ` or Qwen3-Embedding's
    instruction for web search (docs/data.md#encoders). Clusters have no queries."""
    passage_prefix: str | None = None
    """Prefix of every passage; default: the folder's own prompt, or without one E5's `passage: `, or nothing for
    Qwen3-Embedding."""
    max_tokens: int = Field(default=256, gt=2, le=MOST)
    """Tokens of one text, prefix and special tokens included (Search-R1's for E5); the rest is cut off, as is what
    exceeds the folder's own limit."""
    batch: Count = 64
    """Passages per batch, over all devices."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the encoder; `auto`: `float32` on CPU, `bfloat16` elsewhere."""


Tries = Annotated[int, Field(ge=0, le=1000)]  # retries after the first attempt


class RetrievalSection(SourceSection):
    corpus: CardPath | None = None
    """JSONL or Parquet file, or the name of a hub data set (docs/data.md#corpus)."""
    index: LocalPath | None = None
    """Folder of the index, built if absent; default: in the run folder."""
    kind: Literal["exact", "scann"] = "exact"
    """Kind of index: `exact` or `scann`."""
    encoder: EncoderSection = EncoderSection()
    """The encoder of passages and queries."""
    dim: int = Field(default=2048, ge=1, le=2**20)
    """Width of the hashed lexical embedding."""
    scann: ScannSection = ScannSection()
    """Settings of the index of kind `scann`."""
    url: Address | None = None
    """URL of a search server with the Search-R1 protocol, instead of a corpus."""
    top_k: Count = 3
    """Passages per search (SSP §4.1)."""
    max_tokens: Count = 500
    """Most tokens of a search result (Search-R1)."""
    timeout: Seconds = 30.0
    """Seconds for one request to the server, from the first byte sent to the last received."""
    retries: Tries = 5
    """Retries of a request before the run stops."""

    @model_validator(mode="after")
    def _one_source(self) -> RetrievalSection:
        if (self.corpus is None) == (self.url is None):
            raise ValueError("give exactly one of `corpus` (a local corpus) and `url` (a search server)")
        return self


# --------------------------------------------------------------------------------------------------------- rollouts
TopP = Annotated[float, Field(gt=0, le=1)]


class SamplingSection(Section):
    """How the turns of an episode are sampled."""

    temperature: Temperature = 1.0
    """Temperature; 0 is greedy."""
    top_k: Whole = 0
    """Number of most probable tokens that are drawn from; 0: all."""
    top_p: TopP = 1.0
    """Probability mass that is drawn from (nucleus sampling); 1: all."""
    max_tokens: Count = 8192
    """Sampled tokens of one turn."""
    max_response_tokens: Count = 8192
    """Tokens of an episode after its prompt, sampled or read (SSP Table 4, SCOPE Table 9; docs/rollouts.md#limits)."""


def differing(samples: int, sampling: SamplingSection) -> None:
    """Raises ValueError for several samples of a prompt that are all the same."""
    if samples > 1 and not sampling.temperature:
        raise ValueError(f"{samples} samples at temperature 0 are all the same; raise the temperature, or sample one")


class RolloutSection(Section):
    slots: Count = 64
    """Episodes decoded at the same time, over the whole mesh and over all processes together
    (docs/launch.md#what-is-divided)."""
    max_length: Count = 12288
    """Most tokens of an episode in the engine, prompt and search results included (docs/rollouts.md#limits)."""
    decode_steps: Count = 16
    """Tokens per slot and dispatch."""
    cache_gib: float | None = Field(default=None, gt=0, le=65536)
    """Budget of the KV cache on each device, in GiB, with the states of models that have some; default: enough for
    all slots at `max_length` (docs/rollouts.md#the-kv-cache)."""
    prefill_tokens: Literal["auto"] | Count = "auto"
    """Tokens of prompts and observations per dispatch and row shard; `auto`: 512, but 128 on CPU."""
    attention: Literal["auto", "loop"] = "auto"
    """Attention over pages of the KV cache: `auto`, the platform's kernel or, on CPU, over one long page for each slot;
    `loop`, XLA's operations over pages of 64 tokens on any platform, slower the longer the rows
    (docs/operations.md#if-a-check-does-not-pass)."""
    cascade: Annotated[int, Field(ge=0, le=256)] = 0
    """Slots of a group that attend together to the prompt they share, best the size of a group; 0: each alone (not on
    TPU; docs/rollouts.md#the-kv-cache)."""
    draft_tokens: Annotated[int, Field(ge=0, le=64)] = 0
    """Most tokens that are drafted for a slot from what was written before, and verified in one dispatch in the rows of
    slots that are not under way: worth it at the end of a step, when few are; changes no token. 0: none
    (docs/rollouts.md#drafts). Not with `cascade`, nor for models with states."""
    quantization: Literal["int8"] | None = None
    """Weights of the engine's matrices in 8 bits while a step is played, with a scale for each output
    (docs/rollouts.md#weights-in-8-bits). Needs `rollout_cap`, `rollout_mask` or `old_logprobs = "rollout"` in the
    losses; exams have whole weights."""
    kv_cache_dtype: Literal["int8"] | None = None
    """Keys and values of the engine's cache in 8 bits while a step is played, with a scale for each token and head;
    needs the same of the losses (docs/rollouts.md#a-cache-in-8-bits)."""
    devices: Count | None = None
    """Number of devices of each process, the last ones, that generate and search while the others learn
    (docs/rollouts.md#devices-of-its-own); default: all do both."""
    mesh: MeshSection | None = None
    """Mesh of the engine over the devices that generate, with `context = 1` (docs/rollouts.md#meshes); default:
    `[mesh]`."""
    ahead: Literal["auto"] | bool = "auto"
    """Launch each dispatch before the tokens of the previous one are read, so that the device does not wait for the
    host; `auto`: true, but false on CPU (docs/rollouts.md#the-kv-cache)."""
    search_threads: int | None = Field(default=None, ge=1, le=1024)
    """Turns that are answered at the same time, so also episodes whose searches are answered together; default: one for
    each slot, up to 256."""

    @model_validator(mode="after")
    def _whole_rows(self) -> RolloutSection:
        if self.mesh is not None and self.mesh.context != 1:
            raise ValueError(
                f"mesh.context is {self.mesh.context}, but only an update divides rows over devices; "
                "set it in [mesh], or fsdp here"
            )
        return self

    @model_validator(mode="after")
    def _several(self) -> RolloutSection:
        if self.cascade == 1:
            raise ValueError("cascade is 1, but one slot attends alone anyway; set the size of a group, or 0")
        return self


# ------------------------------------------------------------------------------------------------------ data and run
class RowsSection(SourceSection):
    """How many of the rows are used."""

    limit: Count | None = None
    """Use a random subset of this many rows (SSP §4.1 evaluates on 500 random questions of each set)."""
    limit_seed: Seed = 0
    """Seed of that subset, independent of the run's seed, so that runs to be compared share it."""


class DataSection(RowsSection):
    answers: CardPath | None = None
    """SSP: ground-truth answers."""
    documents: CardPath | None = None
    """SCOPE, SPICE, Dr. Zero: documents that tasks are written from; without it SCOPE takes the corpus of
    `[retrieval]`."""
    prompts: CardPath | None = None
    """SCOPE with `scope.mode = "curated"`: tasks with rubrics (docs/scope.md#cards)."""
    clusters: CardPath | None = None
    """SPELL: clusters of related documents (docs/data.md)."""
    questions: CardPath | None = None
    """SPELL with `spell.mode = "given-questions"`: questions about given texts, with answers."""
    queries: CardPath | None = None
    """SCORE: questions to report on."""
    rows: CardPath | None = None
    """A game of your own: rows with columns that only the game knows."""
    problems: CardPath | None = None
    """RLVR: prompts with their answers (docs/rlvr.md#rows-and-graders)."""
    conversations: CardPath | None = None
    """SFT: conversations, as `messages` or as `prompt` and `completion` (docs/distillation.md#supervised-training)."""
    preferences: CardPath | None = None
    """DPO: `prompt`, `chosen` and `rejected` (docs/distillation.md#preferences)."""
    max_searches: Whole = 1
    """Upper bound of the range of `min_searches`."""
    min_searches: Whole = 1
    """SSP asks a proposer for a question that needs n searches: the row's number (`search_turns`) if it has one,
    otherwise drawn uniformly from `min_searches` to `max_searches`."""

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
    """Base URL of the endpoint. No keys, users or passwords: use `api_key_env`."""
    model: str = Field(min_length=1)
    """Name of the model there."""
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable with the API key."""
    extra_body: Annotated[dict[str, JsonValue], AfterValidator(_beside_ours)] = {}
    """Additional fields of a request, e.g. `{ reasoning_effort = "low" }` or `{ chat_template_kwargs = {
    enable_thinking = false } }`; fields set by other keys are not allowed."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the `max_tokens` field in a request; OpenAI's reasoning models need `max_completion_tokens`."""
    timeout: Seconds = 600.0
    """Timeout of one request in seconds, from the first byte sent to the last received; a reply may be `max_tokens`
    long."""
    retries: Tries = 8
    """Retries before the run stops: with the default delays, an endpoint may be down for two minutes."""
    retry_delay: float = Field(default=1.0, ge=0, le=30)
    """Seconds before the first retry; doubled each time, at most 30."""
    concurrency: int = Field(default=16, ge=1, le=1024)
    """Requests at the same time."""


class JudgeSection(EndpointSection):
    """An endpoint with the sampling settings of its replies."""

    required: ClassVar[bool] = True  # False: a run starts, and goes on, while the endpoint is down
    timeout: Seconds = 60.0
    """Timeout of one request in seconds, from the first byte sent to the last received."""
    temperature: Temperature = 0.1
    """Temperature of its replies (released SSP code)."""
    max_tokens: Count = 70
    """Most tokens of a reply."""


class AskSection(Section):
    """A job of a judge, such as grading: done by the frozen base, or by the model behind `endpoint`."""

    temperature: Temperature
    """Temperature of the replies."""
    max_tokens: Count
    """Most tokens of a reply."""
    endpoint: EndpointSection | None = None
    """An external model that does this job; default: the base."""


FormatRule = Literal["well-formed", "think", "lenient"]  # of the tags of an episode, see `play.searching.keeps_format`
GradingRule = Literal["exact-match", "judge", "exact-match-then-judge"]
Ungraded = Literal["leave-out", "zero"]  # treatment of a criterion without a verdict


# ------------------------------------------------------------------------------------------------------------- roles
class GenerationSection(Section):
    """How one role of a game samples."""

    samples: Count
    """Completions per prompt."""
    max_prompt_tokens: Count = 4096
    """Most tokens of a prompt; longer ones are not sampled (SSP Table 4)."""
    sampling: SamplingSection = SamplingSection()
    """How its turns are sampled."""

    @model_validator(mode="after")
    def _samples_differ(self) -> GenerationSection:
        differing(self.samples, self.sampling)
        return self


class RoleSection(GenerationSection):
    """A role that samples multi-turn episodes and has a loss card of its own."""

    max_turns: Count = 10
    """Most turns of an episode: n turns allow n − 1 searches and the final answer (SSP App. B.2)."""
    loss: LossCard
    """The loss of its updates."""
