"""Writes demonstrations of legal moves for SPIRAL: random positions of a card's games, and a random legal action in its
box.

    python legal_moves.py CARD OUT [COUNT]

They show the form of a turn and nothing of how to win. OUT gets conversations for `scope-jax sft`; the prompts are the
card's. See docs/spiral.md#a-small-model-of-your-own.
"""

import json
import sys
from pathlib import Path

import numpy as np

from scope_jax.data.keys import rng
from scope_jax.games import load_card
from scope_jax.games.spiral import kuhn_poker, messages
from scope_jax.games.spiral.options import options
from scope_jax.games.spiral.rules import GAMES


def demonstrations(cfg, count):
    """`count` conversations, each of the positions of random matches in turn."""
    conversations = []
    match = 0
    while len(conversations) < count:
        conversations += turns(cfg, rng("legal moves", cfg.seed, match))
        match += 1
    return conversations[:count]


def turns(cfg, generator):
    """The turns of one match, whose game is drawn by the card's weights and whose actions are random."""
    card = options(cfg)
    games = list(card.games)
    game = games[generator.choice(len(games), p=np.array([*card.games.values()]) / sum(card.games.values()))]
    deals = {"kuhn_poker": kuhn_poker.draw(card.kuhn_hands, generator), "negotiation": card.negotiation}
    deal, moves, conversations = deals.get(game), (), []
    while (now := GAMES[game](deal, moves)).lead is None:
        move = now.legal[int(generator.integers(len(now.legal)))]
        asked = messages.for_player(cfg, game, deal, moves).conversation()
        conversations.append([*asked, {"role": "assistant", "content": f"\\boxed{{{move}}}"}])
        moves = (*moves, move)
    return conversations


def main(card, out, count="640"):
    """Writes the file."""
    lines = [
        json.dumps({"messages": conversation}) + "\n" for conversation in demonstrations(load_card(card), int(count))
    ]
    Path(out).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
