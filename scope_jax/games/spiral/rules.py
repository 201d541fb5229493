"""The rules of the games, as pure functions from a deal (what chance decides) and the actions so far to a position."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import permutations, product
from typing import Any, NamedTuple

Moves = tuple[str, ...]
CELLS, LINES = "012345678", ("012", "345", "678", "036", "147", "258", "048", "246")
DEALS = tuple(map("".join, permutations("JQK", 2)))  # the cards of both players
DEALT = dict.fromkeys(DEALS, 1 / len(DEALS))  # their chances
BET, ANSWER = ("check", "bet"), ("call", "fold")
ACTIONS: Mapping[Moves, Moves] = {(): BET, ("check",): BET, ("bet",): ANSWER, ("check", "bet"): ANSWER}
VALUES = ({"wood": 5, "gold": 15}, {"wood": 15, "gold": 5})  # of a unit to each player


class Position(NamedTuple):
    player: int  # whose turn it is: 0 or 1
    legal: Sequence[str]  # its actions
    lead: float | None  # by how much player 0 is ahead, once the game is over; None before
    seen: Sequence[Mapping[str, Any]]  # what each player sees, for its prompt
    events: Sequence[str]  # what both have seen happen


def action(text: str | None, legal: Sequence[str]) -> str | None:
    """The legal action that a text is, whatever its case, spaces and brackets; None if it is none."""
    plain = " ".join(re.sub(r"\\text\b|[\[\]{}]", " ", text or "").lower().split())
    return plain if plain in legal else None


def tictactoe(deal: None, moves: Moves) -> Position:
    """Cells are numbered 0 to 8; player 0 has X."""
    marks = {cell: "XO"[turn % 2] for turn, cell in enumerate(moves)}
    won = [any(all(marks.get(cell) == mark for cell in line) for line in LINES) for mark in "XO"]
    free = [cell for cell in CELLS if cell not in marks]
    lead = float(won[0] - won[1]) if any(won) or not free else None
    board = "\n".join(" ".join(marks.get(cell, cell) for cell in line) for line in LINES[:3])
    seen = [{"mark": mark, "board": board} for mark in "XO"]
    return Position(len(moves) % 2, free, lead, seen, [f"{mark} took {cell}." for cell, mark in marks.items()])


@cache
def perfect(cells: frozenset[str], others: frozenset[str]) -> tuple[int, list[str]]:
    """What the player to move wins in tic-tac-toe if both play perfectly, and its moves then, by the cells of both."""
    if any(others.issuperset(line) for line in LINES):
        return -1, []
    values = {cell: -perfect(others, cells | {cell})[0] for cell in CELLS if cell not in cells | others}
    best = max(values.values(), default=0)
    return best, [cell for cell, value in values.items() if value == best]


def kuhn_poker(deal: Sequence[str], moves: Moves) -> Position:
    """Kuhn 1950: an ante and one bet of 1 chip each. The deal: the cards of every hand. Who acts first alternates."""
    hand, chips, events = (), 0.0, []
    for move in moves:
        hand = (*hand, move)
        if hand not in ACTIONS:
            cards, way = deal[len(events)], 1 - 2 * (len(events) % 2)
            shown = "" if move == "fold" else f", {cards[0]} against {cards[1]}"
            events.append(f"Hand {len(events) + 1}: {', '.join(hand)}{shown}: {way * pot(cards[::way], hand):+.0f}.")
            hand, chips = (), chips + way * pot(cards[::way], hand)
    over, number = len(events) == len(deal), min(len(events), len(deal) - 1)
    shared = {"hand": number + 1, "hands": len(deal), "actions": ", ".join(hand) or "none"}
    seen = [shared | {"card": deal[number][p], "chips": f"{chips * (1 - 2 * p) + 0:+.0f}"} for p in (0, 1)]
    return Position((len(events) + len(hand)) % 2, ACTIONS[hand], chips if over else None, seen, events)


def pot(cards: str, hand: Moves) -> float:
    """Chips that the player who acts first, with the first card, wins in a hand that is over."""
    ahead = len(hand) % 2 == 0 if hand[-1] == "fold" else "JQK".index(cards[0]) > "JQK".index(cards[1])
    return (2.0 if hand[-1] == "call" else 1.0) * (1 if ahead else -1)


def worst_case(player: int, plan: Mapping[Any, float], hand: Moves = (), reach: Mapping[str, float] = DEALT) -> float:
    """Chips that a player wins per hand of poker against one that knows its plan: the chance of each action by (card,
    hand so far, action); what is missing to 1 is no action, and loses 1. reach: the chances of deals and `hand`."""
    if hand not in ACTIONS:
        return sum(chance * pot(cards, hand) for cards, chance in reach.items()) * (1 - 2 * player)
    if len(hand) % 2 != player:  # the other knows its card
        parts = [{cards: p for cards, p in reach.items() if cards[1 - player] == card} for card in "JQK"]
        return sum(min(worst_case(player, plan, (*hand, m), part) for m in ACTIONS[hand]) for part in parts if part)
    ways = {m: {cards: p * plan[cards[player], hand, m] for cards, p in reach.items()} for m in ACTIONS[hand]}
    return sum(worst_case(player, plan, (*hand, m), p) + sum(p.values()) for m, p in ways.items()) - sum(reach.values())


def negotiation(deal: Sequence[int], moves: Moves) -> Position:
    """Players with equal goods of different value to each try to gain more than the other. The deal: turns, units."""
    held, offer, player = [dict.fromkeys(VALUES[0], deal[1]) for _ in VALUES], [], len(moves) % 2
    for turn, move in enumerate(moves):
        for each, sign in ((turn % 2, 1), (1 - turn % 2, -1)) if move == "accept" else ():
            held[each][offer[1]] += sign * int(offer[0])
            held[each][offer[4]] -= sign * int(offer[3])
        offer = move.split()[1:]
    legal = ["accept", "deny"] if offer else ["pass"]
    for good, wanted in (("wood", "gold"), ("gold", "wood")):
        units = product(range(1, held[player][good] + 1), range(1, held[1 - player][wanted] + 1))
        legal += [f"offer: {gives} {good} -> {takes} {wanted}" for gives, takes in units]
    worth = [sum(value * goods[good] for good, value in own.items()) for goods, own in zip(held, VALUES, strict=True)]
    lead = float(worth[0] - worth[1]) if len(moves) == deal[0] else None
    shared = {"offered": " ".join(offer) or "none", "left": deal[0] - len(moves)}
    seen = [shared | held[p] | {f"{good}_value": own for good, own in VALUES[p].items()} for p in (0, 1)]
    return Position(player, legal, lead, seen, [f"Player {turn % 2 + 1}: {move}" for turn, move in enumerate(moves)])


GAMES: Mapping[str, Callable[[Any, Moves], Position]] = {f.__name__: f for f in (tictactoe, kuhn_poker, negotiation)}
