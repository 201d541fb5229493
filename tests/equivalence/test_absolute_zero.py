"""Task-relative advantages of Absolute Zero against torch: each role's episodes by themselves, in both forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scope_jax.config import LossCard
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection
from scope_jax.learner.advantages import assign
from scope_jax.learner.types import Datum, Episode

ROLES = [f"{kind}_{task}" for kind in ("propose", "solve") for task in ("deduction", "abduction", "induction")]
REWARDS = {"propose": (-1.0, 0.0, 0.125, 0.5, 0.875), "solve": (-1.0, -0.5, 1.0)}


def episodes(role: str, count: int, rng: np.random.Generator) -> list[Episode]:
    made = []
    for place in range(count):
        size = int(rng.integers(1, 40))
        datum = Datum(np.arange(size + 3), np.arange(size + 3) >= 3, np.zeros(size + 3, np.float32))
        reward = float(rng.choice(REWARDS[role.split("_")[0]]))
        made.append(Episode(role, "actor", f"{place}", (datum,), reward))
    return made


def whitened(rewards: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Of each sequence: its reward at every token, minus the mean of all tokens, over their deviation (unbiased)."""
    mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).double()
    values = rewards[:, None] * mask
    mean = values.sum() / mask.sum()
    variance = (((values - mean) ** 2) * mask).sum() / mask.sum()
    variance = variance * mask.sum() / (mask.sum() - 1)
    return ((values - mean) * torch.rsqrt(variance + 1e-8))[:, 0]


@pytest.mark.parametrize("seed", range(3))
def test_advantages_equal_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    paper = AbsoluteZeroSection().loss
    released = LossCard(advantage="token-whiten", advantage_eps=1e-8)
    for role in ROLES:
        own = episodes(role, 64, rng)
        rewards = torch.tensor([one.reward for one in own], dtype=torch.float64)
        lengths = torch.tensor([int(one.datums[0].sampled_T.sum()) for one in own])
        scaled = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for card, expected in ((paper, scaled), (released, whitened(rewards, lengths))):
            found = np.array([one.advantage for one in assign(own, card)[0]], float)
            np.testing.assert_allclose(found, expected.numpy(), rtol=1e-10, atol=1e-12)
