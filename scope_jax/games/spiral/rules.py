"""The games by name, each a function from its deal (what chance decides) and the actions so far to a position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scope_jax.games.spiral import kuhn_poker, negotiation, tictactoe
from scope_jax.games.spiral.position import Moves, Position

GAMES: Mapping[str, Callable[[Any, Moves], Position]] = {
    "tictactoe": tictactoe.position,
    "kuhn_poker": kuhn_poker.position,
    "negotiation": negotiation.position,
}
