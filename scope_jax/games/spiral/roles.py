"""SPIRAL's roles: the two seats, of one policy or of two."""

from __future__ import annotations

from scope_jax.config import AdvantageCard, Config
from scope_jax.games.spiral import messages
from scope_jax.games.spiral.match import SEATS
from scope_jax.games.spiral.options import options
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """The seats in order; exams may have any game, so each has the prompts of all."""
    card = options(cfg)
    # with `ema`, the turns have the role-conditioned advantage already (`state.move_baselines`)
    advantage = AdvantageCard(advantage="none") if card.loss.advantage == "ema" else None
    policies = (card.policies[0], card.policies[-1])
    return tuple(
        Role(
            seat,
            Agent(policy, card.sampling, max_turns=card.max_turns, tempered=card.loss.tempered),
            loss=card.loss,
            advantage=advantage,
            prompts=(messages.PLAYER, *messages.OBSERVATIONS.values()),
            table="spiral",
        )
        for seat, policy in zip(SEATS, policies, strict=True)
    )
