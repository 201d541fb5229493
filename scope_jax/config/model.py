"""The `[model]` table, and in it `[model.adapter]`: policies as low-rank adapters over one frozen base."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from scope_jax.config.base import CardPath, Section
from scope_jax.text import dialects

Target = Literal[
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "all-linear", "experts"
]  # modules of Hugging Face; all-linear: attention and a dense feed-forward layer; experts: all matrices of all experts


class AdapterSection(Section):
    """LoRA: y = x W + scale · x A B, with W frozen. docs/adapters.md."""

    rank: Annotated[int, Field(ge=1, le=4096)] = 32
    alpha: Annotated[float, Field(gt=0, le=1e6)] = 64.0  # scale = alpha / rank
    rslora: bool = False  # scale = alpha / √rank
    targets: Annotated[tuple[Target, ...], Field(strict=False, min_length=1)] = ("all-linear",)
    init: Literal["kaiming", "gaussian"] = "kaiming"  # of A; B is zero
    dtype: Literal["float32", "bfloat16"] = "float32"  # of A, B and their moments
    base_dtype: Literal["float32", "bfloat16"] = "bfloat16"  # of the base in memory

    @model_validator(mode="after")
    def _each_target_once(self) -> AdapterSection:
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets {list(self.targets)} names one twice; name each once")
        return self


def _known_dialect(name: str) -> str:
    dialects.load(name)
    return name


def _plain(value: Any) -> bool | int | str:
    if not isinstance(value, (bool, int, str)):
        raise ValueError("template options must be true, false, whole numbers or text")
    return value


class ModelSection(Section):
    checkpoint: CardPath  # the base model, a Hugging Face folder: config.json, *.safetensors, tokenizer
    policies: dict[str, CardPath] = {}  # by name: folders of policies (or adapters) that do not start from `checkpoint`
    adapter: AdapterSection | None = None  # policies are low-rank adapters over `checkpoint`; None: whole weights
    tokenizer: CardPath | None = None  # tokenizer folder; None: the checkpoint's
    chat_template: CardPath | None = None  # a .jinja file that replaces the tokenizer's template
    # passed to the template, e.g. enable_thinking = false
    chat_template_kwargs: dict[str, Annotated[Any, AfterValidator(_plain)]] = {}
    # how the model writes a search and reads results (SCOPE Table 11): xml, hermes, function, or a TOML file
    dialect: Annotated[CardPath, AfterValidator(_known_dialect)] = "xml"
    turns: Literal["raw", "chat", "chat-trimmed"] = "raw"  # how an observation joins the conversation, see rollouts.md
    # strings that end a reply and are left out of its text; for templates without an end token, with `raw` turns
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), strict=False)
    tags_in_thinking: bool = (
        False  # tags inside <think> … </think> have the same effect as outside; released codes: True
    )
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    param_dtype: Literal["float32", "bfloat16"] = "float32"  # master weights and Adam moments

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
