"""How the roles of SPELL generate: one turn each, by the shared actor, with the role's table of the card."""

from __future__ import annotations

from collections.abc import Sequence

from rollouts.types import Completion
from scope_jax.config import Config, SpellRoleSection
from scope_jax.play import searching
from scope_jax.play.defaults import ACTOR
from scope_jax.play.tools import Prompt, Tools, sample


def talk(
    cfg: Config, tools: Tools, role: str, card: SpellRoleSection, prompts: Sequence[Prompt], samples: int
) -> list[list[Completion]]:
    """`samples` completions of each prompt, in order; of one above the role's limit they have no turns."""
    return sample(
        tools,
        role,
        prompts,
        samples,
        card.sampling,
        policy=ACTOR,
        max_prompt_tokens=card.max_prompt_tokens,
        tempered=cfg.spell.loss.tempered,
    )


def said(completion: Completion) -> str:
    """What was said outside of thoughts; "" where the prompt was not played."""
    return "".join(searching.contents(completion))
