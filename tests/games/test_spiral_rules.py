"""The rules of SPIRAL's games by hand: actions, results, what a player sees, perfect play, exact values of poker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from scope_jax.games.spiral.kuhn_poker import ACTIONS, DEALS, worst_case
from scope_jax.games.spiral.position import Moves, action
from scope_jax.games.spiral.rules import GAMES
from scope_jax.games.spiral.tictactoe import perfect

RELEASED = json.loads(Path(__file__).with_name("fixtures").joinpath("spiral.json").read_text(encoding="utf-8"))
TICTACTOE, POKER, TRADE = GAMES["tictactoe"], GAMES["kuhn_poker"], GAMES["negotiation"]


def ends(name: str, deal: Any, moves: Moves = ()) -> list[Moves]:
    """The actions of all games that can follow."""
    now = GAMES[name](deal, moves)
    return [moves] if now.lead is not None else [end for move in now.legal for end in ends(name, deal, (*moves, move))]


# -------------------------------------------------------------------------------------------------------------- actions
@pytest.mark.parametrize("case", RELEASED["actions"], ids=lambda case: case["text"])
def test_actions_are_read_as_in_the_released_code(case: dict[str, Any]) -> None:
    """But for the box, which must be there, and for capitals and spaces, which do not make an action illegal."""
    from scope_jax.text.parsing import boxed

    legal = [each.strip("[]") for each in case["legal"]]
    lenient = {r"\boxed{Bet}": "bet", r"\boxed{ bet }": "bet", r"so \boxed{ 4 }.": "4"}
    theirs = None if case["text"] == "bet" else case["action"] and case["action"].strip("[]")
    assert action(boxed(case["text"]), legal) == lenient.get(case["text"], theirs)


@pytest.mark.parametrize(
    ("text", "read"),
    [("offer:  3 Wood ->  2 gold", True), ("[Offer: 3 wood -> 2 gold]", True), ("offer: 4 wood -> 2 gold", False)],
)
def test_an_offer_is_an_action_if_both_hold_it(text: str, read: bool) -> None:
    assert action(text, TRADE([10, 3], ()).legal) == ("offer: 3 wood -> 2 gold" if read else None)
    assert action(None, TRADE([10, 3], ()).legal) is None


# --------------------------------------------------------------------------------------------------------- tic-tac-toe
def test_tic_tac_toe_ends_with_three_in_a_line_or_a_full_board() -> None:
    assert TICTACTOE(None, tuple("01423")).lead is None
    assert TICTACTOE(None, tuple("014238")).lead is None
    assert TICTACTOE(None, tuple("01428")).lead == 1.0  # 0, 4, 8
    assert TICTACTOE(None, tuple("031485")).lead == -1.0  # 3, 4, 5
    assert TICTACTOE(None, tuple("012435768")).lead == 0.0
    now = TICTACTOE(None, ("4", "0"))
    assert (now.player, now.legal) == (0, [*"1235678"]) and now.events == ["X took 4.", "O took 0."]
    assert now.seen == [{"mark": mark, "board": "O 1 2\n3 X 5\n6 7 8"} for mark in "XO"]


def test_perfect_play_is_a_draw_and_never_loses() -> None:
    nothing: frozenset[str] = frozenset()
    assert perfect(nothing, nothing) == (0, [*"012345678"])  # no opening loses
    assert perfect(nothing, frozenset("0")) == (0, ["4"])  # after a corner only the centre holds
    assert perfect(frozenset("01"), frozenset("34")) == (1, ["2"])
    assert perfect(frozenset("0"), frozenset("34")) == (0, ["5"])

    def worst(moves: Moves, player: int) -> float:
        """Of all games of a perfect player, whatever the other does."""
        now = TICTACTOE(None, moves)
        if now.lead is not None:
            return now.lead * (1 - 2 * player)
        cells = [frozenset(moves[place::2]) for place in (now.player, 1 - now.player)]
        choices = perfect(*cells)[1] if now.player == player else now.legal
        return min(worst((*moves, move), player) for move in choices)

    assert worst(("0",), 1) == 0.0 and worst(("0", "1"), 0) == 1.0


# -------------------------------------------------------------------------------------------------------------- poker
PAYOFFS = {  # of the player who acts first, with the higher card and with the lower one
    ("check", "check"): (1, -1),
    ("bet", "call"): (2, -2),
    ("bet", "fold"): (1, 1),
    ("check", "bet", "call"): (2, -2),
    ("check", "bet", "fold"): (-1, -1),
}


@pytest.mark.parametrize("cards", DEALS)
def test_a_hand_of_poker_moves_chips(cards: str) -> None:
    assert sorted(ends("kuhn_poker", [cards])) == sorted(PAYOFFS)
    higher = "JQK".index(cards[0]) > "JQK".index(cards[1])
    for moves, payoffs in PAYOFFS.items():
        assert POKER([cards], moves).lead == payoffs[not higher], moves


def test_a_match_of_poker_counts_all_hands_and_alternates_who_acts_first() -> None:
    deal, moves = ["KQ", "KQ", "JQ"], ("bet", "call", "bet", "fold", "check", "bet")
    now = POKER(deal, moves)
    assert (now.player, now.legal, now.lead) == (0, ("call", "fold"), None)
    assert now.events == ["Hand 1: bet, call, K against Q: +2.", "Hand 2: bet, fold: -1."]
    assert now.seen[0] == {"hand": 3, "hands": 3, "actions": "check, bet", "card": "J", "chips": "+1"}
    assert now.seen[1] == {"hand": 3, "hands": 3, "actions": "check, bet", "card": "Q", "chips": "-1"}
    assert [POKER(deal, moves[:turn]).player for turn in range(7)] == [0, 1, 1, 0, 0, 1, 0]
    assert POKER(deal, (*moves, "fold")).lead == 0.0 and POKER(deal, (*moves, "call")).lead == -1.0
    assert POKER(deal, ()).seen[1]["chips"] == "+0"


def plan(chances: Mapping[Any, float]) -> dict[Any, float]:
    """Chances of all actions from those of a bet or a call."""
    other = {"bet": "check", "call": "fold"}
    return dict(chances) | {(card, hand, other[move]): 1 - chance for (card, hand, move), chance in chances.items()}


def equilibrium(alpha: float) -> dict[Any, float]:
    """Kuhn's, by the chance of the first player to bet with a jack (0 to 1/3)."""
    passed, bet, raised = ("check",), ("bet",), ("check", "bet")
    bets = {("J", ()): alpha, ("Q", ()): 0.0, ("K", ()): 3 * alpha}
    bets |= {("J", passed): 1 / 3, ("Q", passed): 0.0, ("K", passed): 1.0}
    calls = {("J", bet): 0.0, ("Q", bet): 1 / 3, ("K", bet): 1.0}
    calls |= {("J", raised): 0.0, ("Q", raised): alpha + 1 / 3, ("K", raised): 1.0}
    chances = {(*place, "bet"): chance for place, chance in bets.items()}
    return plan(chances | {(*place, "call"): chance for place, chance in calls.items()})


def test_the_worst_case_of_poker_is_what_kuhn_computed() -> None:
    for alpha in (0.0, 0.1, 1 / 3):
        assert worst_case(0, equilibrium(alpha)) == pytest.approx(-1 / 18)
        assert worst_case(1, equilibrium(alpha)) == pytest.approx(1 / 18)
    spots = [(card, hand, move) for card, hand in product("JQK", ACTIONS) for move in ACTIONS[hand]]
    assert worst_case(0, dict.fromkeys(spots, 1 / 2)) == pytest.approx(-5 / 12)
    assert worst_case(1, dict.fromkeys(spots, 1 / 2)) == pytest.approx(-1 / 2)
    silent = dict.fromkeys(spots, 0.0)  # never an action, which loses 1 in every hand in which it is asked
    assert worst_case(0, silent) == pytest.approx(-1.0) and worst_case(1, silent) == pytest.approx(-1.0)
    half = {spot: chance / 2 for spot, chance in equilibrium(0.0).items()}
    assert worst_case(0, half) < -0.5


# --------------------------------------------------------------------------------------------------------- negotiation
def test_goods_change_hands_when_an_offer_is_accepted() -> None:
    moves = ("offer: 3 wood -> 2 gold", "accept", "pass", "offer: 1 gold -> 1 wood")
    now = TRADE([6, 10], moves)
    assert now.legal[:2] == ["accept", "deny"] and "pass" not in now.legal
    assert {key: now.seen[0][key] for key in ("wood", "gold")} == {"wood": 7, "gold": 12}
    assert {key: now.seen[1][key] for key in ("wood", "gold")} == {"wood": 13, "gold": 8}
    assert (now.player, now.lead, now.seen[0]["offered"], now.seen[0]["left"]) == (0, None, "1 gold -> 1 wood", 2)
    assert now.seen[1]["wood_value"] == 15 and now.seen[0]["gold_value"] == 15
    assert now.events[1] == "Player 2: accept"
    assert "offer: 7 wood -> 8 gold" in now.legal and "offer: 8 wood -> 8 gold" not in now.legal
    assert len(TRADE([6, 10], ()).legal) == 1 + 2 * 100 and TRADE([6, 10], ()).legal[0] == "pass"


def test_a_negotiation_is_won_by_the_larger_gain() -> None:
    """Player 0 gives 3 wood (5 each) for 2 gold (15 each): +15; player 1 gains 3 · 15 − 2 · 5 = 35."""
    assert TRADE([2, 10], ("offer: 3 wood -> 2 gold", "accept")).lead == 15 - 35
    assert TRADE([2, 10], ("offer: 2 wood -> 2 gold", "accept")).lead == 0
    assert TRADE([2, 10], ("offer: 1 wood -> 2 gold", "accept")).lead == 25 - 5
    assert TRADE([2, 10], ("offer: 1 wood -> 2 gold", "deny")).lead == 0
    assert TRADE([3, 10], ("pass", "pass")).lead is None


def test_goods_are_neither_made_nor_lost() -> None:
    for moves in ends("negotiation", [3, 2]):
        seen = TRADE([3, 2], moves).seen
        assert all(seen[0][good] + seen[1][good] == 4 for good in ("wood", "gold"))
        assert all(seen[player][good] >= 0 for player in (0, 1) for good in ("wood", "gold"))
