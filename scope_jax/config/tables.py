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
    Lengths,
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
    query_prefix: str | None = None  # None: the folder's prompt, else E5's or Qwen3-Embedding's by its architecture
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


FormatRule = Literal["well-formed", "think", "lenient"]  # of the tags of an episode, see `play.searching.keeps_format`
GradingRule = Literal["exact-match", "judge", "exact-match-then-judge"]
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
