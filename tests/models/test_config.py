"""config.json in the forms that transformers 4 and 5 write, what is refused, and how layers are scanned."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scope_jax.models.decoder.config import Attention
from scope_jax.models.decoder.transformer import layer_stages
from scope_jax.models.files.families import from_hf, to_hf
from scope_jax.models.kernels.rope import Rope, frequencies
from tests.shapes import like, rope_of, uniform

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}
OLMO3 = LLAMA | {"architectures": ["Olmo3ForCausalLM"], "sliding_window": 8}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
SLIDING = {"use_sliding_window": True, "sliding_window": 8}


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def test_llama():
    cfg = from_hf(LLAMA)
    assert cfg == uniform(
        "llama",
        64,
        4,
        32,
        4,
        2,
        8,
        48,
        Rope(10000.0),
        1e-6,
        False,
        "none",
        False,
        False,
        128,
        layer_windows=(None,) * 4,
    )
    assert from_hf(without(LLAMA, "num_key_value_heads")).layers[0].attention.num_kv_heads == 4


def test_rope_in_the_formats_of_transformers_4_and_5():
    """rope_theta beside rope_scaling (up to 4), or rope_parameters with everything (from 5 on)."""
    old = from_hf(LLAMA | {"rope_scaling": YARN})
    new = from_hf(without(LLAMA, "rope_theta") | {"rope_parameters": YARN | {"rope_theta": 10000.0}})
    assert old == new
    rope = rope_of(old)
    assert rope == Rope(10000.0, "yarn", 8.0, 16, attention_factor=rope.attention_factor)
    assert rope.attention_factor == pytest.approx(0.1 * np.log(8.0) + 1)
    legacy = from_hf(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}})
    assert rope_of(legacy) == Rope(10000.0, "linear", 2.0)
    unsaid = from_hf(LLAMA | {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 32}})
    assert rope_of(unsaid).factor == 4.0  # 128 / 32


def test_yarn_extends_the_context_whatever_the_config_repeats():
    """Qwen2.5 and Qwen3 are switched to 131,072 positions by `rope_scaling` alone; a longer stated context stays."""
    assert from_hf(LLAMA).max_positions == 128
    short = from_hf(LLAMA | {"rope_scaling": YARN | {"original_max_position_embeddings": 128}})
    assert short.max_positions == 8 * 128 and from_hf(to_hf(short)) == short
    assert from_hf(LLAMA | {"rope_scaling": YARN | {"factor": 2.0}}).max_positions == 128  # 2 · 16
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert from_hf(LLAMA | {"rope_scaling": llama3 | {"original_max_position_embeddings": 64}}).max_positions == 128


def test_olmo3_scales_full_layers_only():
    old = from_hf(OLMO3 | {"rope_scaling": YARN})
    by_type = {"full_attention": YARN | {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}}
    assert old == from_hf(without(OLMO3, "rope_theta") | {"rope_parameters": by_type})
    assert old.windows == (8, 8, 8, None)
    assert rope_of(old, windowed=True) == Rope(10000.0) and rope_of(old).kind == "yarn"
    assert old.layers[0].norms == "post" and old.layers[0].attention.qk_norm == "width"


def test_windows_of_qwen():
    assert from_hf(QWEN3 | {"sliding_window": 8}).windows == (None,) * 4
    assert from_hf(QWEN3 | SLIDING | {"max_window_layers": 3}).windows == (None, None, None, 8)
    types = ["sliding_attention", "full_attention"] * 2
    assert from_hf(QWEN3 | SLIDING | {"layer_types": types}).windows == (8, None, 8, None)


def test_biases_and_head_dim_of_qwen2():
    cfg = from_hf(QWEN2)
    mixer = cfg.layers[0].attention
    assert (mixer.qkv_bias, mixer.output_bias, mixer.qk_norm, mixer.head_dim) == (True, False, "none", 8)
    own = from_hf(without(QWEN3, "head_dim")).layers[0].attention
    assert own.head_dim == 128  # transformers' default for this class


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"mlp_bias": True}, "'mlp_bias' is True"),
        (LLAMA | {"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
        (LLAMA | {"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        (LLAMA | {"rope_scaling": {"rope_type": "linear"}}, "'factor'"),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor'"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5"),
        (LLAMA | {"quantization_config": {"bits": 4}}, "quantised"),
        (LLAMA | {"rope_theta": None}, "'rope_theta'"),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "by layer type"),
        (QWEN3 | {"layer_types": ["sliding_attention"] * 4}, "not set or not used"),
        (QWEN3 | {"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        (OLMO3 | {"layer_types": ["full_attention"]}, "each of the 4 layers"),
    ],
)
def test_unsupported_configs_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        from_hf(config)


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3, OLMO3 | {"rope_scaling": YARN}, QWEN3 | SLIDING])
def test_written_configs_are_read_back(config):
    cfg = from_hf(config | {"max_window_layers": 1})
    assert from_hf(to_hf(cfg)) == cfg


def test_configs_that_a_class_cannot_express_are_refused():
    llama = from_hf(LLAMA)
    for change in ({"norm": "post"}, {"qk_norm": "head"}, {"layer_windows": (8,) * 4}, {"qkv_bias": True}):
        with pytest.raises(ValueError, match="LlamaForCausalLM cannot express"):
            to_hf(like(llama, **change))


def test_inconsistent_models_are_refused():
    llama = from_hf(LLAMA)
    with pytest.raises(ValueError, match="at least one layer"):
        replace(llama, layers=())
    with pytest.raises(ValueError, match="below 1 token"):
        Attention(4, 2, 8, None, window=0)
    with pytest.raises(ValueError, match=r"Experts.picked \(5\)"):
        like(llama, num_experts=4, experts_per_token=5)
    with pytest.raises(ValueError, match=r"Dense.width is 0"):
        like(llama, ffn_width=0)


def test_frequencies_by_hand():
    """h = 4, θ = 100: 1 and 1/10 per token. Linear halves both. llama3 with bounds of 4 and 64 tokens leaves the first
    (2π tokens: just inside the blend) nearly unchanged and scales the second (20π tokens) almost by the full factor.
    """
    np.testing.assert_allclose(frequencies(Rope(100.0), 4), [1, 0.1], rtol=1e-7)
    np.testing.assert_allclose(frequencies(Rope(100.0, "linear", 2.0), 4), [0.5, 0.05], rtol=1e-7)
    llama3 = Rope(100.0, "llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=16.0)
    blend = (64 / (np.asarray([2, 20]) * np.pi) - 1) / 15
    expected = np.asarray([1, 0.1]) * ((1 - blend) / 8 + blend)
    np.testing.assert_allclose(frequencies(llama3, 4), expected, rtol=1e-6)
    # YaRN: the bounds are pairs 0 and 2, so the first pair is at the lower bound and the second one halfway.
    yarn = Rope(100.0, "yarn", 4.0, 64, beta_fast=64 / (2 * np.pi), beta_slow=64 / (2 * np.pi * 100))
    np.testing.assert_allclose(frequencies(yarn, 4), [1, 0.1 * (0.5 / 4 + 0.5)], rtol=1e-6)


def test_layers_are_scanned_by_period_or_by_runs_whichever_is_shorter():
    assert layer_stages((None,) * 6) == [(0, (None,), 6)]
    assert layer_stages((4, 4, 4, None) * 8) == [(0, (4, 4, 4, None), 8)]
    assert layer_stages((None, None, 4, 4, 4)) == [(0, (None,), 2), (2, (4,), 3)]
    assert layer_stages((4, None) * 2) == [(0, (4, None), 2)]
    assert layer_stages((4, 4, None) * 3 + (4, 4)) == [(0, (4, 4, None), 3), (9, (4,), 2)]
