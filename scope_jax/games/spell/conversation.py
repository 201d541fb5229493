"""How SPELL's roles generate: single turns of the shared actor, with the sampling settings of the role's table."""

from __future__ import annotations

from scope_jax.config import Config
from scope_jax.games.spell.options import SpellRoleSection, options
from scope_jax.play.game import ACTOR
from scope_jax.play.tools import Agent


def agent(cfg: Config, card: SpellRoleSection) -> Agent:
    """The shared actor in single turns, with the sampling settings of a role's table."""
    limit = card.max_prompt_tokens
    return Agent(ACTOR, card.sampling, max_prompt_tokens=limit, tempered=options(cfg).loss.tempered)
