"""What a decoder is made of, and its Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Hugging Face's name -> ours.
ARCHITECTURES = {"Qwen3ForCausalLM": "qwen3"}


@dataclass(frozen=True)
class ModelConfig:
    """Shape and conventions of one decoder.

    architecture: our name of the family ("qwen3"). max_positions: the longest row the family's positions were made for.
    qk_norm: RMSNorm over each query and key head before rotation. attention_bias: biases on the four attention
    projections. tie_embeddings: the output table is the embedding table.
    """

    architecture: str
    vocab_size: int  # V
    num_layers: int  # L
    width: int  # D
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # h
    ffn_width: int  # F
    rope_theta: float
    norm_eps: float
    tie_embeddings: bool
    qk_norm: bool
    attention_bias: bool
    max_positions: int

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES.values():
            raise ValueError(
                f"ModelConfig.architecture is {self.architecture!r}; supported are {', '.join(ARCHITECTURES.values())}."
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"ModelConfig.num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})."
            )
        if self.head_dim % 2:
            raise ValueError(f"ModelConfig.head_dim ({self.head_dim}) must be even: rotary positions turn pairs.")


def _field(config: Mapping[str, Any], name: str) -> Any:
    if name not in config:
        raise ValueError(f"config.json has no field {name!r}; the model cannot be built without it.")
    return config[name]


def _rope_theta(config: Mapping[str, Any]) -> float:
    """transformers up to 4 writes rope_theta and rope_scaling, from 5 on rope_parameters holds both."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise ValueError(f"config.json: rope type {kind!r} is not supported; only 'default' rotary positions are.")
    return float(parameters["rope_theta"] if "rope_theta" in parameters else _field(config, "rope_theta"))


def from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """ModelConfig from the contents of a Hugging Face config.json.

    Raises ValueError naming the field that is missing or not supported.
    """
    names = config.get("architectures") or []
    architecture = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if architecture is None:
        raise ValueError(f"config.json: field 'architectures' is {names}; supported are {', '.join(ARCHITECTURES)}.")
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"config.json: field 'hidden_act' is {config['hidden_act']!r}; only 'silu' is supported.")
    if config.get("use_sliding_window"):
        raise ValueError("config.json: field 'use_sliding_window' is true; sliding-window attention is not supported.")
    return ModelConfig(
        architecture=architecture,
        vocab_size=_field(config, "vocab_size"),
        num_layers=_field(config, "num_hidden_layers"),
        width=_field(config, "hidden_size"),
        num_heads=_field(config, "num_attention_heads"),
        num_kv_heads=_field(config, "num_key_value_heads"),
        head_dim=_field(config, "head_dim"),
        ffn_width=_field(config, "intermediate_size"),
        rope_theta=_rope_theta(config),
        norm_eps=_field(config, "rms_norm_eps"),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=True,
        attention_bias=bool(config.get("attention_bias", False)),
        max_positions=_field(config, "max_position_embeddings"),
    )


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    """The contents of a Hugging Face config.json that transformers 4 and 5 both read."""
    return {
        "architectures": [next(name for name, ours in ARCHITECTURES.items() if ours == cfg.architecture)],
        "model_type": cfg.architecture,
        "vocab_size": cfg.vocab_size,
        "num_hidden_layers": cfg.num_layers,
        "hidden_size": cfg.width,
        "num_attention_heads": cfg.num_heads,
        "num_key_value_heads": cfg.num_kv_heads,
        "head_dim": cfg.head_dim,
        "intermediate_size": cfg.ffn_width,
        "hidden_act": "silu",
        "rope_theta": cfg.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": cfg.rope_theta},
        "rms_norm_eps": cfg.norm_eps,
        "tie_word_embeddings": cfg.tie_embeddings,
        "attention_bias": cfg.attention_bias,
        "max_position_embeddings": cfg.max_positions,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
    }
