"""The game and the card of docs/environments.md, as they stand on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scope_jax.games import game_of, load_card
from scope_jax.play.game import play_step
from tests.games.harness import ScriptedTools, TurnContext

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")


def first_block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the page says to save."""
    (tmp_path / "guess.py").write_text(first_block("python"), encoding="utf-8")
    (tmp_path / "card.toml").write_text(first_block("toml"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def halving(now: TurnContext) -> str:
    """The first sample halves what is left, which takes five turns at most; the others say nothing that counts."""
    if now.sample:
        return "who knows"
    low, high = 1, 20
    guess = 0
    for said in [None, *(turn.text for turn in now.turns if turn.kind != "sampled")]:
        if said is not None:
            low, high = (guess + 1, high) if "higher" in said else (low, guess - 1)
        guess = (low + high) // 2
    return str(guess)


def test_the_player_is_rewarded_for_the_number(here: Path) -> None:
    cfg = load_card("card.toml", ["guess.numbers=6", "guess.samples=2", "guess.sampling={max_response_tokens=4096}"])
    game = game_of(cfg)
    episodes, memory, metrics = play_step(game, cfg, ScriptedTools(halving, turns="chat"), game.start(cfg), 0)
    assert memory == {} and [episode.reward for episode in episodes] == [1.0, 0.0] * 6
    assert [episode.group for episode in episodes[::2]] == [episode.group for episode in episodes[1::2]]
    assert len({episode.group for episode in episodes}) == 6
    turns = [[turn["kind"] for turn in episode.text["turns"]].count("sampled") for episode in episodes]
    assert all(1 <= count <= 5 for count in turns[::2]) and turns[1::2] == [5] * 6
    assert metrics["player/reward"] == 0.5


def test_the_number_depends_on_the_seed_and_the_step(here: Path) -> None:
    def rewards(seed: int, number: int) -> list[float]:
        cfg = load_card("card.toml", [f"seed={seed}", "guess.samples=1", "guess.sampling={max_response_tokens=4096}"])
        game = game_of(cfg)
        tools = ScriptedTools(lambda now: "7", turns="chat")
        return [episode.reward for episode in play_step(game, cfg, tools, game.start(cfg), number)[0]]

    first = rewards(0, 0)
    assert first == rewards(0, 0)
    assert first != rewards(1, 0) or first != rewards(0, 1)
