"""The `[model.adapter]` table: policies as low-rank adapters over one frozen base."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import Section

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
