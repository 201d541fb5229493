"""A match of two players as a generator, in training from a new deal, in exams from a given position."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from scope_jax.config import Config
from scope_jax.games.spiral import kuhn_poker, messages, tictactoe
from scope_jax.games.spiral.options import SpiralSection, options
from scope_jax.games.spiral.position import Moves, Position, action
from scope_jax.games.spiral.rules import GAMES
from scope_jax.play.rollouts import Ask, Context, Play, Response
from scope_jax.text.parsing import boxed

SEATS = ("first", "second")  # of player 0 and of player 1; agents have the names of their seats
RANDOM, OPTIMAL = "random", "optimal"  # opponents that play by rule


def match(cfg: Config, game: str, players: Sequence[str], start: tuple[Any, Moves] | None = None) -> Play:
    """A match of players by seat: the seat's name for its agent, or an opponent that plays by rule.

    start: deal and actions so far; None: a new deal. Its value is plain data: `game`, `players`, `deal`, `moves`, who
    made no legal action (`invalid`, None if nobody), as one whose prompt is too long, and what each player has `won`.
    """
    card = options(cfg)

    def play(context: Context) -> Generator[Ask, Response, dict[str, Any]]:
        cards = kuhn_poker.draw(card.kuhn_hands, context.rng)  # drawn in every game, before all else
        deal, moves = (_new_deal(card, game, cards), ()) if start is None else start
        now = GAMES[game](deal, moves)
        invalid: int | None = None
        while now.lead is None and invalid is None and len(moves) < card.max_turns:
            player = players[now.player]
            if player in SEATS:
                said = yield Ask(player, messages.for_player(cfg, game, deal, moves), anew=True)
                move = action(boxed(said.content), now.legal)
            else:
                move = _by_rule(player, now, moves, context.rng)
            if move is None:
                invalid = now.player
            else:
                moves = (*moves, move)
                now = GAMES[game](deal, moves)
        return {
            "game": game,
            "players": list(players),
            "deal": deal,
            "moves": list(moves),
            "invalid": invalid,
            "won": _rewards(card, game, now.lead, invalid),
        }

    return play


def _new_deal(card: SpiralSection, game: str, cards: list[str]) -> Any:
    if game == "kuhn_poker":
        return cards
    return card.negotiation if game == "negotiation" else None


def _by_rule(opponent: str, now: Position, moves: Moves, generator: np.random.Generator) -> str:
    """The action of an opponent: a legal one, or one of the best in tic-tac-toe, drawn."""
    choices = tictactoe.best_moves(moves) if opponent == OPTIMAL else now.legal
    return choices[int(generator.integers(len(choices)))]


def _rewards(card: SpiralSection, game: str, lead: float | None, invalid: int | None) -> list[float]:
    """What each player wins: by the player that made no legal action, if there is one, else by the lead of player 0."""
    if invalid is not None:
        offender, other = card.invalid_reward
        return [offender, other] if invalid == 0 else [other, offender]
    if not lead:  # a draw, or too many turns
        return [0.0, 0.0]
    by_chips = game == "kuhn_poker" and card.kuhn_by_chips
    won = lead if by_chips else lead / abs(lead)
    return [won, -won]
