"""Small batches of episodes and a small model, shared by the tests in this folder."""

import jax
import numpy as np
import pytest

from scope_jax.learner.types import Datum, Episode
from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.kernels.rope import Rope
from scope_jax.sharding.spec import init_params
from tests.shapes import uniform

TINY = uniform(
    architecture="qwen3",
    vocab_size=72,  # differs from all other sizes
    num_layers=2,
    width=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn_width=48,
    rope=Rope(10000.0),
    norm_eps=1e-6,
    tie_embeddings=True,
    qk_norm="head",
    qkv_bias=False,
    output_bias=False,
    max_positions=128,
)


def datum_of(ids, sampled, logprobs=None) -> Datum:
    ids, sampled = np.asarray(ids, np.int32), np.asarray(sampled, bool)
    return Datum(ids, sampled, np.zeros(len(ids), np.float32) if logprobs is None else np.asarray(logprobs, np.float32))


def episode_of(*datums: Datum, group="g", reward=0.0, advantage=None, trained=True) -> Episode:
    return Episode("solver", "actor", group, datums, reward, advantage=advantage, trained=trained)


def random_episodes(count: int, groups: int, seed: int = 0) -> list[Episode]:
    """Prompt, sampled tokens, an observation, sampled tokens; behaviour log-probs around −4; normal advantages."""
    rng = np.random.default_rng(seed)
    episodes = []
    for number in range(count):
        sizes = np.array([rng.integers(1, 6), rng.integers(1, 9), 4, rng.integers(0, 5)])
        sampled = np.repeat([False, True, False, True], sizes)
        ids = rng.integers(0, 64, len(sampled))
        logprobs = np.where(sampled, -4 + rng.normal(size=len(sampled)) / 4, 0)
        reward = float(rng.normal())
        group = f"g{number * groups // count}"
        episodes.append(episode_of(datum_of(ids, sampled, logprobs), group=group, reward=reward, advantage=reward))
    return episodes


@pytest.fixture(scope="session")
def tiny() -> ModelConfig:
    return TINY


def weights_of(cfg: ModelConfig):
    """Weights that preserve the scale of activations: no flat distributions, and rounding is not amplified."""
    params = init_params(transformer.declare(cfg), jax.random.key(0))
    params = jax.tree.map(lambda weight: weight * 8 if weight.ndim > 2 else weight, params)
    return params | {"embed": {"table_VD": params["embed"]["table_VD"] * 25}}


@pytest.fixture(scope="session")
def tiny_params():
    return weights_of(TINY)


@pytest.fixture(scope="session")
def make():
    """(datum_of, episode_of, random_episodes) for tests that build their own."""
    return datum_of, episode_of, random_episodes
