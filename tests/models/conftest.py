import jax
import numpy as np
import pytest

from models.config import ModelConfig
from models.transformer import declare
from sharding.spec import init_params


@pytest.fixture(scope="session")
def tiny() -> ModelConfig:
    """Two layers, two query heads for each kv head, head_dim that is not width / heads, untied."""
    return ModelConfig(
        architecture="qwen3",
        vocab_size=64,
        num_layers=2,
        width=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=12,
        ffn_width=48,
        rope_theta=10000.0,
        norm_eps=1e-6,
        tie_embeddings=False,
        qk_norm=True,
        attention_bias=True,
        max_positions=128,
    )


@pytest.fixture(scope="session")
def params(tiny):
    params = jax.jit(lambda: init_params(declare(tiny), jax.random.key(0)))()
    # Biases and norms start at 0 and 1: other values let a mistake show.
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), params)
