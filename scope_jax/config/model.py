"""The `[model]` table, and in it `[model.adapter]`: policies as low-rank adapters over one frozen base."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from scope_jax.config.base import CardPath, Section
from scope_jax.text import dialects

Target = Literal[
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "out_proj",
    "g_proj",
    "b_proj",
    "a_proj",
    "per_layer_input_gate",
    "per_layer_projection",
    "all-linear",
    "experts",
]  # modules of Hugging Face; all-linear: mixers and a dense feed-forward layer; experts: all matrices of all experts


class AdapterSection(Section):
    """LoRA: y = x W + scale · x A B, with W frozen; see docs/models.md#adapters."""

    rank: Annotated[int, Field(ge=1, le=4096)] = 32
    """Columns of A and rows of B."""
    alpha: Annotated[float, Field(gt=0, le=1e6)] = 64.0
    """The product of the factors is multiplied by alpha / rank."""
    rslora: bool = False
    """True: by alpha / √rank."""
    targets: Annotated[tuple[Target, ...], Field(strict=False, min_length=1)] = ("all-linear",)
    """The adapted matrices: `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`, `down_proj`; of layers with
    states in Qwen3.5 `in_proj_qkv`, `in_proj_z`, `in_proj_b`, `in_proj_a`, `out_proj`, in OLMo-Hybrid also `g_proj`,
    `b_proj`, `a_proj`; `all-linear`: all of them but experts; `experts`: all matrices of all experts."""
    init: Literal["kaiming", "gaussian"] = "kaiming"
    """Initial values of A: `kaiming`, as PEFT's default, uniform within ±1/√in; `gaussian`, with standard deviation
    1/rank. B is zero."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of A, B and their moments: `float32` or `bfloat16`."""
    base_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of the learner's base: `float32` or `bfloat16`; the engine's copy has `model.compute_dtype`."""

    @model_validator(mode="after")
    def _each_target_once(self) -> AdapterSection:
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets {list(self.targets)} names one twice; name each once")
        return self


def _known_dialect(name: str) -> str:
    dialects.load(name)
    return name


# What rendering a conversation takes as an argument of its own, here and in transformers: no variables of a template.
# (Where cards are read, transformers is not imported; a test compares the names.)
_OURS = ("self", "messages", "tools", "add_generation_prompt", "forbid", "trusted", "template_options")
_THEIRS = ("conversation", "documents", "chat_template", "continue_final_message", "tokenize", "padding", "truncation")
_FORM = ("sanitize_control_tokens", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask")
RENDERING = frozenset((*_OURS, *_THEIRS, *_FORM, "tokenizer_kwargs", "kwargs"))


def _plain(value: Any) -> bool | int | str:
    if not isinstance(value, (bool, int, str)):
        raise ValueError("template options must be true, false, whole numbers or text")
    return value


def _variables(options: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(options.keys() & RENDERING):
        raise ValueError(f"{taken[0]!r} is not a variable of the template that a card may set; remove it")
    return options


class ModelSection(Section):
    checkpoint: CardPath
    """Model folder with tokenizer, in Hugging Face or orbax layout, or a model of the hub such as `Qwen/Qwen3-8B`
    (docs/models.md#from-the-hub). It is the base: the initial weights of all policies, the reference of every KL term,
    and the judge."""
    policies: dict[str, CardPath] = {}
    """Initial weights of single policies, by name, if different from the base but of the same architecture: `{ solver =
    "out/solver" }`; with `[model.adapter]`, folders of adapters in PEFT's format."""
    adapter: AdapterSection | None = None
    """Policies as low-rank adapters over one frozen base, for every game (docs/models.md#adapters); an empty table
    takes the defaults."""
    tokenizer: CardPath | None = None
    """Another tokenizer folder; default: the checkpoint's own."""
    chat_template: CardPath | None = None
    """A .jinja file instead of the tokenizer's template."""
    chat_template_kwargs: Annotated[dict[str, Annotated[Any, AfterValidator(_plain)]], AfterValidator(_variables)] = {}
    """Passed to the template, e.g. `{ enable_thinking = false }`."""
    dialect: Annotated[CardPath, AfterValidator(_known_dialect)] = "xml"
    """How the model writes calls, such as searches, and reads results: `xml`, `hermes`, `function` (SCOPE Table 11),
    `observation`, `llama`, `qwen-coder`, `harmony` (gpt-oss), `gemma`, `mistral`, or a TOML file
    (docs/tools.md#dialects)."""
    turns: Literal["raw", "chat", "chat-trimmed"] = "raw"
    """How an observation is added to the conversation: `raw`, `chat`, `chat-trimmed` (docs/rollouts.md#turns)."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), strict=False)
    """Strings that end a reply and are left out of its text, for templates without an end token; only with `raw` turns.
    End tokens are found without it (docs/models.md#where-replies-end)."""
    tags_in_thinking: bool = False
    """Tags inside `<think> … </think>` end turns, search and answer as they do outside (released codes: true)."""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of the forward and backward pass, `float32` or `bfloat16`; log-probs and losses are always float32."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the master weights and Adam's moments, `float32` or `bfloat16`, which halves their memory and loses most
    of an update at small rates: at 1e-6 it moves 2 % of weights of a usual size (N(0, 0.02)), at 1e-5 15 %, at 1e-4 88
    %."""

    @model_validator(mode="after")
    def _an_adapter_has_its_own_dtypes(self) -> ModelSection:
        if self.adapter is not None and self.changed("param_dtype"):
            raise ValueError(
                "param_dtype is for whole weights; with an adapter set adapter.dtype and adapter.base_dtype"
            )
        return self

    @model_validator(mode="after")
    def _stop_ends_a_raw_turn(self) -> ModelSection:
        if self.stop and self.turns != "raw":
            raise ValueError(
                f'stop ends a reply without an end token, after which turns = "{self.turns}" cannot continue; '
                'remove stop or set turns = "raw"'
            )
        return self
