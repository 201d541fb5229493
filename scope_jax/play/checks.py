"""What a game of one's own may get wrong, said in a sentence: the roles that it lists, and what its `play` returns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from scope_jax.config import JudgeSection
from scope_jax.errors import UserError
from scope_jax.learner.types import Episode
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.step import Played

RECORDED = ("prompt", "turns")  # of an episode's text, which `Episode.from_completion` writes


def check_roles(game: str, listed: Any) -> None:
    """Raises UserError for roles that no game can have. listed: what its function `roles` returned."""
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not all(isinstance(one, Role) for one in listed):
        raise UserError(
            f"roles of the game {game} returned {_kind(listed)}; it returns a tuple with a Role for each that speaks."
        )
    names = [role.name for role in listed]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"the game {game} has two roles of the name {min(twice)!r}; give each its own.")
    for role in listed:
        if not isinstance(role.speaker, Agent | JudgeSection):
            raise UserError(
                f"the role {role.name!r} of the game {game} is spoken by {_kind(role.speaker)}; give an Agent, or a "
                "JudgeSection of the card."
            )
        if role.learns and role.external is not None:
            raise UserError(
                f"the role {role.name!r} of the game {game} has a loss, but an external model, which cannot be "
                "trained, speaks it; remove the loss, or give an Agent."
            )
    if not any(role.learns for role in listed):
        raise UserError(f"no role of the game {game} learns; give one a loss: Role(…, loss=cfg.options(Options).loss).")


def check_played(game: str, played: Any) -> None:
    """Raises UserError for what `play` of a game may not return: what is no step, episodes without a finite reward, and
    metrics that are no numbers."""
    who = f"play of the game {game}"
    if not isinstance(played, Played):
        raise UserError(
            f"{who} returned {_kind(played)}; it is no async function or generator, and returns "
            "Played(episodes, outcome, metrics)."
        )
    if not isinstance(played.episodes, Sequence):
        raise UserError(f"{who} returned {_kind(played.episodes)} as its episodes; give a list.")
    for place, episode in enumerate(played.episodes):
        if not isinstance(episode, Episode):
            raise UserError(f"{who} returned {_kind(episode)} among its episodes.")
        _check_episode(f"{who} gave the episode {place} (role {episode.role!r}, group {episode.group!r})", episode)
    if not isinstance(played.metrics, Mapping):
        raise UserError(f"{who} returned {_kind(played.metrics)} as metrics; return a dict.")
    for name, value in played.metrics.items():
        if not isinstance(value, Real | None) and not hasattr(value, "item"):
            raise UserError(f"{who} returned {value!r:.60} as the metric {name}, not a number.")


def _check_episode(what: str, episode: Episode) -> None:
    """what: the beginning of a sentence."""
    numbers = [("reward", episode.reward), *((f"part {key!r}", value) for key, value in episode.parts.items())]
    for name, value in numbers:
        if not _is_number(value):
            raise UserError(f"{what} the {name} {value!r:.60}; give a finite number.")
    for key, value in episode.text.items():
        if key not in RECORDED and not _is_plain(value):
            raise UserError(
                f"{what} the text {key!r}, {_kind(value)} that no JSON has; give texts, numbers, lists or dicts."
            )


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number, also one of NumPy or JAX."""
    try:
        return not isinstance(value, str) and math.isfinite(value)
    except (TypeError, ValueError):
        return False


def _is_plain(value: Any) -> bool:
    """Whether the records of a run can hold a value; numbers of NumPy and JAX become Python's."""

    def number(value: Any) -> Any:
        return value.item() if hasattr(value, "item") else json.dumps(value)

    try:
        json.dumps(value, default=number)
    except (TypeError, ValueError):
        return False
    return True


def _kind(value: Any) -> str:
    """What a value is, for a sentence."""
    if value is None:
        return "nothing"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
