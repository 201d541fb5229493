"""Shapes of the models that our cards name, and of larger ones, so that a card can be planned before its checkpoint is
downloaded.

The figures are those of the models' public config.json files on huggingface.co (Qwen, meta-llama, allenai, OctoThinker,
deepseek-ai, mistralai, HuggingFaceTB, google, openai); a test compares the number of weights they give with the one the
hub, or of gpt-oss its model card, states for each model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.fields import read_object
from scope_jax.models.files.families import from_hf
from scope_jax.models.files.weights import checked_config, load_config
from scope_jax.run import fetching

COMMON: dict[str, Any] = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}


def _shape(layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocabulary: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
    }


QWEN25 = COMMON | {"architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6, "max_position_embeddings": 32768}
QWEN3 = COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
    "head_dim": 128,
}
LLAMA = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
OLMO3 = COMMON | {
    "architectures": ["Olmo3ForCausalLM"],
    "rope_theta": 5e5,
    "max_position_embeddings": 65536,
    "sliding_window": 4096,
    "layer_types": ["full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(32)],
}
QWEN25_1B = QWEN25 | _shape(28, 1536, 12, 2, 8960, 151936) | {"tie_word_embeddings": True}
QWEN25_3B = QWEN25 | _shape(36, 2048, 16, 2, 11008, 151936) | {"tie_word_embeddings": True}
MISTRAL = COMMON | {
    "architectures": ["MistralForCausalLM"],
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
    "head_dim": 128,
    "sliding_window": None,
}
MINISTRAL3 = COMMON | {  # without its vision tower; YaRN as in the defaults of its class
    "architectures": ["Ministral3ForCausalLM"],
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 262144,
    "head_dim": 128,
}
QWEN35 = COMMON | {  # without vision tower and multi-token prediction
    "architectures": ["Qwen3_5ForCausalLM"],
    "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
QWEN35_9B = QWEN35 | _shape(32, 4096, 16, 4, 12288, 248320)
QWEN35_27B = QWEN35 | _shape(64, 5120, 24, 4, 17408, 248320) | {"linear_num_value_heads": 48}
QWEN35_35B = QWEN35 | _shape(40, 2048, 16, 2, 512, 248320) | {"architectures": ["Qwen3_5MoeForCausalLM"]}
SMOLLM3 = COMMON | {
    "architectures": ["SmolLM3ForCausalLM"],
    "rope_theta": 5e6,
    "max_position_embeddings": 65536,
    "tie_word_embeddings": True,
}
GEMMA3 = {  # of the larger ones without their vision tower
    "architectures": ["Gemma3ForCausalLM"],
    "max_position_embeddings": 131072,
    "sliding_window": 1024,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
GEMMA4 = {  # without vision and audio
    "architectures": ["Gemma4ForCausalLM"],
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
}
GEMMA4_E = {  # with their other fields as in the defaults of the class
    "architectures": ["Gemma4ForCausalLM"],
    "final_logit_softcapping": 30.0,
}
GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}
GPT_OSS = {"architectures": ["GptOssForCausalLM"]}  # all else as in the defaults of its class
QWEN25_7B = QWEN25 | _shape(28, 3584, 28, 4, 18944, 152064)
QWEN25_14B = QWEN25 | _shape(48, 5120, 40, 8, 13824, 152064)
QWEN25_72B = QWEN25 | _shape(80, 8192, 64, 8, 29568, 152064)
QWEN25_32B = QWEN25 | _shape(64, 5120, 40, 8, 27648, 152064)
QWEN3_06B = QWEN3 | _shape(28, 1024, 16, 8, 3072, 151936) | {"tie_word_embeddings": True}
QWEN3_4B = QWEN3 | _shape(36, 2560, 32, 8, 9728, 151936) | {"tie_word_embeddings": True}
QWEN3_8B = QWEN3 | _shape(36, 4096, 32, 8, 12288, 151936)
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "max_position_embeddings": 262144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
QWEN3_30B = QWEN3_MOE | _shape(48, 2048, 32, 4, 6144, 151936) | {"rope_theta": 1e7, "moe_intermediate_size": 768}
QWEN3_235B = QWEN3_MOE | _shape(94, 4096, 64, 4, 12288, 151936) | {"rope_theta": 5e6, "moe_intermediate_size": 1536}
LLAMA31_8B = LLAMA | _shape(32, 4096, 32, 8, 14336, 128256)
LLAMA32_1B = LLAMA | _shape(16, 2048, 32, 8, 8192, 128256) | {"tie_word_embeddings": True, "head_dim": 64}
LLAMA31_70B = LLAMA | _shape(80, 8192, 64, 8, 28672, 128256)
LLAMA31_405B = LLAMA | _shape(126, 16384, 128, 8, 53248, 128256)
LLAMA32_3B = LLAMA | _shape(28, 3072, 24, 8, 8192, 128256) | {"tie_word_embeddings": True, "head_dim": 128}
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen2.5-1.5B-Instruct": QWEN25_1B,
    "Qwen2.5-3B-Instruct": QWEN25_3B,
    "Qwen2.5-Coder-3B": QWEN25_3B,
    "Qwen2.5-7B": QWEN25_7B | {"max_position_embeddings": 131072},
    "Qwen2.5-7B-Instruct": QWEN25_7B,
    "Qwen2.5-Coder-7B": QWEN25_7B,
    "Qwen2.5-14B": QWEN25_14B | {"max_position_embeddings": 131072},
    "Qwen2.5-14B-Instruct": QWEN25_14B,
    "Qwen2.5-Coder-14B": QWEN25_14B,
    "Qwen2.5-32B": QWEN25_32B | {"max_position_embeddings": 131072},
    "Qwen2.5-32B-Instruct": QWEN25_32B,
    "Qwen2.5-72B-Instruct": QWEN25_72B,
    "DeepSeek-R1-Distill-Qwen-7B": QWEN25_7B | {"max_position_embeddings": 131072, "rope_theta": 1e4},
    "DeepSeek-R1-Distill-Qwen-14B": QWEN25_14B | {"max_position_embeddings": 131072},
    "Qwen3-0.6B": QWEN3_06B,
    "Qwen3-4B": QWEN3_4B,
    "Qwen3-4B-Base": QWEN3_4B | {"max_position_embeddings": 32768},
    "Qwen3-4B-Thinking-2507": QWEN3_4B | {"max_position_embeddings": 262144, "rope_theta": 5e6},
    "Qwen3-8B": QWEN3_8B,
    "Qwen3-8B-Base": QWEN3_8B | {"max_position_embeddings": 32768},
    "Qwen3-14B": QWEN3 | _shape(40, 5120, 40, 8, 17408, 151936),
    "Qwen3-32B": QWEN3 | _shape(64, 5120, 64, 8, 25600, 151936),
    "Qwen3-235B-A22B-Instruct-2507": QWEN3_235B,
    "Qwen3-30B-A3B-Instruct-2507": QWEN3_30B,
    "Qwen3-30B-A3B-Thinking-2507": QWEN3_30B,
    "Qwen3.5-9B": QWEN35_9B,
    "Qwen3.5-27B": QWEN35_27B,
    "Qwen3.5-35B-A3B": QWEN35_35B,
    "Qwen3.6-27B": QWEN35_27B,
    "Qwen3.6-35B-A3B": QWEN35_35B,
    "Llama-3.1-8B": LLAMA31_8B,
    "Llama-3.1-8B-Instruct": LLAMA31_8B,
    "Llama-3.1-70B-Instruct": LLAMA31_70B,
    "Llama-3.3-70B-Instruct": LLAMA31_70B,
    "Llama-3.1-405B-Instruct": LLAMA31_405B,
    "Llama-3.2-1B-Instruct": LLAMA32_1B,
    "Llama-3.2-3B-Instruct": LLAMA32_3B,
    "Meta-Llama-3.1-8B-Instruct": LLAMA31_8B,
    "DeepSeek-R1-Distill-Llama-8B": LLAMA31_8B,
    "OctoThinker-8B-Hybrid-Base": LLAMA31_8B,
    "OctoThinker-3B-Hybrid-Base": LLAMA32_3B,
    "Mistral-7B-Instruct-v0.3": MISTRAL | _shape(32, 4096, 32, 8, 14336, 32768),
    "Mistral-Small-24B-Instruct-2501": MISTRAL | _shape(40, 5120, 32, 8, 32768, 131072) | {"rope_theta": 1e8},
    "Ministral-3-3B-Instruct-2512": MINISTRAL3 | _shape(26, 3072, 32, 8, 9216, 131072) | {"tie_word_embeddings": True},
    "Ministral-3-14B-Instruct-2512": MINISTRAL3 | _shape(40, 5120, 32, 8, 16384, 131072),
    "Ministral-3-8B-Base-2512": MINISTRAL3 | _shape(34, 4096, 32, 8, 14336, 131072),
    "SmolLM3-3B": SMOLLM3 | _shape(36, 2048, 16, 4, 11008, 128256),
    "gemma-3-1b-it": GEMMA3
    | _shape(26, 1152, 4, 1, 6912, 262144)
    | {"max_position_embeddings": 32768, "sliding_window": 512, "rope_scaling": None},
    "gemma-3-4b-it": GEMMA3 | _shape(34, 2560, 8, 4, 10240, 262208),
    "gemma-3-12b-it": GEMMA3 | _shape(48, 3840, 16, 8, 15360, 262208),
    "gemma-3-27b-it": GEMMA3
    | _shape(62, 5376, 32, 16, 21504, 262208)
    | {"head_dim": 128, "query_pre_attn_scalar": 168},
    "gemma-4-E2B-it": GEMMA4_E
    | _shape(35, 1536, 8, 1, 6144, 262144)
    | {
        "layer_types": ["full_attention" if layer % 5 == 4 else "sliding_attention" for layer in range(35)],
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
    },
    "gemma-4-E4B-it": GEMMA4_E | _shape(42, 2560, 8, 2, 10240, 262144) | {"num_kv_shared_layers": 18},
    "gemma-4-12B-it": GEMMA4
    | _shape(48, 3840, 16, 8, 15360, 262144)
    | {"architectures": ["Gemma4UnifiedForCausalLM"], "num_global_key_value_heads": 1},
    "gemma-4-26B-A4B-it": GEMMA4
    | GEMMA4_EXPERTS
    | _shape(30, 2816, 16, 8, 2112, 262144)
    | {"num_global_key_value_heads": 2},
    "gemma-4-31B-it": GEMMA4 | _shape(60, 5376, 32, 16, 21504, 262144) | {"num_global_key_value_heads": 4},
    "gpt-oss-20b": GPT_OSS | _shape(24, 2880, 64, 8, 2880, 201088) | {"num_local_experts": 32},
    "gpt-oss-120b": GPT_OSS | _shape(36, 2880, 64, 8, 2880, 201088) | {"num_local_experts": 128},
    "Olmo-3-7B-Instruct": OLMO3 | _shape(32, 4096, 32, 32, 11008, 100278),
}


def public(model: str) -> ModelConfig | None:
    """The model that the last part of a folder or of a name of the hub says; None if it is not among those above."""
    name = Path(model).name
    return from_hf(SHAPES[name]) if name in SHAPES else None


def model_of(
    checkpoint: str, file: Path | None, remedy: str = "its config.json with --model-config FILE"
) -> tuple[ModelConfig, str]:
    """(the model of a card, where its shape is from): `file`, a config.json or its folder; else the card's checkpoint
    folder; else the config.json of the hub's model of that name; else its public figures.

    Raises UserError if there is none of them, FileNotFoundError or ValueError for a bad config.json.
    """
    if file is not None:
        file = file / "config.json" if file.is_dir() else file
        try:
            return from_hf(read_object(file)), str(file)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
    folder = Path(checkpoint)
    if folder.is_dir():
        return checked_config(folder), str(folder)
    missing = f"the model folder {checkpoint} does not exist"
    if fetching.is_name(checkpoint):
        try:
            found = fetching.snapshot(checkpoint, fetching.SHAPE)
        except fetching.Unavailable as error:
            missing = str(error).removesuffix(".")
        else:
            return load_config(found), f"config.json of {checkpoint} on the hub"
    if (known := public(checkpoint)) is not None:
        return known, f"public figures of {folder.name}"
    raise UserError(f"{missing}, and no public figures of {folder.name} are known here; give {remedy}.")
