"""How SPELL's roles generate: single turns of the shared actor, with the sampling settings of the role's table."""

from __future__ import annotations

from collections.abc import Sequence

from scope_jax.config import Config
from scope_jax.games.spell.options import SpellRoleSection, options
from scope_jax.play.game import ACTOR
from scope_jax.play.tools import Prompt, Tools, sample
from scope_jax.rollouts.types import Completion


def generate(
    cfg: Config, tools: Tools, role: str, card: SpellRoleSection, prompts: Sequence[Prompt], samples: int
) -> list[list[Completion]]:
    """`samples` completions of each prompt, in order; they have no turns if the prompt exceeds the role's limit."""
    return sample(
        tools,
        role,
        prompts,
        samples,
        card.sampling,
        policy=ACTOR,
        max_prompt_tokens=card.max_prompt_tokens,
        tempered=options(cfg).loss.tempered,
    )
