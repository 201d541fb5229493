"""A tiny gpt-oss, with the vocabulary of the engine's tests."""

from typing import Any

from scope_jax.models.decoder.config import Attention, Experts, Layer, ModelConfig
from scope_jax.models.kernels.rope import Rope
from tests.rollouts.world import make_params

YARN = Rope(1.5e5, "yarn", 4.0, 64, truncate=False, attention_factor=1.14)


def layer(window: int | None) -> Layer:
    mixer = Attention(4, 2, 16, YARN, window, qkv_bias=True, output_bias=True, sinks=True)
    return Layer(mixer, Experts(16, 8, 2, normalised=True, activation="clamped", bias=True))


CFG = ModelConfig("gpt_oss", 264, 32, (layer(8), layer(None)), 1e-5, False, 2048)


def weights(cfg: ModelConfig) -> Any:
    """Random weights whose biases are not 0, with sinks as large as scores."""
    params = make_params(cfg)
    layers = params["layers"]
    return params | {"layers": layers | {"sinks_H": 8 * layers["sinks_H"]}}
