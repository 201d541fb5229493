"""Advantages: an episode's reward relative to those it is compared with.

`assign` computes them from the rewards of one role update, on the host, in float64; in the loss they are constants.
Episodes that are not trained are excluded: they get no advantage and do not enter a mean.

    group-zscore        (r − mean_g) / (std_g + eps)     GRPO (Shao et al. 2024, §4.1.2)
    group-mean          r − mean_g                       GRPO without the division (Liu et al. 2025; SSP Eq. (4))
    leave-one-out       r − mean of the others in g      RLOO (Ahmadian et al. 2024): G/(G − 1) times group-mean
    group-mean-whiten   whiten(r − mean_g)               REINFORCE++-baseline (Hu 2025)
    batch-mean          r − mean                         REINFORCE with the update's mean as baseline
    batch-zscore        (r − mean) / (std + eps)
    token-whiten        whiten(r)                        REINFORCE++ (Hu 2025)
    ema                 r − b_{t−1}                      SCORE §3.5: b_t = decay · b_{t−1} + (1 − decay) · mean r
    none                r                                REINFORCE (SSP Eq. (5))

whiten(x) = (x − μ) / √(σ² + eps), where every sampled token has its episode's x, and μ and σ² (unbiased) are taken over
all tokens of the update.

A group (or batch) whose rewards are all equal gives exactly zero, never 0/0; under group-mean-whiten the group's zeros
enter the whitening like any other value. A group of ONE has nothing to be compared with: its baseline is 0 and its
standard deviation 1, as in verl, so that the advantage is the raw reward (over 1 + eps for the z-score); the
alternative, zero, would silently train nothing if a role takes one sample per prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float

from scope_jax.config import AdvantageCard
from scope_jax.learner.types import Episode, Update


def sampled_tokens(episode: Episode) -> int:
    """Number of sampled tokens of the episode, over all its datums."""
    return sum(int(np.count_nonzero(datum.sampled_T)) for datum in episode.datums)


def _standardised(rewards_N: Float[np.ndarray, " N"], card: AdvantageCard, divide: bool) -> Float[np.ndarray, " N"]:
    """Distance from the mean of the given rewards, divided by their standard deviation if `divide`."""
    if len(rewards_N) == 1:
        return rewards_N / (1.0 + card.advantage_eps) if divide else rewards_N
    if rewards_N.max() == rewards_N.min():
        return np.zeros_like(rewards_N)
    centred_N = rewards_N - rewards_N.mean()
    return centred_N / (rewards_N.std(ddof=card.advantage_ddof) + card.advantage_eps) if divide else centred_N


def _by_group(
    rewards_N: Float[np.ndarray, " N"],
    groups: Sequence[str],
    one_group: Callable[[Float[np.ndarray, " G"]], Float[np.ndarray, " G"]],
) -> Float[np.ndarray, " N"]:
    members: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        members[group].append(place)
    advantage_N = np.empty_like(rewards_N)
    for places in members.values():
        advantage_N[places] = one_group(rewards_N[places])
    return advantage_N


def _left_out(rewards_G: Float[np.ndarray, " G"], card: AdvantageCard) -> Float[np.ndarray, " G"]:
    """Distance from the mean of the others: r − (Σ − r)/(G − 1) = (r − mean) · G/(G − 1)."""
    count = len(rewards_G)
    return _standardised(rewards_G, card, divide=False) * (count / max(count - 1, 1))


def _whitened(rewards_N: Float[np.ndarray, " N"], tokens_N: Float[np.ndarray, " N"], eps: float) -> np.ndarray:
    """Rewards normalised to mean 0 and variance 1 over all sampled tokens, each with its episode's reward."""
    total = tokens_N.sum()
    counted = rewards_N[tokens_N > 0]
    if len(counted) == 0 or counted.max() == counted.min():
        return np.zeros_like(rewards_N)
    mean = (tokens_N * rewards_N).sum() / total
    variance = (tokens_N * (rewards_N - mean) ** 2).sum() / (total - 1)
    return (rewards_N - mean) / np.sqrt(variance + eps)


def compute(
    rewards_N: Float[np.ndarray, " N"],
    groups: Sequence[str],
    tokens_N: Float[np.ndarray, " N"],
    card: AdvantageCard,
    baseline: float | None = None,
) -> Float[np.ndarray, " N"]:
    """Advantage of each episode from its reward, its group's name and its number of sampled tokens.

    baseline: b_{t−1} for "ema", None before the role's first update; ignored otherwise. Raises ValueError if a reward
    is not finite.
    """
    rewards_N = np.asarray(rewards_N, np.float64)
    if not np.isfinite(rewards_N).all():
        place = int(np.flatnonzero(~np.isfinite(rewards_N))[0])
        raise ValueError(
            f"The reward of an episode of group {groups[place]!r} is {rewards_N[place]}; rewards must be finite."
        )
    if len(rewards_N) == 0:
        return rewards_N
    tokens_N = np.asarray(tokens_N, np.float64)
    match card.advantage:
        case "group-zscore":
            return _by_group(rewards_N, groups, partial(_standardised, card=card, divide=True))
        case "group-mean":
            return _by_group(rewards_N, groups, partial(_standardised, card=card, divide=False))
        case "leave-one-out":
            return _by_group(rewards_N, groups, partial(_left_out, card=card))
        case "group-mean-whiten":
            centred_N = _by_group(rewards_N, groups, partial(_standardised, card=card, divide=False))
            return _whitened(centred_N, tokens_N, card.advantage_eps)
        case "batch-mean" | "batch-zscore":
            return _standardised(rewards_N, card, divide=card.advantage == "batch-zscore")
        case "token-whiten":
            return _whitened(rewards_N, tokens_N, card.advantage_eps)
        case "ema":
            return rewards_N - (card.ema_start if baseline is None else baseline)
        case "none":
            return rewards_N


def next_baseline(rewards_N: Float[np.ndarray, " N"], card: AdvantageCard, baseline: float | None) -> float | None:
    """b_t = ema_decay · b_{t−1} + (1 − ema_decay) · mean of the update's rewards.

    Unchanged if there are no rewards or the card has no moving baseline.
    """
    if card.advantage != "ema" or len(rewards_N) == 0:
        return baseline
    before = card.ema_start if baseline is None else baseline
    return card.ema_decay * before + (1.0 - card.ema_decay) * float(np.mean(rewards_N))


def assign(
    episodes: Sequence[Episode], card: AdvantageCard, baseline: float | None = None
) -> tuple[list[Episode], float | None]:
    """(episodes of one role update, in the same order, the trained ones with their advantage; the new baseline).

    baseline: the role's b_{t−1} for "ema", None before its first update. Raises ValueError if a reward is not finite.
    """
    trained = [place for place, episode in enumerate(episodes) if episode.trained]
    rewards_N = np.array([episodes[place].reward for place in trained], np.float64)
    advantage_N = compute(
        rewards_N,
        [episodes[place].group for place in trained],
        np.array([sampled_tokens(episodes[place]) for place in trained], np.float64),
        card,
        baseline,
    )
    assigned = list(episodes)
    for place, advantage in zip(trained, advantage_N, strict=True):
        assigned[place] = episodes[place].with_advantage(float(advantage))
    return assigned, next_baseline(rewards_N, card, baseline)


@dataclass(frozen=True)
class RatedEpisodes:
    """The episodes of a step as one of its updates trains them."""

    episodes: list[Episode]
    """All, in order; those of the update have its weights and, if they are trained by rewards, their advantages."""
    places: list[int]
    """Which of them are of the update, in order."""
    baselines: dict[str, float]
    """The moving baselines of its roles after it, by role; of rules without one there is none."""


def for_update(update: Update, episodes: Sequence[Episode], baselines: Mapping[str, float]) -> RatedEpisodes:
    """The episodes of a step for an update. baselines: moving ones before it, by "policy/role"."""
    rated = list(episodes)
    chosen: list[int] = []
    after: dict[str, float] = {}
    for share in update.roles:
        places = [i for i, e in enumerate(rated) if e.role == share.role and e.policy == update.policy]
        members = [rated[i] for i in places]
        if update.card.objective == "policy":
            rule = share.advantage or update.card
            members, baseline = assign(members, rule, baselines.get(f"{update.policy}/{share.role}"))
            if baseline is not None:
                after[share.role] = baseline
        for i, episode in zip(places, members, strict=True):
            rated[i] = replace(episode, weight=share.weight)
        chosen += places
    return RatedEpisodes(rated, sorted(chosen), after)
