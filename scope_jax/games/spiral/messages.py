"""What a player reads: rules, position and earlier turns of a game, within the prompt that all games share."""

from __future__ import annotations

from typing import Any

from scope_jax.config import Config
from scope_jax.games.spiral.position import Moves
from scope_jax.games.spiral.rules import GAMES
from scope_jax.play.prompting import Prompt
from scope_jax.text.messages import Messages

PLAYER = Prompt("player", ("observation",))
SHARED = ("history", "legal", "player")
TICTACTOE = Prompt("tictactoe", ("mark", "board", *SHARED), required=(), system=False)
KUHN_POKER = Prompt("kuhn_poker", ("hand", "hands", "actions", "card", "chips", *SHARED), required=(), system=False)
NEGOTIATION = Prompt(
    "negotiation",
    ("offered", "left", "wood", "gold", "wood_value", "gold_value", *SHARED),
    required=(),
    system=False,
)
OBSERVATIONS = {prompt.name: prompt for prompt in (TICTACTOE, KUHN_POKER, NEGOTIATION)}  # by game


def for_player(cfg: Config, game: str, deal: Any, moves: Moves) -> Messages:
    """Prompt of the player whose turn it is; of tic-tac-toe it reads the last turn, of other games all."""
    now = GAMES[game](deal, moves)
    events = now.events[-1:] if game == "tictactoe" else now.events
    observation = OBSERVATIONS[game].text(
        cfg,
        **now.seen[now.player],
        history="\n".join(events) or "none",
        legal=", ".join(now.legal),
        player=now.player + 1,
    )
    return PLAYER.messages(cfg, observation=observation)
