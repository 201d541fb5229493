"""What a config.json leaves out is what transformers' configuration class of the model gives."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
import transformers

from scope_jax.models.decoder.config import Attention, Delta, ModelConfig
from scope_jax.models.encoders import bert, encoder
from scope_jax.models.files.defaults import DEFAULTS
from scope_jax.models.files.families import FAMILIES, from_hf, to_hf
from scope_jax.models.kernels.rope import Rope
from tests.shapes import figures, rope_of

CLASSES = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "qwen3_moe": transformers.Qwen3MoeConfig,
    "olmo3": transformers.Olmo3Config,
    "smollm3": transformers.SmolLM3Config,
    "ministral3": transformers.Ministral3Config,
    "mistral": transformers.MistralConfig,
    "gemma3_text": transformers.Gemma3TextConfig,
    "gemma4_text": transformers.Gemma4TextConfig,
    "gemma4_unified_text": transformers.Gemma4UnifiedTextConfig,
    "qwen3_5_text": transformers.Qwen3_5TextConfig,
    "qwen3_5_moe_text": transformers.Qwen3_5MoeTextConfig,
    "olmo_hybrid": transformers.OlmoHybridConfig,
    "gpt_oss": transformers.GptOssConfig,
    "bert": transformers.BertConfig,
    "roberta": transformers.RobertaConfig,
    "xlm-roberta": transformers.XLMRobertaConfig,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
# Configurations as people write them: nothing but the type, Llama 2's, short ones, with windows, with scaled positions.
PARTS: list[dict[str, Any]] = [
    {},
    {"hidden_size": 64, "num_attention_heads": 32, "num_hidden_layers": 8},
    {"num_attention_heads": 64, "rope_theta": 5e5},
    {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    {"num_hidden_layers": 40, "use_sliding_window": True},
    {"num_hidden_layers": 8, "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 3},
    {"num_hidden_layers": 8, "sliding_window": 512},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": YARN, "rope_theta": 1e6},
    {"rope_scaling": {**YARN, "rope_theta": 2e6}, "rope_theta": 1e6},
    {"rope_scaling": YARN},
]


def read(config: dict[str, Any], theirs: Any) -> tuple[ModelConfig, dict[str, Any]]:
    """(our reading of a config.json, the same facts as transformers has them, where ours has them)."""
    first = theirs.per_layer_config[0] if config["model_type"].startswith("gemma4") else theirs
    layers = theirs.num_hidden_layers
    window = None if config["model_type"] == "llama" else theirs.sliding_window
    usual = ["sliding_attention" if window else "full_attention"] * layers
    types = getattr(theirs, "layer_types", None) or usual
    full = theirs.rope_parameters.get("full_attention", theirs.rope_parameters)
    moe, clamped = (config["model_type"] == name for name in ("qwen3_moe", "gpt_oss"))
    return from_hf(config), {
        "vocab_size": theirs.vocab_size,
        "num_layers": layers,
        "width": theirs.hidden_size,
        "num_heads": theirs.num_attention_heads,
        "num_kv_heads": first.num_key_value_heads,
        "head_dim": getattr(first, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads,
        "ffn_width": theirs.moe_intermediate_size if moe else theirs.intermediate_size,
        "norm_eps": theirs.rms_norm_eps,
        "tie_embeddings": theirs.tie_word_embeddings,
        "layer_windows": tuple(window if kind == "sliding_attention" else None for kind in types),
        "inputs": getattr(theirs, "hidden_size_per_layer_input", 0),
        "num_experts": theirs.num_experts if moe or clamped else 0,
        "experts_per_token": theirs.num_experts_per_tok if moe or clamped else 0,
        "norm_topk_prob": theirs.norm_topk_prob if moe else clamped,
        "theta": full["rope_theta"],
        "kind": full["rope_type"],
        "factor": full.get("factor", 1.0),
    }


def facts(cfg: ModelConfig) -> dict[str, Any]:
    rope = rope_of(cfg, windowed=None not in cfg.windows)
    of_rope = {"theta": rope.theta, "kind": rope.kind, "factor": rope.factor}
    return figures(cfg) | of_rope | {"inputs": cfg.layers[0].inputs}


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("model_type", [name for name, family in FAMILIES.items() if family.delta == "none"])
def test_a_decoder_is_what_transformers_makes_of_its_config(model_type: str, part: dict[str, Any]) -> None:
    config = {"model_type": model_type, **part}
    theirs = CLASSES[model_type](**deepcopy(part))  # which changes what it is given
    if not model_type.startswith("gemma4") and theirs.num_attention_heads % theirs.num_key_value_heads:
        with pytest.raises(ValueError, match="num_kv_heads"):
            from_hf(config)
        return
    if "rope_scaling" in part and FAMILIES[model_type].gemma == 4:
        with pytest.raises(ValueError, match="'rope_scaling'"):  # which their class ignores
            from_hf(config)
        return
    if "rope_scaling" in part and FAMILIES[model_type].query_scaling:
        with pytest.raises(ValueError, match="'llama_4_scaling_beta'"):  # without which their model fails
            from_hf(config)
        return
    ours, wanted = read(config, theirs)
    assert {name: facts(ours)[name] for name in wanted} == wanted
    assert from_hf(to_hf(ours)) == ours
    assert from_hf(config | {"architectures": [FAMILIES[model_type].hf], "model_type": None}) == ours


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 6},
        {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_value_head_dim": 64, "rms_norm_eps": 1e-5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5}},
    ],
    ids=str,
)
@pytest.mark.parametrize("model_type", [name for name, family in FAMILIES.items() if family.delta != "none"])
def test_layers_with_states_are_what_transformers_makes_of_a_config(model_type: str, part: dict[str, Any]) -> None:
    olmo = model_type == "olmo_hybrid"
    if olmo and "rope_parameters" in part:
        part = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}
    config = {"model_type": model_type, **part}
    theirs, ours = CLASSES[model_type](**deepcopy(part)), from_hf(config)
    kinds = ["full_attention" if isinstance(layer.mixer, Attention) else "linear_attention" for layer in ours.layers]
    assert kinds == theirs.layer_types
    mixer, attention = (
        next(layer.mixer for layer in ours.layers if isinstance(layer.mixer, Delta)),
        ours.layers[ours.attention_layers[0]].attention,
    )
    assert (mixer.num_key_heads, mixer.num_heads, mixer.key_dim, mixer.value_dim, mixer.taps) == (
        theirs.linear_num_key_heads,
        theirs.linear_num_value_heads,
        theirs.linear_key_head_dim,
        theirs.linear_value_head_dim,
        theirs.linear_conv_kernel_dim,
    )
    width, heads = theirs.hidden_size, theirs.num_attention_heads
    assert (ours.vocab_size, ours.width, ours.norm_eps) == (theirs.vocab_size, width, theirs.rms_norm_eps)
    assert (attention.num_heads, attention.num_kv_heads) == (heads, theirs.num_key_value_heads)
    assert attention.head_dim == (width // heads if olmo else theirs.head_dim)
    if attention.rope is None:
        assert olmo and (theirs.rope_parameters or {}).get("rope_theta") is None
    else:
        parameters = theirs.rope_parameters
        assert (attention.rope.theta, attention.rope.share) == (
            parameters["rope_theta"],
            parameters.get("partial_rotary_factor", 1.0),
        )
    assert mixer.doubled == olmo and from_hf(to_hf(ours)) == ours
    again = CLASSES[model_type](**{name: value for name, value in to_hf(ours).items() if name != "model_type"})
    assert again.layer_types == theirs.layer_types and again.rope_parameters == theirs.rope_parameters


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize(
    "part", [{}, {"hidden_size": 96, "max_position_embeddings": 130, "type_vocab_size": 1}], ids=str
)
def test_an_encoder_is_what_transformers_makes_of_its_config(model_type: str, part: dict[str, Any]) -> None:
    theirs, ours = CLASSES[model_type](**part), bert.from_hf(part, model_type)
    first = 0 if model_type == "bert" else theirs.pad_token_id + 1
    assert (ours.vocab_size, ours.num_layers, ours.width) == (
        theirs.vocab_size,
        theirs.num_hidden_layers,
        theirs.hidden_size,
    )
    assert (ours.num_heads, ours.ffn_width, ours.norm_eps) == (
        theirs.num_attention_heads,
        theirs.intermediate_size,
        theirs.layer_norm_eps,
    )
    assert (ours.first_position + ours.max_positions, ours.token_types) == (
        theirs.max_position_embeddings,
        theirs.type_vocab_size,
    )
    assert ours.first_position == first


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_every_default_is_one_of_the_class(model_type: str) -> None:
    """Nothing is in the table that the class does not have."""
    of_ropes = ("rope_theta", "rope_local_base_freq", "partial_rotary_factor")
    named: dict[str, str] = dict.fromkeys(of_ropes, "rope_parameters")
    theirs = CLASSES[model_type]()
    for name in DEFAULTS[model_type]:
        assert named.get(name, name) in theirs.to_dict() or hasattr(theirs, name), name


def test_the_type_names_an_encoder_without_architectures(tmp_path) -> None:
    for model_type, first in (("bert", 0), ("xlm-roberta", 2)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        model = encoder.load_config(tmp_path).model
        assert isinstance(model, bert.BertConfig) and model.first_position == first


def test_theta_of_the_newer_form_counts_beside_rope_scaling() -> None:
    """A config of transformers 5 to which a user adds rope_scaling, as Qwen's model cards say."""
    newer = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    cfg = from_hf({"model_type": "qwen3", **newer, "rope_scaling": YARN})
    assert (rope_of(cfg).theta, rope_of(cfg).kind, cfg.max_positions) == (1e6, "yarn", 32768)
    assert rope_of(from_hf({"model_type": "qwen3", **newer, "rope_scaling": {**YARN, "rope_theta": 3e6}})).theta == 3e6
    stated = from_hf({"model_type": "qwen3", **newer, "rope_scaling": YARN, "rope_theta": 2e6})
    assert rope_of(stated).theta == 2e6  # as transformers


def test_rope_scaling_beside_parameters_by_layer_type() -> None:
    by_type = {name: {"rope_type": "default", "rope_theta": 1e6} for name in ("full_attention", "sliding_attention")}
    given: Any = {"rope_parameters": deepcopy(by_type), "rope_scaling": YARN}
    theirs: Any = transformers.Olmo3Config(**given).rope_parameters
    cfg = from_hf({"model_type": "olmo3", "rope_parameters": by_type, "rope_scaling": YARN})
    rope = rope_of(cfg)
    assert (rope.theta, rope.kind, rope.factor) == (1e6, "yarn", 4.0)
    assert (theirs["full_attention"]["rope_theta"], theirs["full_attention"]["factor"]) == (1e6, 4.0)
    assert rope_of(cfg, windowed=True) == Rope(1e6)
