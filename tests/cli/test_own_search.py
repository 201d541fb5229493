"""A game may bring a tool of its own under the name of the search: then it needs no [retrieval]."""

from __future__ import annotations

from pathlib import Path

import pytest

from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.run import file_rules
from scope_jax.run.opened import OpenedCard

ROOT = Path(__file__).parents[2]


def opened(folder: Path, game: str) -> OpenedCard:
    text = (ROOT / "examples" / "distillation.toml").read_text().split("[distillation]")[0]
    head, rest = text.split("[teachers.teacher]")
    card = head.replace("examples/distillation.py", game) + rest[rest.index("[rollout]") :]
    (folder / "card.toml").write_text(card + "[scene]\n")
    return OpenedCard(load_card(folder / "card.toml", ("evaluate.sets=[]",)))


def test_its_own_search_is_the_only_one(tmp_path: Path) -> None:
    card = opened(tmp_path, "tests/train/scene.py")
    assert file_rules.tools(card) == "search, note" and not card.searches_index
    assert [tool["function"]["name"] for tool in card.joiner.tools] == ["search", "note"]


def test_a_game_with_other_tools_alone_is_told(tmp_path: Path) -> None:
    game = (
        (ROOT / "tests" / "train" / "scene.py")
        .read_text()
        .replace('return Tool("search", search, SEARCH), note', "return (note,)")
    )
    (tmp_path / "scene.py").write_text(game)
    with pytest.raises(UserError, match=r"the table \[retrieval\] is missing, but .*scene.py searches"):
        file_rules.tools(opened(tmp_path, str(tmp_path / "scene.py")))
