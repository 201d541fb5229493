"""Advantages against torch, whose statistics are tensor operations over groups and over tokens."""

import itertools

import numpy as np
import pytest

from scope_jax.config import LossCard
from scope_jax.learner import advantages

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def rewards():
    """Four groups of three, one of them without spread, and how many tokens each episode has."""
    rng = np.random.default_rng(1)
    reward_PG = rng.normal(size=(4, 3))
    reward_PG[2] = 0.1
    return reward_PG, rng.integers(1, 40, (4, 3))


NAMES = ["group-zscore", "group-mean", "leave-one-out", "group-mean-whiten", "batch-mean", "batch-zscore"]


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("name", [*NAMES, "token-whiten", "ema", "none"])
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
        case "leave-one-out":
            wanted = torch.stack([r[:, i] - (r.sum(1) - r[:, i]) / 2 for i in range(3)], 1)
            wanted[2] = 0
        case "ema":
            wanted = r - 0.4
        case "batch-mean":
            wanted = r - r.mean()
        case "batch-zscore":
            wanted = (r - r.mean()) / (r.std(correction=ddof) + 1e-6)
        case "token-whiten" | "group-mean-whiten":
            values = r if name == "token-whiten" else r - r.mean(1, keepdim=True)
            tokens = torch.repeat_interleave(values.flatten(), torch.tensor(tokens_PG.flatten()))
            white = (tokens - tokens.mean()) * torch.rsqrt(tokens.var(correction=1) + 1e-6)
            starts = torch.cumsum(torch.tensor(tokens_PG.flatten()), 0) - torch.tensor(tokens_PG.flatten())
            wanted = white[starts].reshape(4, 3)
        case _:
            wanted = r
    groups = [f"g{p}" for p in range(4) for _ in range(3)]
    ours = advantages.compute(reward_PG.flatten(), groups, tokens_PG.flatten().astype(np.float64), card, 0.4)
    np.testing.assert_allclose(ours.reshape(4, 3), wanted.numpy(), rtol=1e-10, atol=1e-14)
    if name in ("group-zscore", "group-mean", "leave-one-out"):
        assert not ours.reshape(4, 3)[2].any()


@pytest.mark.parametrize(
    ("name", "share"),
    [("none", 1.0), ("ema", 1.0), ("leave-one-out", 1.0), ("group-mean", 2 / 3), ("batch-mean", 2 / 3)],
)
def test_expected_policy_gradient(name, share):
    """The expectation of mean A ∇log π over all groups of three draws is ∇E[r], or (1 − 1/G) of it if the baseline is a
    mean that includes the draw itself. Enumerated over a vocabulary of four."""
    logits = torch.tensor([0.3, -0.5, 0.1, 0.9], dtype=torch.float64, requires_grad=True)
    rewards_V = torch.tensor([1.0, -0.2, 0.4, 0.7], dtype=torch.float64)
    probs_V = torch.softmax(logits, 0)
    (exact,) = torch.autograd.grad((probs_V * rewards_V).sum(), logits)
    probs_V = probs_V.detach()
    card, expected = LossCard(advantage=name), np.zeros(4)
    slopes = np.eye(4) - probs_V.numpy()  # row v: ∂log π(v)/∂logits
    for draws in itertools.product(range(4), repeat=3):
        drawn = list(draws)
        chance = float(probs_V[drawn].prod())
        advantage_N = advantages.compute(rewards_V.numpy()[drawn], ["g"] * 3, np.ones(3), card, 0.25)
        expected += chance * (advantage_N[:, None] * slopes[drawn]).mean(0)
    np.testing.assert_allclose(expected, share * exact.numpy(), rtol=1e-12)
