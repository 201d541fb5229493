"""The families of decoders that load: their Hugging Face classes, and conversion from and to config.json.

A family is a row of FAMILIES. What a config.json leaves out is in `models.files.defaults`, the names of tensors are in
`models.decoder.hf`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from scope_jax.errors import UserError
from scope_jax.models.decoder.config import (
    Activation,
    Attention,
    Delta,
    Dense,
    Experts,
    Feed,
    Layer,
    ModelConfig,
    Parallel,
    QkNorm,
    QueryScaling,
)
from scope_jax.models.decoder.moe import LIMIT, SLOPE
from scope_jax.models.fields import MOST, MOST_LAYERS, count, cut, flag, number, shown, table, texts
from scope_jax.models.files import gemma
from scope_jax.models.files.defaults import completed
from scope_jax.models.kernels.rope import Rope


@dataclass(frozen=True)
class Family:
    """Properties that a Hugging Face class fixes and its config.json does not state.

    bias: "config": attention_bias puts biases on all four attention projections; "qkv": always on q, k and v;
    "none". windows: which layers use the sliding window: "none", "types" (layer_types, or from layer
    max_window_layers on), "pattern" (layer_types, or all but every `period`-th), "all", "stated" (all, and nothing
    else switches it on). ropes: "windows": sliding layers keep unscaled rotary positions, or have a θ of their own;
    "listed": no_rope_layers says which layers have any, or all but every no_rope_layer_interval-th; "optional": none
    if rope_theta is null. partial: partial_rotary_factor is the share of a head that turns. query_scaling:
    rope_parameters has llama_4_scaling_beta. padded: the class has a padding token of its published vocabulary
    where config.json names none. activation: of dense layers. norm_offset: of `ModelConfig`. gemma: Gemma's
    generation, 0 for other families (`models.files.gemma`). delta: layer_types has layers of a Gated DeltaNet
    ("linear_attention", or all but every full_attention_interval-th), with norms before them; "doubled" with
    linear_allow_neg_eigval. gate: attention has a gate. shared: experts are normalised, and one is shared. sinks:
    attention has them. clamped: experts have the clamped activation, biases and intermediate_size, and their files
    may be in MXFP4. What a config.json leaves out is in `models.files.defaults`.
    """

    hf: str
    qk_norm: QkNorm = "none"
    norms: Literal["pre", "post", "both"] = "pre"
    bias: Literal["config", "qkv", "none"] = "config"
    windows: Literal["none", "types", "pattern", "all", "stated"] = "none"
    ropes: Literal["one", "windows", "listed", "optional"] = "one"
    experts: bool = False
    query_scaling: bool = False
    padded: bool = False
    period: int = 4
    activation: Activation = "silu"
    norm_offset: float = 0.0
    gemma: Literal[0, 3, 4] = 0
    partial: bool = False
    delta: Literal["none", "plain", "doubled"] = "none"
    gate: bool = False
    shared: bool = False
    sinks: bool = False
    clamped: bool = False


_QWEN3_5: dict[str, Any] = {"partial": True, "delta": "plain", "gate": True, "norm_offset": 1.0}
FAMILIES = {
    "llama": Family("LlamaForCausalLM"),
    "qwen2": Family("Qwen2ForCausalLM", bias="qkv", windows="types"),
    "qwen3": Family("Qwen3ForCausalLM", "head", windows="types"),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", "head", windows="all", experts=True),
    "olmo3": Family("Olmo3ForCausalLM", "width", "post", windows="pattern", ropes="windows"),
    "smollm3": Family("SmolLM3ForCausalLM", windows="types", ropes="listed", padded=True),
    "ministral3": Family("Ministral3ForCausalLM", bias="none", windows="stated", query_scaling=True),
    "mistral": Family("MistralForCausalLM", bias="none", windows="stated"),
    "qwen3_5_text": Family("Qwen3_5ForCausalLM", "head", **_QWEN3_5),
    "qwen3_5_moe_text": Family("Qwen3_5MoeForCausalLM", "head", **_QWEN3_5, experts=True, shared=True),
    "olmo_hybrid": Family("OlmoHybridForCausalLM", "width", "post", ropes="optional", delta="doubled", padded=True),
    "gemma3_text": Family(
        *("Gemma3ForCausalLM", "head", "both"),
        windows="pattern",
        period=6,
        ropes="windows",
        activation="gelu_tanh",
        norm_offset=1.0,
        gemma=3,
    ),
    "gpt_oss": Family("GptOssForCausalLM", windows="pattern", period=2, experts=True, sinks=True, clamped=True),
}
_GEMMA4 = Family(
    *("Gemma4ForCausalLM", "head", "both"),
    windows="pattern",
    period=6,
    ropes="windows",
    activation="gelu_tanh",
    gemma=4,
)
FAMILIES |= {"gemma4_text": _GEMMA4, "gemma4_unified_text": replace(_GEMMA4, hf="Gemma4UnifiedForCausalLM")}
ACTIVATIONS: dict[Activation, tuple[str, str]] = {
    "silu": ("hidden_act", "silu"),
    "gelu_tanh": ("hidden_activation", "gelu_pytorch_tanh"),
}  # as config.json names them


Prefixes = tuple[tuple[str, str], ...]
_INSIDE: Prefixes = (("model.language_model.", "model."), ("lm_head.", "lm_head."))
# Classes with other modalities beside a decoder: how the names of the decoder's tensors begin in their files, and in
# those of a decoder alone.
WRAPPERS: dict[str, Prefixes] = {
    "Mistral3ForConditionalGeneration": (("language_model.", ""),),
    "Gemma3ForConditionalGeneration": (("language_model.", ""),),
    "Gemma4ForConditionalGeneration": _INSIDE,
    "Gemma4UnifiedForConditionalGeneration": _INSIDE,
    "Qwen3_5ForConditionalGeneration": _INSIDE,
    "Qwen3_5MoeForConditionalGeneration": _INSIDE,
}


def wrapper(config: Mapping[str, Any]) -> str | None:
    """The class in WRAPPERS that a config.json names, None if it is of a decoder alone."""
    return next((name for name in texts(config, "architectures") if name in WRAPPERS), None)


def _of_decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of the decoder, which is text_config where there are other modalities."""
    if wrapper(config) is None:
        return config
    text = table(config, "text_config")
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
    quantised = config.get("quantization_config")
    return {**text, "architectures": [], "tie_word_embeddings": tied, "quantization_config": quantised}


def unread(config: Mapping[str, Any]) -> frozenset[str]:
    """Names of a decoder's tensors that published files have but no layer reads."""
    return gemma.unread(_of_decoder(config))


def _rope(parameters: Mapping[str, Any], config: Mapping[str, Any], partial: bool = False) -> Rope:
    """A Rope from one set of parameters; missing ones come from config.json. partial: as in `Family`."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    theta = number(parameters if "rope_theta" in parameters else config, "rope_theta")
    if theta <= 1:
        raise UserError(f"config.json: field 'rope_theta' is {theta}; it must be above 1.")
    if kind == "proportional":
        factor, share = (number(parameters, name, 1.0) for name in ("factor", "partial_rotary_factor"))
        return Rope(theta, kind, factor, share=share)
    source = parameters if parameters.get("partial_rotary_factor") is not None else config
    share = 1.0 if source.get("partial_rotary_factor") is None else number(source, "partial_rotary_factor")
    if share != 1 and not (partial and kind == "default"):
        raise UserError(
            f"config.json: field 'partial_rotary_factor' is {shown(share)}; only whole heads are rotated, except by "
            "Qwen3.5 without scaled positions and by Gemma 4."
        )
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise UserError(
            "config.json gives rotary parameters by layer type, which its class does not have; correct them."
        )
    if kind == "default":
        return Rope(theta, share=share)
    if kind not in ("linear", "llama3", "yarn"):
        raise UserError(
            f"config.json: rope type {cut(repr(kind))} is not supported; 'default', 'linear', 'llama3' and 'yarn' are."
        )
    positions = count(config, "max_position_embeddings")
    original = count(parameters, "original_max_position_embeddings", positions)
    factor = number(parameters, "factor", positions / original if kind == "yarn" else None)
    if kind == "linear":
        return Rope(theta, "linear", factor)
    if kind == "llama3":
        low, high = (number(parameters, name) for name in ("low_freq_factor", "high_freq_factor"))
        return Rope(theta, "llama3", factor, original, low_freq_factor=low, high_freq_factor=high)
    return Rope(
        theta,
        "yarn",
        factor,
        original,
        beta_fast=number(parameters, "beta_fast", 32.0),
        beta_slow=number(parameters, "beta_slow", 1.0),
        truncate=flag(parameters, "truncate", True),
        attention_factor=_attention_factor(parameters, factor),
    )


def _positions(config: Mapping[str, Any], rope: Rope) -> int:
    """The longest context. YaRN's extends to `factor` times the original one, which a config.json need not repeat: to
    switch YaRN on, Qwen's users add `rope_scaling` alone.
    """
    stated = count(config, "max_position_embeddings")
    return max(stated, min(int(rope.factor * rope.original_positions), MOST)) if rope.kind == "yarn" else stated


def _attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    """0.1 ln(factor) + 1 unless the parameters set another (YaRN, Eq. 22; with DeepSeek's mscale, a ratio of two)."""
    if parameters.get("attention_factor") is not None:
        return number(parameters, "attention_factor")

    def scaled(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if not (parameters.get("mscale") and parameters.get("mscale_all_dim")):
        return scaled(1.0)
    return scaled(number(parameters, "mscale")) / scaled(number(parameters, "mscale_all_dim"))


def _ropes(config: Mapping[str, Any], stated: Mapping[str, Any], family: Family) -> tuple[Rope, Rope]:
    """(rope of full layers, of sliding layers). transformers up to 4 writes rope_theta and rope_scaling; from 5 on,
    rope_parameters holds both, keyed by layer type where a family has several. Gemma 3's older form has the θ of
    sliding layers in rope_local_base_freq.

    Whoever adds rope_scaling to a config of the newer form keeps its theta, and with OLMo-3 its sliding layers.
    Scaling applies to full layers alone; OLMo-3's sliding layers have unscaled positions with the same theta. In
    nested parameters `truncate` is honoured, which transformers 5 ignores.
    """
    if family.gemma == 4 and config.get("rope_scaling"):
        raise UserError("config.json: Gemma 4 has no 'rope_scaling'; scale 'full_attention' in rope_parameters.")
    local = {"rope_theta": config["rope_local_base_freq"]} if "rope_local_base_freq" in config else {}
    newer, scaling = table(config, "rope_parameters"), table(config, "rope_scaling")
    if family.ropes == "windows" and ("full_attention" in newer or "sliding_attention" in newer):
        full, sliding = (table(newer, name) for name in ("full_attention", "sliding_attention"))
        return _rope({**full, **scaling}, config), _rope({**local, **sliding}, config)
    theta = {"rope_theta": newer["rope_theta"]} if "rope_theta" in newer and "rope_theta" not in stated else {}
    full = _rope({**theta, **scaling} if scaling else newer, config, family.partial)
    return full, Rope(number(local, "rope_theta", full.theta)) if family.ropes == "windows" else full


def _windows(config: Mapping[str, Any], family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    if family.windows == "none":
        return (None,) * num_layers
    switched_off = family.windows in ("types", "all") and not flag(config, "use_sliding_window", False)
    window = None if switched_off or config["sliding_window"] is None else count(config, "sliding_window")
    if family.windows in ("all", "stated"):
        return (window,) * num_layers
    types = None if config.get("layer_types") is None else texts(config, "layer_types")
    if types is None and family.ropes == "listed":
        used = window is not None
        types = [
            "sliding_attention" if used and not turns else "full_attention" for turns in _turned(config, num_layers)
        ]
    elif types is None and family.windows == "types":
        first = num_layers if window is None else count(config, "max_window_layers", least=0)
        types = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    elif types is None:
        period = count(config, "sliding_window_pattern", family.period)
        types = ["full_attention" if i % period == period - 1 else "sliding_attention" for i in range(num_layers)]
    if family.gemma == 4:
        types = [*types[:-1], "full_attention"]  # whatever config.json says, as in transformers
    strange = set(types) - {"sliding_attention", "full_attention"}
    if strange or len(types) != num_layers:
        raise UserError(
            f"config.json: field 'layer_types' must name 'full_attention' or 'sliding_attention' for each of the "
            f"{num_layers} layers, not {shown(types)}."
        )
    if "sliding_attention" in types and window is None:
        raise UserError("config.json: 'layer_types' has sliding layers, but 'sliding_window' is not set or not used.")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _turned(config: Mapping[str, Any], num_layers: int) -> list[bool]:
    """Which layers have rotary positions."""
    listed = config.get("no_rope_layers")  # 1 where a layer has them
    if listed is None:
        interval = count(config, "no_rope_layer_interval")
        return [number % interval != 0 for number in range(1, num_layers + 1)]
    if not isinstance(listed, list) or len(listed) != num_layers or any(one not in (0, 1) for one in listed):
        raise UserError(
            f"config.json: field 'no_rope_layers' must have a 0 or a 1 for each of the {num_layers} layers, not "
            f"{shown(listed)}."
        )
    return [bool(one) for one in listed]


def _refuse(config: Mapping[str, Any], family: Family) -> None:
    """Raises ValueError for settings that the family's layers here do not implement."""
    field, activation = ACTIVATIONS[family.activation]
    wanted = {
        field: (activation, activation),
        "swiglu_limit": (LIMIT, f"{LIMIT}"),
        "swiglu_alpha": (SLOPE, f"{SLOPE}"),
        "mlp_bias": (False, "False"),
        "decoder_sparse_step": (1, "1"),
    }
    for name, (value, supported) in wanted.items():
        if config.get(name, value) != value:
            raise UserError(f"config.json: field {name!r} is {cut(repr(config[name]))}; only {supported} is supported.")
    unknown = {"attn_logit_softcapping": "null", "use_bidirectional_attention": "null"}
    for name, supported in unknown.items() if family.gemma else ():
        if config.get(name) and (name, config[name]) != ("use_bidirectional_attention", "vision"):  # text is causal
            raise UserError(f"config.json: field {name!r} is {shown(config[name])}; only {supported} is supported.")
    if config.get("mlp_only_layers"):
        raise UserError(
            f"config.json: field 'mlp_only_layers' is {cut(repr(config['mlp_only_layers']))}; only models with "
            "experts in every layer are supported."
        )
    quantised = table(config, "quantization_config")
    if quantised and not (family.clamped and quantised.get("quant_method") == "mxfp4"):
        raise UserError(
            "config.json has a 'quantization_config'; quantised weights are not supported, use the model that they "
            "were made of."
        )


def _architecture(config: Mapping[str, Any]) -> str:
    """Our name of the class that a config.json names, or that its model_type means if it names none."""
    names = texts(config, "architectures")
    if not names and config.get("model_type") in list(FAMILIES):
        return str(config["model_type"])
    architecture = next((ours for ours, family in FAMILIES.items() if family.hf in names), None)
    if architecture is None:
        known = {name.partition("For")[0] for name in (*(family.hf for family in FAMILIES.values()), *WRAPPERS)}
        raise UserError(
            f"config.json: field 'architectures' is {shown(names)}; supported are the language models of "
            f"{', '.join(sorted(known))}."
        )
    return architecture


def from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """ModelConfig from the contents of a Hugging Face config.json, as transformers 4 or 5 writes it.

    What it leaves out has the defaults of its class (`models.files.defaults`), and model_type names the class where
    architectures does not. Raises ValueError naming the field that is missing or not supported.
    """
    config = _of_decoder(config)
    architecture = _architecture(config)
    family, stated = FAMILIES[architecture], config
    config = completed(architecture, stated)
    _refuse(config, family)
    num_layers, num_heads = count(config, "num_hidden_layers", most=MOST_LAYERS), count(config, "num_attention_heads")
    width = count(config, "hidden_size")
    mixers = _mixers(config, family, num_layers)
    turns = family.ropes != "optional" or table(config, "rope_parameters").get("rope_theta", True) is not None
    rope, sliding_rope = _ropes(config, stated, family) if turns else (None, None)
    bias = family.bias == "config" and flag(config, "attention_bias", False)
    kv_heads = count(config, "num_key_value_heads", num_heads)
    feeds = [_feed(config, family, shared) for shared in (False, True)]
    head_dim = count(config, "head_dim", width // num_heads)

    turned = _turned(config, num_layers) if family.ropes == "listed" else [True] * num_layers
    windows = _windows(config, family, num_layers)
    sources = gemma.sources(config, windows) if family.gemma == 4 else [None] * num_layers
    inputs = gemma.inputs(config) if architecture == "gemma4_text" else 0

    def layer(place: int, delta: Delta | None, window: int | None, turns: bool, source: int | None) -> Layer:
        feed = feeds[source is not None]
        if delta is not None:
            return Layer(delta, feed, "pre")
        mixer = Attention(
            *(num_heads, kv_heads, head_dim),
            (rope if window is None else sliding_rope) if turns else None,
            window,
            family.qk_norm,
            qkv_bias=bias or family.bias == "qkv",
            output_bias=bias,
            query_scaling=_query_scaling(config) if family.query_scaling else None,
            gate=family.gate,
            sinks=family.sinks,
            source=source,
        )
        mixer = gemma.attention(config, mixer, place, family.gemma) if family.gemma else mixer
        return Layer(mixer, feed, family.norms, scalar=family.gemma == 4, inputs=inputs)

    return ModelConfig(
        architecture,
        vocab_size=count(config, "vocab_size"),
        width=width,
        layers=tuple(map(layer, range(num_layers), mixers, windows, turned, sources)),
        norm_eps=number(config, "rms_norm_eps"),
        tie_embeddings=flag(config, "tie_word_embeddings", False),
        max_positions=count(config, "max_position_embeddings") if rope is None else _positions(config, rope),
        norm_offset=family.norm_offset,
        **(gemma.whole(config, width) if family.gemma else {}),
    )


def _mixers(config: Mapping[str, Any], family: Family, num_layers: int) -> list[Delta | None]:
    """The Gated DeltaNet of each layer that is one."""
    if family.delta == "none":
        return [None] * num_layers
    interval = count(config, "full_attention_interval", 4)
    usual = ["linear_attention" if i % interval else "full_attention" for i in range(1, num_layers + 1)]
    types = usual if config.get("layer_types") is None else texts(config, "layer_types")
    if set(types) - {"linear_attention", "full_attention"} or len(types) != num_layers:
        raise UserError(
            f"config.json: field 'layer_types' must name 'full_attention' or 'linear_attention' for each of the "
            f"{num_layers} layers, not {shown(types)}."
        )
    heads = count(config, "num_attention_heads")
    key_heads = count(config, "linear_num_key_heads", heads)
    key_dim = count(config, "linear_key_head_dim", max(1, int(0.75 * count(config, "hidden_size") / key_heads)))
    mixer = Delta(
        key_heads,
        count(config, "linear_num_value_heads", heads),
        key_dim,
        count(config, "linear_value_head_dim", 2 * key_dim),
        count(config, "linear_conv_kernel_dim"),
        1e-5 if family.delta == "doubled" else number(config, "rms_norm_eps"),
        family.delta == "doubled" and flag(config, "linear_allow_neg_eigval", True),
    )
    return [mixer if kind == "linear_attention" else None for kind in types]


def _query_scaling(config: Mapping[str, Any]) -> QueryScaling:
    parameters = table(config, "rope_scaling") or table(config, "rope_parameters")
    beta = number(parameters, "llama_4_scaling_beta")
    return QueryScaling(beta, count(parameters, "original_max_position_embeddings"))


def _feed(config: Mapping[str, Any], family: Family, shared: bool) -> Feed:
    """Of a layer whose keys and values are shared, or not."""
    if family.gemma:
        return gemma.feed(config, shared)
    if not family.experts:
        return Dense(count(config, "intermediate_size"), family.activation)
    counts = count(config, "num_experts", most=10_000), count(config, "num_experts_per_tok")
    if family.clamped:
        return Experts(count(config, "intermediate_size"), *counts, True, activation="clamped", bias=True)
    normalised = family.shared or flag(config, "norm_topk_prob", False)
    width = count(config, "shared_expert_intermediate_size") if family.shared else 0
    return Experts(count(config, "moe_intermediate_size"), *counts, normalised, shared=width)


def _rope_to_hf(rope: Rope) -> dict[str, Any]:
    """rope_parameters of one rope, without its theta."""
    written: dict[str, Any] = {"rope_type": rope.kind}
    if rope.share != 1:
        written["partial_rotary_factor"] = rope.share
    if rope.kind != "default":
        written["factor"] = rope.factor
    if rope.kind == "proportional":
        written["partial_rotary_factor"] = rope.share
    if rope.kind in ("llama3", "yarn"):
        written["original_max_position_embeddings"] = rope.original_positions
    if rope.kind == "llama3":
        written |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        written |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "attention_factor": rope.attention_factor}
        written |= {} if rope.truncate else {"truncate": False}
    return written


def _windows_to_hf(cfg: ModelConfig, family: Family) -> dict[str, Any]:
    windows = [window for window in cfg.windows if window is not None]
    written: dict[str, Any] = {"use_sliding_window": bool(windows)} if family.windows in ("types", "all") else {}
    if windows or family.windows == "stated":
        written["sliding_window"] = windows[0] if windows else None
    if family.windows == "pattern" or (windows and family.windows == "types"):
        written["layer_types"] = ["full_attention" if window is None else "sliding_attention" for window in cfg.windows]
    if windows and family.windows == "types":
        written["max_window_layers"] = cfg.windows.index(windows[0])  # for readers that ignore layer_types
    return written


def _ropes_to_hf(cfg: ModelConfig, family: Family) -> dict[str, Any]:
    mixers = [cfg.layers[number].attention for number in cfg.attention_layers]
    ropes = {mixer.window is None: mixer.rope for mixer in mixers if mixer.rope is not None}
    if family.ropes == "optional" and not ropes:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": None}}
    full = ropes.get(True) or ropes.get(False) or Rope(10000.0)
    sliding = ropes.get(False) or full
    scaling, queries = _rope_to_hf(full), mixers[0].query_scaling
    if queries is not None:
        scaling["original_max_position_embeddings"] = queries.original_positions
        scaling["llama_4_scaling_beta"] = queries.beta
    parameters: dict[str, Any] = scaling | {"rope_theta": full.theta}
    if family.ropes == "windows":
        by_type = {
            "full_attention": parameters,
            "sliding_attention": _rope_to_hf(sliding) | {"rope_theta": sliding.theta},
        }
        parameters = by_type
    written = {"rope_theta": full.theta, "rope_parameters": parameters}
    if family.gemma == 3:
        written["rope_local_base_freq"] = sliding.theta
    if family.ropes == "listed":
        written["no_rope_layers"] = [int(mixer.rope is not None) for mixer in mixers]
    if full.kind in ("default", "proportional"):
        return written
    return written | {"rope_scaling": scaling}  # read by transformers up to 4


def _mixers_to_hf(cfg: ModelConfig, family: Family) -> dict[str, Any]:
    if family.delta == "none":
        return {}
    mixer = next((layer.mixer for layer in cfg.layers if isinstance(layer.mixer, Delta)), None)
    kinds = ["linear_attention" if isinstance(layer.mixer, Delta) else "full_attention" for layer in cfg.layers]
    written: dict[str, Any] = {"layer_types": kinds}
    if mixer is not None:
        written |= {
            "linear_num_key_heads": mixer.num_key_heads,
            "linear_num_value_heads": mixer.num_heads,
            "linear_key_head_dim": mixer.key_dim,
            "linear_value_head_dim": mixer.value_dim,
            "linear_conv_kernel_dim": mixer.taps,
        }
        written |= {"linear_allow_neg_eigval": mixer.doubled} if family.delta == "doubled" else {}
    return written


def _feed_to_hf(feed: Feed) -> dict[str, Any]:
    if isinstance(feed, Parallel):
        return {"intermediate_size": feed.dense.width}
    if isinstance(feed, Dense):
        return {"intermediate_size": feed.width}
    if feed.activation == "clamped":
        return {
            "intermediate_size": feed.width,
            "num_local_experts": feed.count,
            "num_experts_per_tok": feed.picked,
            "swiglu_limit": LIMIT,
        }
    if feed.shared:
        return {
            "moe_intermediate_size": feed.width,
            "shared_expert_intermediate_size": feed.shared,
            "num_experts": feed.count,
            "num_experts_per_tok": feed.picked,
        }
    return {
        "intermediate_size": feed.width,
        "moe_intermediate_size": feed.width,
        "num_experts": feed.count,
        "num_experts_per_tok": feed.picked,
        "norm_topk_prob": feed.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def in_wrapper(cfg: ModelConfig, config: Mapping[str, Any]) -> dict[str, Any]:
    """A wrapper's config.json with this decoder."""
    base, ours = table(config, "text_config"), to_hf(cfg)
    text = {**base, **ours}
    if "mrope_section" in table(base, "rope_parameters"):  # positions of images, which a decoder alone does not have
        text["rope_parameters"] = {**base["rope_parameters"], **ours["rope_parameters"]}
    return {**config, "text_config": text, "tie_word_embeddings": cfg.tie_embeddings}


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    """The contents of a Hugging Face config.json that both transformers 4 and 5 can read.

    Raises ValueError if the family's Hugging Face class cannot express the config.
    """
    family, mixer = FAMILIES[cfg.architecture], cfg.layers[cfg.attention_layers[0]].attention
    written: dict[str, Any] = {
        "architectures": [family.hf],
        "model_type": cfg.architecture,
        "vocab_size": cfg.vocab_size,
        "num_hidden_layers": cfg.num_layers,
        "hidden_size": cfg.width,
        "num_attention_heads": mixer.num_heads,
        "num_key_value_heads": mixer.num_kv_heads,
        "head_dim": mixer.head_dim,
        **_feed_to_hf(cfg.layers[0].feed),
        **dict((ACTIVATIONS[family.activation],)),
        **_ropes_to_hf(cfg, family),
        **_mixers_to_hf(cfg, family),
        "rms_norm_eps": cfg.norm_eps,
        "tie_word_embeddings": cfg.tie_embeddings,
        "max_position_embeddings": cfg.max_positions,
        **_windows_to_hf(cfg, family),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
    }
    if family.bias == "config":
        written["attention_bias"] = mixer.qkv_bias
    if family.padded:
        written["pad_token_id"] = None
    if family.gemma:
        written |= gemma.to_hf(cfg)
    if from_hf(written) != cfg:
        raise ValueError(f"A config.json of {family.hf} cannot express this ModelConfig: {cfg}.")
    return written
