"""Rollouts: generators that ask agents for turns."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from scope_jax.text.messages import Messages

Play = Callable[[Any], Generator[Any, Any, Any]]


@dataclass(frozen=True)
class Ask:
    """What a generator yields: an agent is asked for a turn."""

    agent: str
    """The agent's name."""
    say: str | Messages
    """What it reads: a prompt (text alone: a user message) when it is asked first, later a message."""
    keep: int | None = None
    """How many characters of its last turn stay in its context; None: all."""
    anew: bool = False
    """A new row begins: only `say` is in its context."""


class Failed(Exception):
    """Raised by a generator whose rollout cannot be used: it has no value, and its agents' turns are not to be trained.
    The text is the reason."""


@dataclass(frozen=True)
class Rollout:
    """One episode to be played, and a name that makes its samples reproducible."""

    name: str
    """Unique within a step and role; folded into every sample's PRNG key."""
    play: Play | None = None
    """The generator of an interaction."""
