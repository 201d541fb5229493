"""A position in a two-player game, and how an action is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Moves = tuple[str, ...]


@dataclass(frozen=True)
class Position:
    """Where a game is: a pure function of its deal (what chance decides) and the actions so far."""

    player: int
    """Whose turn it is: 0 or 1."""
    legal: Sequence[str]
    """Its actions."""
    lead: float | None
    """By how much player 0 is ahead, once the game is over; None before."""
    seen: Sequence[Mapping[str, Any]]
    """What each player sees, as variables of its prompt."""
    events: Sequence[str]
    """What both have seen happen."""


def action(text: str | None, legal: Sequence[str]) -> str | None:
    """The legal action that a text is, whatever its case, spaces and brackets; None if it is none."""
    bare = re.sub(r"\\text\b|[\[\]{}]", " ", text or "")
    plain = " ".join(bare.lower().split())
    return plain if plain in legal else None
