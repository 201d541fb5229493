"""A negotiation: players with equal goods, of different worth to each, try to gain more than the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from scope_jax.games.spiral.position import Moves, Position

VALUES = ({"wood": 5, "gold": 15}, {"wood": 15, "gold": 5})  # of a unit to each player
OFFER = "offer:"


@dataclass(frozen=True)
class Offer:
    """What a player would give, and what it wants for it."""

    gives: int
    """Units given."""
    good: str
    """Of this good."""
    takes: int
    """Units wanted."""
    wanted: str
    """Of this good."""

    @staticmethod
    def of(move: str) -> Offer | None:
        """The offer of an action; None if it is another one."""
        if not move.startswith(OFFER):
            return None
        gives, good, _, takes, wanted = move.removeprefix(OFFER).split()
        return Offer(int(gives), good, int(takes), wanted)

    def __str__(self) -> str:
        return f"{self.gives} {self.good} -> {self.takes} {self.wanted}"


def position(deal: Sequence[int], moves: Moves) -> Position:
    """The deal: the number of turns, and units of each good that a player begins with."""
    turns, units = deal
    held = [dict.fromkeys(values, units) for values in VALUES]
    offer: Offer | None = None
    for turn, move in enumerate(moves):
        if move == "accept" and offer is not None:
            mover, other = held[turn % 2], held[1 - turn % 2]
            mover[offer.good] += offer.gives
            other[offer.good] -= offer.gives
            mover[offer.wanted] -= offer.takes
            other[offer.wanted] += offer.takes
        offer = Offer.of(move)
    player = len(moves) % 2
    worth = [
        sum(value * goods[good] for good, value in values.items()) for goods, values in zip(held, VALUES, strict=True)
    ]
    seen = [
        {
            "offered": "none" if offer is None else str(offer),
            "left": turns - len(moves),
            "wood": goods["wood"],
            "gold": goods["gold"],
            "wood_value": values["wood"],
            "gold_value": values["gold"],
        }
        for goods, values in zip(held, VALUES, strict=True)
    ]
    return Position(
        player=player,
        legal=[*(["pass"] if offer is None else ["accept", "deny"]), *_offers(held[player], held[1 - player])],
        lead=float(worth[0] - worth[1]) if len(moves) == turns else None,
        seen=seen,
        events=[f"Player {turn % 2 + 1}: {move}" for turn, move in enumerate(moves)],
    )


def _offers(own: dict[str, int], others: dict[str, int]) -> list[str]:
    """All offers that both sides can honour."""
    offers = []
    for good, wanted in (("wood", "gold"), ("gold", "wood")):
        for gives, takes in product(range(1, own[good] + 1), range(1, others[wanted] + 1)):
            offers.append(f"{OFFER} {Offer(gives, good, takes, wanted)}")
    return offers
