"""Models whose layers differ in window and rope at most, described by the figures that tests vary."""

from typing import Any

from scope_jax.models.decoder.config import Attention, Dense, Experts, Layer, ModelConfig, Parallel
from scope_jax.models.kernels.rope import Rope


def uniform(
    architecture: str,
    vocab_size: int,
    num_layers: int,
    width: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    ffn_width: int,
    rope: Rope | None,
    norm_eps: float,
    tie_embeddings: bool,
    qk_norm: Any,
    qkv_bias: bool,
    output_bias: bool,
    max_positions: int,
    norm: Any = "pre",
    layer_windows: tuple[int | None, ...] = (),
    sliding_rope: Rope | None = None,
    num_experts: int = 0,
    experts_per_token: int = 0,
    norm_topk_prob: bool = False,
) -> ModelConfig:
    """sliding_rope: of layers with a window, None: the same. num_experts: 0 for dense layers."""
    feed: Any = Dense(ffn_width)
    if num_experts:
        feed = Experts(ffn_width, num_experts, experts_per_token, norm_topk_prob)
    heads = num_heads, num_kv_heads, head_dim
    windows = layer_windows if any(layer_windows) else (None,) * num_layers
    assert len(windows) == num_layers

    def layer(window: int | None) -> Layer:
        turns = rope if window is None or sliding_rope is None else sliding_rope
        return Layer(Attention(*heads, turns, window, qk_norm, qkv_bias, output_bias), feed, norm)

    layers = tuple(map(layer, windows))
    return ModelConfig(architecture, vocab_size, width, layers, norm_eps, tie_embeddings, max_positions)


def figures(cfg: ModelConfig) -> dict[str, Any]:
    """The arguments of `uniform` that give this model."""
    mixer, feed = cfg.layers[0].attention, cfg.layers[0].feed
    assert not isinstance(feed, Parallel)
    experts = {"num_experts": 0, "experts_per_token": 0, "norm_topk_prob": False}
    if isinstance(feed, Experts):
        experts = {"num_experts": feed.count, "experts_per_token": feed.picked, "norm_topk_prob": feed.normalised}
    ropes = {layer.attention.window is None: layer.attention.rope for layer in cfg.layers}
    return {
        **{name: getattr(cfg, name) for name in ("architecture", "vocab_size", "num_layers", "width", "norm_eps")},
        **{name: getattr(cfg, name) for name in ("tie_embeddings", "max_positions")},
        **{name: getattr(mixer, name) for name in ("num_heads", "num_kv_heads", "head_dim", "qk_norm")},
        **{name: getattr(mixer, name) for name in ("qkv_bias", "output_bias")},
        "ffn_width": feed.width,
        "rope": ropes.get(True, mixer.rope),
        "sliding_rope": ropes.get(False),
        "norm": cfg.layers[0].norms,
        "layer_windows": cfg.windows,
        **experts,
    }


def rope_of(cfg: ModelConfig, windowed: bool = False) -> Rope:
    """The rotary positions of layers with a window, or without."""
    rope = next(layer.attention.rope for layer in cfg.layers if (layer.attention.window is not None) == windowed)
    assert rope is not None
    return rope


def like(cfg: ModelConfig, **changes: Any) -> ModelConfig:
    """The model with other figures."""
    return uniform(**(figures(cfg) | changes))
