"""Tic-tac-toe: its rules, and perfect play."""

from __future__ import annotations

from functools import cache

from scope_jax.games.spiral.position import Moves, Position

CELLS = "012345678"
LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
MARKS = "XO"  # of player 0 and of player 1


def position(deal: None, moves: Moves) -> Position:
    """Nothing is dealt; an action is the number of a cell."""
    marks = {cell: MARKS[turn % 2] for turn, cell in enumerate(moves)}
    free = [cell for cell in CELLS if cell not in marks]
    won = [any(all(marks.get(cell) == mark for cell in line) for line in LINES) for mark in MARKS]
    over = any(won) or not free
    board = "\n".join(" ".join(marks.get(cell, cell) for cell in line) for line in LINES[:3])
    return Position(
        player=len(moves) % 2,
        legal=free,
        lead=float(won[0] - won[1]) if over else None,
        seen=[{"mark": mark, "board": board} for mark in MARKS],
        events=[f"{mark} took {cell}." for cell, mark in marks.items()],
    )


def best_moves(moves: Moves) -> list[str]:
    """The best actions of the player whose turn it is."""
    player = len(moves) % 2
    return perfect(frozenset(moves[player::2]), frozenset(moves[1 - player :: 2]))[1]


@cache
def perfect(cells: frozenset[str], others: frozenset[str]) -> tuple[int, list[str]]:
    """What the player to move wins if both play perfectly, and its best moves, by the cells of both."""
    if any(others.issuperset(line) for line in LINES):
        return -1, []
    free = [cell for cell in CELLS if cell not in cells | others]
    values = {cell: -perfect(others, cells | {cell})[0] for cell in free}
    best = max(values.values(), default=0)
    return best, [cell for cell, value in values.items() if value == best]
