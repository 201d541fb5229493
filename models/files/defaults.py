"""What a config.json means by what it leaves out: the defaults of transformers' configuration classes.

Configurations name only what differs from their class's defaults, or were written when a class had fewer fields (Llama
2's has no rope_theta). tests/models/test_defaults.py compares the table with the installed classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DECODER: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # as many as query heads
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_QWEN: dict[str, Any] = {
    **_DECODER,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
}
_QWEN3_5: dict[str, Any] = {
    **_DECODER,
    "vocab_size": 248320,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_BERT: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "is_decoder": False,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_GEMMA: dict[str, Any] = {
    **{name: value for name, value in _DECODER.items() if name not in ("hidden_act", "rope_theta")},
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "final_logit_softcapping": None,
}
_GEMMA4: dict[str, Any] = {
    **_GEMMA,
    "vocab_size": 262144,
    "num_hidden_layers": 30,
    "sliding_window": 512,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
}
# By model type; fields of other names (mlp_bias, decoder_sparse_step) are refused unless they have their usual value.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_DECODER, "vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048},
    "qwen2": {**_QWEN, "max_window_layers": 28},
    "qwen3": {**_QWEN, "max_window_layers": 28, "head_dim": 128},
    "qwen3_moe": {
        **_QWEN,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
        "norm_topk_prob": False,
    },
    "olmo3": {
        **_DECODER,
        "vocab_size": 50304,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "sliding_window": 4096,
    },
    "smollm3": {
        **_DECODER,
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layer_interval": 4,
    },
    "ministral3": {
        **_DECODER,
        "vocab_size": 131072,
        "num_hidden_layers": 34,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale_all_dim": 1.0,
            "mscale": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "mistral": {
        **_DECODER,
        "vocab_size": 32000,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": {
        **{name: value for name, value in _QWEN3_5.items() if name != "intermediate_size"},
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8,
        "num_experts": 256,
    },
    "olmo_hybrid": {
        **_DECODER,
        "vocab_size": 100352,
        "hidden_size": 3840,
        "num_attention_heads": 30,
        "intermediate_size": 11008,
        "max_position_embeddings": 65536,
        "linear_conv_kernel_dim": 4,
        "linear_allow_neg_eigval": True,
    },
    "gemma3_text": {
        **_GEMMA,
        "vocab_size": 262208,
        "num_hidden_layers": 26,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    "gemma4_text": {
        **_GEMMA4,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "enable_moe_block": False,
    },
    "gemma4_unified_text": {**_GEMMA4, "max_position_embeddings": 262144, "sliding_window": 1024},
    "gpt_oss": {
        **_DECODER,
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "attention_bias": True,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "sliding_window": 128,
        "rope_theta": 150000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "bert": _BERT,
    "roberta": {**_BERT, "vocab_size": 50265, "pad_token_id": 1},
    "xlm-roberta": {**_BERT, "pad_token_id": 1},
}


def completed(model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with the fields that it leaves out. One that it gives as null stays null: a class may mean none."""
    known = {"num_experts": config["num_local_experts"]} if "num_local_experts" in config else {}  # transformers 5
    return {**DEFAULTS[model_type], **known, **config}
