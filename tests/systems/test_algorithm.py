"""Algorithm 1 of each paper as a table in the game's docstring: the code agrees with the table, line by line."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from scope_jax.systems import SYSTEMS, scope, score, spell, spice, ssp
from tests.systems.algorithm import complaints

GAMES = [
    pytest.param(ssp, ("play",), 12, id="ssp"),
    pytest.param(scope, ("play", "challenger_step", "task_step", "solver_step"), 35, id="scope"),
    pytest.param(spice, ("play",), 30, id="spice"),
    pytest.param(spell, ("play", "draw_round", "settle"), 27, id="spell"),
    pytest.param(score, ("play",), 41, id="score"),
]


@pytest.mark.parametrize(("game", "steps", "lines"), GAMES)
def test_the_table_and_the_code_agree(game: ModuleType, steps: tuple[str, ...], lines: int):
    assert complaints(game, steps) == []
    assert f"\n| {lines} | " in (game.__doc__ or "") and f"\n| {lines + 1} | " not in (game.__doc__ or "")


def test_every_game_is_checked():
    assert {param.values[0] for param in GAMES} == set(SYSTEMS.values())


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("played = episodes(cfg,", "played = list()  # episodes(cfg,", "l.9: episodes is not called there"),
        ("played = episodes(cfg,", 'played = print("episodes()", ', "l.9: episodes is not called there"),
        ("    # l.12: the", "    # the", "l.12 has no comment"),
        ("`next_memory` |", "`forget` |", "l.12: forget is not called there"),
        ("`propose` |", "`propose`, `verify` |", "l.3: verify is not called there"),
        ("# l.2: the batch", "# l.3: the batch", "comments are [1, 3, 3,"),
    ],
)
def test_differences_are_found(old: str, new: str, complaint: str):
    source = inspect.getsource(ssp)
    assert source.count(old) == 1
    assert any(found.startswith(complaint) for found in complaints(ssp, ("play",), source.replace(old, new)))
