"""Advantages against torch, with the statistics written as tensor operations over groups and over tokens."""

import numpy as np
import pytest

from scope_jax import advantages
from scope_jax.config import LossCard

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def rewards():
    """Four groups of three, one of them without spread, and how many tokens each episode has."""
    rng = np.random.default_rng(1)
    reward_PG = rng.normal(size=(4, 3))
    reward_PG[2] = 0.1
    return reward_PG, rng.integers(1, 40, (4, 3))


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("name", ["group-zscore", "group-mean", "batch-mean", "batch-zscore", "token-whiten", "none"])
def test_matches_torch(rewards, name, ddof):
    reward_PG, tokens_PG = rewards
    card = LossCard(advantage=name, advantage_ddof=ddof, advantage_eps=1e-6)
    r = torch.tensor(reward_PG)
    match name:
        case "group-zscore":
            wanted = (r - r.mean(1, keepdim=True)) / (r.std(1, correction=ddof, keepdim=True) + 1e-6)
            wanted[2] = 0
        case "group-mean":
            wanted = r - r.mean(1, keepdim=True)
            wanted[2] = 0
        case "batch-mean":
            wanted = r - r.mean()
        case "batch-zscore":
            wanted = (r - r.mean()) / (r.std(correction=ddof) + 1e-6)
        case "token-whiten":
            tokens = torch.repeat_interleave(r.flatten(), torch.tensor(tokens_PG.flatten()))
            white = (tokens - tokens.mean()) * torch.rsqrt(tokens.var(correction=1) + 1e-6)
            starts = torch.cumsum(torch.tensor(tokens_PG.flatten()), 0) - torch.tensor(tokens_PG.flatten())
            wanted = white[starts].reshape(4, 3)
        case _:
            wanted = r
    groups = [f"g{p}" for p in range(4) for _ in range(3)]
    ours = advantages.compute(reward_PG.flatten(), groups, tokens_PG.flatten().astype(np.float64), card)
    np.testing.assert_allclose(ours.reshape(4, 3), wanted.numpy(), rtol=1e-9, atol=1e-12)
    if name.startswith("group"):
        assert not ours.reshape(4, 3)[2].any()
