"""Advantages: how much better an episode did than the ones it is compared with.

`assign` looks at the rewards of one role update on the host, in float64; the numbers are then constants of the loss.
Episodes that are not trained take no part: they neither get an advantage nor enter a mean.

    group-zscore   (r − mean_g) / (std_g + eps)          GRPO (Shao et al. 2024, §4.1.2)
    group-mean     r − mean_g                            GRPO without the division (Liu et al. 2025; SSP Eq. (4))
    batch-mean     r − mean                              REINFORCE with the update's mean as baseline
    batch-zscore   (r − mean) / (std + eps)
    token-whiten   (r − μ) / √(σ² + eps), μ and σ² over all sampled tokens, σ² unbiased      REINFORCE++ (Hu 2025)
    none           r                                     REINFORCE (SSP Eq. (5))

A group (or batch) whose rewards are all equal gives exactly zero, never 0/0. A group of ONE has nothing to be compared
with: its baseline is 0 and its deviation 1, as in verl, so that the advantage is the raw reward (over 1 + eps for the
z-score); the alternative, zero, would silently train nothing when a role takes one sample per prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from scope_jax.config import LossCard
from scope_jax.types import Episode


def sampled_tokens(episode: Episode) -> int:
    """How many tokens of the episode the policy chose, over all its datums."""
    return sum(int(np.count_nonzero(datum.sampled_T)) for datum in episode.datums)


def _standardised(rewards_N: Float[np.ndarray, " N"], card: LossCard, divide: bool) -> Float[np.ndarray, " N"]:
    """Distance from the mean of the rewards given, divided by their deviation if asked."""
    if len(rewards_N) == 1:
        return rewards_N / (1.0 + card.advantage_eps) if divide else rewards_N
    if rewards_N.max() == rewards_N.min():
        return np.zeros_like(rewards_N)
    centred_N = rewards_N - rewards_N.mean()
    return centred_N / (rewards_N.std(ddof=card.advantage_ddof) + card.advantage_eps) if divide else centred_N


def _by_group(rewards_N: Float[np.ndarray, " N"], groups: Sequence[str], card: LossCard, divide: bool) -> np.ndarray:
    members: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        members[group].append(place)
    advantage_N = np.empty_like(rewards_N)
    for places in members.values():
        advantage_N[places] = _standardised(rewards_N[places], card, divide)
    return advantage_N


def _whitened(rewards_N: Float[np.ndarray, " N"], tokens_N: Float[np.ndarray, " N"], eps: float) -> np.ndarray:
    """Every sampled token carries its episode's reward; the tokens are brought to mean 0 and variance 1."""
    total = tokens_N.sum()
    counted = rewards_N[tokens_N > 0]
    if len(counted) == 0 or counted.max() == counted.min():
        return np.zeros_like(rewards_N)
    mean = (tokens_N * rewards_N).sum() / total
    variance = (tokens_N * (rewards_N - mean) ** 2).sum() / (total - 1)
    return (rewards_N - mean) / np.sqrt(variance + eps)


def compute(
    rewards_N: Float[np.ndarray, " N"], groups: Sequence[str], tokens_N: Float[np.ndarray, " N"], card: LossCard
) -> Float[np.ndarray, " N"]:
    """Advantage of each episode from its reward, its group's name and its number of sampled tokens.

    Raises ValueError if a reward is not finite.
    """
    rewards_N = np.asarray(rewards_N, np.float64)
    if not np.isfinite(rewards_N).all():
        place = int(np.flatnonzero(~np.isfinite(rewards_N))[0])
        raise ValueError(
            f"The reward of an episode of group {groups[place]!r} is {rewards_N[place]}; rewards must be finite."
        )
    if len(rewards_N) == 0:
        return rewards_N
    match card.advantage:
        case "group-zscore" | "group-mean":
            return _by_group(rewards_N, groups, card, divide=card.advantage == "group-zscore")
        case "batch-mean" | "batch-zscore":
            return _standardised(rewards_N, card, divide=card.advantage == "batch-zscore")
        case "token-whiten":
            return _whitened(rewards_N, np.asarray(tokens_N, np.float64), card.advantage_eps)
        case "none":
            return rewards_N


def assign(episodes: Sequence[Episode], card: LossCard) -> list[Episode]:
    """The episodes of one role update, in the same order, the trained ones with their advantage.

    Raises ValueError if a reward is not finite.
    """
    trained = [place for place, episode in enumerate(episodes) if episode.trained]
    advantage_N = compute(
        np.array([episodes[place].reward for place in trained], np.float64),
        [episodes[place].group for place in trained],
        np.array([sampled_tokens(episodes[place]) for place in trained], np.float64),
        card,
    )
    assigned = list(episodes)
    for place, advantage in zip(trained, advantage_N, strict=True):
        assigned[place] = episodes[place].with_advantage(float(advantage))
    return assigned
