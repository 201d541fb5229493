"""The configuration of a decoder, and conversion from and to Hugging Face config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scope_jax.errors import UserError
from scope_jax.models.defaults import completed
from scope_jax.models.fields import MOST, count, cut, flag, number, shown, table, texts
from scope_jax.models.rope import Rope

QkNorm = Literal["none", "head", "width"]
TABLE_MULTIPLE = 512  # 8 rows, the tile of a TPU, on each of 64 devices
TABLE_PADDED = 2**14  # the padding of smaller vocabularies would be a considerable part of the work


@dataclass(frozen=True)
class Family:
    """Properties that a Hugging Face class fixes and its config.json does not state.

    bias: "config": attention_bias puts biases on all four attention projections; "qkv": always on q, k and v. windows:
    which layers use the sliding window: "none", "types" (layer_types, or from layer max_window_layers on), "pattern"
    (layer_types, or three of four), "all". layer_ropes: sliding layers keep unscaled rotary positions. What a
    config.json leaves out is in `models.defaults`.
    """

    hf: str
    qk_norm: QkNorm
    norm: Literal["pre", "post"]
    bias: Literal["config", "qkv"]
    windows: Literal["none", "types", "pattern", "all"]
    layer_ropes: bool
    experts: bool


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "none", "pre", "config", "none", False, False),
    "qwen2": Family("Qwen2ForCausalLM", "none", "pre", "qkv", "types", False, False),
    "qwen3": Family("Qwen3ForCausalLM", "head", "pre", "config", "types", False, False),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", "head", "pre", "config", "all", False, True),
    "olmo3": Family("Olmo3ForCausalLM", "width", "post", "config", "pattern", True, False),
}


@dataclass(frozen=True)
class ModelConfig:
    """Shape and conventions of one decoder.

    architecture: our name of the family. ffn_width: of the feed-forward layer, or of one expert. rope: rotary positions
    of full-attention layers; sliding_rope: of sliding-window layers (None: the same). qk_norm: RMSNorm of queries and
    keys before rotation: over each "head", over the whole projection's "width", or "none". qkv_bias, output_bias:
    biases on the attention projections. max_positions: the model's longest context. norm: "pre" x + f(norm(x)), "post"
    x + norm(f(x)). layer_windows: for each layer the number of tokens a token attends to, itself included, or None for
    all. num_experts: 0 for a dense feed-forward layer. experts_per_token: how many the router picks. norm_topk_prob:
    the weights of the picked experts are divided by their sum. tie_embeddings: the output table is the embedding table.
    expert_kernels: whether experts may use the platform's kernels (no property of the model: `run.kernels` says so).
    The defaults are those of a plain dense decoder.
    """

    architecture: str
    vocab_size: int  # V
    num_layers: int  # L
    width: int  # D
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # h
    ffn_width: int  # F
    rope: Rope
    norm_eps: float
    tie_embeddings: bool
    qk_norm: QkNorm
    qkv_bias: bool
    output_bias: bool
    max_positions: int
    norm: Literal["pre", "post"] = "pre"
    layer_windows: tuple[int | None, ...] = ()
    sliding_rope: Rope | None = None
    num_experts: int = 0  # X
    experts_per_token: int = 0
    norm_topk_prob: bool = False
    expert_kernels: bool = True

    def __post_init__(self) -> None:
        if self.architecture not in FAMILIES:
            raise UserError(f"ModelConfig.architecture is {self.architecture!r}; supported are {', '.join(FAMILIES)}.")
        sizes = ("vocab_size", "num_layers", "width", "num_heads", "num_kv_heads", "head_dim", "ffn_width")
        for name in (*sizes, "max_positions"):
            if vars(self)[name] < 1:
                raise UserError(f"ModelConfig.{name} is {vars(self)[name]}; it must be at least 1.")
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"ModelConfig.num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})."
            )
        if self.head_dim % 2:
            raise UserError(f"ModelConfig.head_dim ({self.head_dim}) must be even for rotary embeddings.")
        if FAMILIES[self.architecture].experts and not self.num_experts:
            raise UserError(f"ModelConfig.num_experts is 0; the architecture {self.architecture!r} needs experts.")
        if self.num_experts and not 0 < self.experts_per_token <= self.num_experts:
            raise UserError(
                f"ModelConfig.experts_per_token ({self.experts_per_token}) must be 1 to num_experts "
                f"({self.num_experts})."
            )
        # Equal models get equal configs: one window per layer, and a second rope only where it makes a difference.
        if all(window is None for window in self.layer_windows):
            object.__setattr__(self, "layer_windows", (None,) * self.num_layers)
            object.__setattr__(self, "sliding_rope", None)
        if self.sliding_rope == self.rope:
            object.__setattr__(self, "sliding_rope", None)
        if len(self.layer_windows) != self.num_layers:
            raise UserError(
                f"ModelConfig.layer_windows has {len(self.layer_windows)} entries; give one for each of the "
                f"{self.num_layers} layers."
            )
        if any(window is not None and window < 1 for window in self.layer_windows):
            raise UserError(f"ModelConfig.layer_windows {self.layer_windows} holds a window below 1 token.")

    @property
    def table_rows(self) -> int:
        """Rows of the embedding and output tables: V, rounded up to a multiple of TABLE_MULTIPLE from TABLE_PADDED on.

        Any usual number of devices then divides them, and TPU compilers scatter their gradients natively. No token has
        an id from V on, and log-probs and sampling leave these rows out.
        """
        padded = -(-self.vocab_size // TABLE_MULTIPLE) * TABLE_MULTIPLE
        return padded if self.vocab_size >= TABLE_PADDED else self.vocab_size

    def layer_rope(self, window: int | None) -> Rope:
        """Rotary positions of a layer with this window."""
        return self.rope if window is None or self.sliding_rope is None else self.sliding_rope


def _rope(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> Rope:
    """A Rope from one set of parameters; missing ones come from config.json."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    theta = number(parameters if "rope_theta" in parameters else config, "rope_theta")
    if theta <= 1:
        raise UserError(f"config.json: field 'rope_theta' is {theta}; it must be above 1.")
    for source in (parameters, config):
        share = source.get("partial_rotary_factor")
        if share not in (None, 1, 1.0):
            raise UserError(
                f"config.json: field 'partial_rotary_factor' is {shown(share)}; only whole heads are rotated."
            )
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise UserError("config.json gives rotary parameters by layer type, which only OLMo-3 has; correct them.")
    if kind == "default":
        return Rope(theta)
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


def _ropes(config: Mapping[str, Any], stated: Mapping[str, Any], family: Family) -> tuple[Rope, Rope | None]:
    """(rope of full layers, of sliding layers). transformers up to 4 writes rope_theta and rope_scaling; from 5 on,
    rope_parameters holds both, keyed by layer type where a family has several.

    Whoever adds rope_scaling to a config of the newer form keeps its theta, and with OLMo-3 its sliding layers.
    """
    newer, scaling = table(config, "rope_parameters"), table(config, "rope_scaling")
    if family.layer_ropes and ("full_attention" in newer or "sliding_attention" in newer):
        full, sliding = (table(newer, name) for name in ("full_attention", "sliding_attention"))
        return _rope({**full, **scaling}, config), _rope(sliding, config)
    theta = {"rope_theta": newer["rope_theta"]} if "rope_theta" in newer and "rope_theta" not in stated else {}
    full = _rope({**theta, **scaling} if scaling else newer, config)
    return full, Rope(full.theta) if family.layer_ropes else None


def _windows(config: Mapping[str, Any], family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    if family.windows == "none":
        return (None,) * num_layers
    switched_off = family.windows != "pattern" and not flag(config, "use_sliding_window", False)
    window = None if switched_off or config["sliding_window"] is None else count(config, "sliding_window")
    if family.windows == "all":
        return (window,) * num_layers
    types = None if config.get("layer_types") is None else texts(config, "layer_types")
    if types is None and family.windows == "types":
        first = num_layers if window is None else count(config, "max_window_layers", least=0)
        types = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    elif types is None:
        types = ["full_attention" if i % 4 == 3 else "sliding_attention" for i in range(num_layers)]
    strange = set(types) - {"sliding_attention", "full_attention"}
    if strange or len(types) != num_layers:
        raise UserError(
            f"config.json: field 'layer_types' must name 'full_attention' or 'sliding_attention' for each of the "
            f"{num_layers} layers, not {shown(types)}."
        )
    if "sliding_attention" in types and window is None:
        raise UserError("config.json: 'layer_types' has sliding layers, but 'sliding_window' is not set or not used.")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _refuse(config: Mapping[str, Any]) -> None:
    """Raises ValueError for settings that no supported family implements."""
    wanted = {
        "hidden_act": ("silu", "silu"),
        "mlp_bias": (False, "False"),
        "decoder_sparse_step": (1, "1"),
    }
    for name, (value, supported) in wanted.items():
        if config.get(name, value) != value:
            raise UserError(f"config.json: field {name!r} is {cut(repr(config[name]))}; only {supported} is supported.")
    if config.get("mlp_only_layers"):
        raise UserError(
            f"config.json: field 'mlp_only_layers' is {cut(repr(config['mlp_only_layers']))}; only models with "
            "experts in every layer are supported."
        )
    if config.get("quantization_config"):
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
        known = ", ".join(family.hf for family in FAMILIES.values())
        raise UserError(f"config.json: field 'architectures' is {shown(names)}; supported are {known}.")
    return architecture


def from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """ModelConfig from the contents of a Hugging Face config.json, as transformers 4 or 5 writes it.

    What it leaves out has the defaults of its class (`models.defaults`), and model_type names the class where
    architectures does not. Raises ValueError naming the field that is missing or not supported.
    """
    architecture = _architecture(config)
    _refuse(config)
    family, stated = FAMILIES[architecture], config
    config = completed(architecture, stated)
    num_layers, num_heads = count(config, "num_hidden_layers", most=10_000), count(config, "num_attention_heads")
    width = count(config, "hidden_size")
    rope, sliding_rope = _ropes(config, stated, family)
    bias = flag(config, "attention_bias", False)
    experts: dict[str, Any] = {}
    if family.experts:
        experts = {
            "num_experts": count(config, "num_experts", most=10_000),
            "experts_per_token": count(config, "num_experts_per_tok"),
            "norm_topk_prob": flag(config, "norm_topk_prob", False),
        }
    return ModelConfig(
        architecture=architecture,
        vocab_size=count(config, "vocab_size"),
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        num_kv_heads=count(config, "num_key_value_heads", num_heads),
        head_dim=count(config, "head_dim", width // num_heads),
        ffn_width=count(config, "moe_intermediate_size" if family.experts else "intermediate_size"),
        rope=rope,
        norm_eps=number(config, "rms_norm_eps"),
        tie_embeddings=flag(config, "tie_word_embeddings", False),
        qk_norm=family.qk_norm,
        qkv_bias=bias or family.bias == "qkv",
        output_bias=bias and family.bias == "config",
        max_positions=_positions(config, rope),
        norm=family.norm,
        layer_windows=_windows(config, family, num_layers),
        sliding_rope=sliding_rope,
        **experts,
    )


def _rope_to_hf(rope: Rope) -> dict[str, Any]:
    """rope_parameters of one rope, without its theta."""
    written: dict[str, Any] = {"rope_type": rope.kind}
    if rope.kind != "default":
        written["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        written["original_max_position_embeddings"] = rope.original_positions
    if rope.kind == "llama3":
        written |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        written |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "attention_factor": rope.attention_factor}
        written |= {} if rope.truncate else {"truncate": False}
    return written


def _windows_to_hf(cfg: ModelConfig, family: Family) -> dict[str, Any]:
    windows = [window for window in cfg.layer_windows if window is not None]
    written: dict[str, Any] = {"use_sliding_window": bool(windows)} if family.windows in ("types", "all") else {}
    if windows:
        written["sliding_window"] = windows[0]
    if family.windows == "pattern" or (windows and family.windows == "types"):
        written["layer_types"] = [
            "full_attention" if window is None else "sliding_attention" for window in cfg.layer_windows
        ]
    if windows and family.windows == "types":
        written["max_window_layers"] = cfg.layer_windows.index(windows[0])  # for readers that ignore layer_types
    return written


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    """The contents of a Hugging Face config.json that both transformers 4 and 5 can read.

    Raises ValueError if the family's Hugging Face class cannot express the config.
    """
    family = FAMILIES[cfg.architecture]
    parameters = _rope_to_hf(cfg.rope)
    written: dict[str, Any] = {
        "architectures": [family.hf],
        "model_type": cfg.architecture,
        "vocab_size": cfg.vocab_size,
        "num_hidden_layers": cfg.num_layers,
        "hidden_size": cfg.width,
        "num_attention_heads": cfg.num_heads,
        "num_key_value_heads": cfg.num_kv_heads,
        "head_dim": cfg.head_dim,
        "intermediate_size": cfg.ffn_width,
        "hidden_act": "silu",
        "rope_theta": cfg.rope.theta,
        "rope_parameters": parameters | {"rope_theta": cfg.rope.theta},
        "rms_norm_eps": cfg.norm_eps,
        "tie_word_embeddings": cfg.tie_embeddings,
        "attention_bias": cfg.qkv_bias,
        "max_position_embeddings": cfg.max_positions,
        **_windows_to_hf(cfg, family),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
    }
    if family.layer_ropes:
        sliding = cfg.sliding_rope or cfg.rope
        written["rope_parameters"] = {
            "full_attention": written["rope_parameters"],
            "sliding_attention": _rope_to_hf(sliding) | {"rope_theta": sliding.theta},
        }
    if cfg.rope.kind != "default":
        written["rope_scaling"] = parameters  # read by transformers up to 4
    if family.bias == "qkv":
        del written["attention_bias"]
    if family.experts:
        written |= {
            "num_experts": cfg.num_experts,
            "num_experts_per_tok": cfg.experts_per_token,
            "moe_intermediate_size": cfg.ffn_width,
            "norm_topk_prob": cfg.norm_topk_prob,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if from_hf(written) != cfg:
        raise ValueError(f"A config.json of {family.hf} cannot express this ModelConfig: {cfg}.")
    return written
