"""Which episodes are trained in an update, which of them have a term in its loss, and their division into
mini-batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scope_jax.config import LossCard
from scope_jax.errors import UserError
from scope_jax.learner.advantages import sampled_tokens
from scope_jax.learner.types import Datum, Episode


def split(episodes: Sequence[Episode], parts: int) -> list[list[Episode]]:
    """The episodes in at most `parts` mini-batches with nearly equal numbers of groups of every role, in order; groups
    stay whole."""
    roles: dict[str, dict[str, list[Episode]]] = {}
    for episode in episodes:
        roles.setdefault(episode.role, {}).setdefault(episode.group, []).append(episode)
    count = min(parts, max(map(len, roles.values()), default=0))
    made: list[list[Episode]] = [[] for _ in range(count)]
    for groups in roles.values():
        members = list(groups.values())
        for place, group in enumerate(members):
            made[((place + 1) * count - 1) // len(members)] += group
    return made


def trainable(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes that are trained and have at least one sampled token."""
    return [episode for episode in episodes if episode.trained and sampled_tokens(episode)]


def has_term(episode: Episode, card: LossCard) -> bool:
    """Whether the episode has any term in a loss with this card. One without counts in the divisor and nowhere else, so
    the model need not see it: its weight is 0, or its advantage and credits are 0 and there is no term of a KL, a
    teacher or the entropy.

    A KL that is only measured (kl_coef = 0) is over all episodes, and so is a teacher's. A pair of DPO always has
    terms.
    """
    if card.objective == "dpo":
        return True
    compared = card.kl != "none" or card.teacher != "none" or card.entropy_coef > 0
    return episode.weight != 0 and (
        card.objective == "supervised" or episode.advantage != 0 or compared or any(map(_has_credit, episode.datums))
    )


def _has_credit(datum: Datum) -> bool:
    return datum.credit_T is not None and bool(np.any(datum.credit_T))


def pairs(episodes: Sequence[Episode]) -> list[Episode]:
    """The trainable episodes as pairs for DPO, group after group: the one with the higher reward is chosen and gets the
    advantage 1, the other is rejected and gets −1. `split` and `batching.pack` keep the two next to each other.

    Raises ValueError if a group does not have exactly two trainable episodes, or if neither reward is the higher one.
    """
    groups: dict[tuple[str, str], list[Episode]] = {}  # as in `split`, two roles may name their groups alike
    for episode in trainable(episodes):
        groups.setdefault((episode.role, episode.group), []).append(episode)
    paired = []
    for (role, name), members in groups.items():
        rewards = [episode.reward for episode in members]
        if len(rewards) != 2 or not (rewards[0] < rewards[1] or rewards[0] > rewards[1]):
            found = ", ".join(f"{reward:g}" for reward in rewards)
            raise UserError(
                f"group {name!r} of role {role!r} has trained episodes with the rewards {found}; for DPO a "
                "group needs exactly two with different rewards: set trained = False on the others."
            )
        paired += [episode.with_advantage(1.0 if episode.reward == max(rewards) else -1.0) for episode in members]
    return paired


def mini_batches(episodes: Sequence[Episode], parts: int) -> list[list[Episode]]:
    """`split` of the episodes that count in a divisor, trainable and padding, without parts that have only padding."""
    counted = [e for e in episodes if (e.trained or e.padding) and sampled_tokens(e)]
    return [part for part in split(counted, parts) if trainable(part)]
