"""Kuhn poker (Kuhn 1950): an ante and one bet of 1 chip each, hand after hand; and what a strategy wins at worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from scope_jax.games.spiral.position import Moves, Position

CARDS = "JQK"  # in ascending order
DEALS = tuple(map("".join, permutations(CARDS, 2)))  # the cards of player 0 and player 1 in a hand
DEAL_CHANCES = dict.fromkeys(DEALS, 1 / len(DEALS))
BET = ("check", "bet")
ANSWER = ("call", "fold")
ACTIONS: Mapping[Moves, Moves] = {(): BET, ("check",): BET, ("bet",): ANSWER, ("check", "bet"): ANSWER}  # by the hand
Plan = Mapping[tuple[str, Moves, str], float]  # the chance of each action by (own card, hand so far, action)


def draw(count: int, generator: np.random.Generator) -> list[str]:
    """The cards of so many hands."""
    return [DEALS[place] for place in generator.integers(len(DEALS), size=count)]


def position(deal: Sequence[str], moves: Moves) -> Position:
    """The deal: the cards of every hand. Who acts first alternates."""
    hand: Moves = ()
    chips = 0.0  # that player 0 has won
    events: list[str] = []
    for move in moves:
        hand = (*hand, move)
        if hand in ACTIONS:
            continue
        cards = deal[len(events)]
        sign = 1 - 2 * (len(events) % 2)  # -1 where player 1 acts first
        won = sign * pot(cards[::sign], hand)
        shown = "" if move == "fold" else f", {cards[0]} against {cards[1]}"
        events.append(f"Hand {len(events) + 1}: {', '.join(hand)}{shown}: {won:+.0f}.")
        chips += won
        hand = ()
    number = min(len(events), len(deal) - 1)
    seen = [
        {
            "hand": number + 1,
            "hands": len(deal),
            "actions": ", ".join(hand) or "none",
            "card": deal[number][player],
            "chips": f"{chips * (1 - 2 * player) + 0:+.0f}",
        }
        for player in (0, 1)
    ]
    return Position(
        player=(len(events) + len(hand)) % 2,
        legal=ACTIONS[hand],
        lead=chips if len(events) == len(deal) else None,
        seen=seen,
        events=events,
    )


def pot(cards: str, hand: Moves) -> float:
    """Chips that the player who acts first, with the first card, wins in a hand that is over."""
    if hand[-1] == "fold":
        wins = len(hand) % 2 == 0  # the other has folded
    else:
        wins = CARDS.index(cards[0]) > CARDS.index(cards[1])
    chips = 2.0 if hand[-1] == "call" else 1.0
    return chips * (1 if wins else -1)


def situations(player: int) -> list[tuple[str, Moves, str]]:
    """(own card, hand so far, action) of all actions that a player may have to choose from."""
    hands = [hand for hand in ACTIONS if len(hand) % 2 == player]
    return [(card, hand, move) for card in CARDS for hand in hands for move in ACTIONS[hand]]


def worst_case(player: int, plan: Plan, hand: Moves = (), chances: Mapping[str, float] = DEAL_CHANCES) -> float:
    """Chips that a player wins per hand against one that knows its plan.

    What is missing to 1 in the plan is the chance of no action, which loses 1 chip. chances: of each deal together with
    the actions of `hand`.
    """
    if hand not in ACTIONS:
        return sum(chance * pot(cards, hand) for cards, chance in chances.items()) * (1 - 2 * player)
    if len(hand) % 2 == player:
        return _by_plan(player, plan, hand, chances)
    by_card = [  # the other knows its own card, and takes what is worst for the player
        {cards: chance for cards, chance in chances.items() if cards[1 - player] == card} for card in CARDS
    ]
    return sum(min(worst_case(player, plan, (*hand, move), held) for move in ACTIONS[hand]) for held in by_card if held)


def _by_plan(player: int, plan: Plan, hand: Moves, chances: Mapping[str, float]) -> float:
    """`worst_case` where the player acts: what its actions win, less a chip for the chance of none."""
    taken = {
        move: {cards: chance * plan[cards[player], hand, move] for cards, chance in chances.items()}
        for move in ACTIONS[hand]
    }
    won = sum(worst_case(player, plan, (*hand, move), after) + sum(after.values()) for move, after in taken.items())
    return won - sum(chances.values())
