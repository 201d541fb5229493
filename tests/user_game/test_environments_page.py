"""The example of docs/environments.md: a game with an environment, its card and its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.games import game_of, load_card
from scope_jax.play.game import play_step
from scope_jax.run.files import read_records
from tests.games.harness import ScriptedTools, TurnContext

ROOT = Path(__file__).parents[2]
CARD = "examples/guess.toml"
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


def first_block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(("language", "file"), [("python", "guess.py"), ("toml", "guess.toml")])
def test_the_page_shows_the_example(language: str, file: str) -> None:
    assert first_block(language) == (ROOT / "examples" / file).read_text(encoding="utf-8")


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


def test_the_player_is_rewarded_for_the_number() -> None:
    cfg = load_card(
        CARD, ["guess.max_turns=5", "guess.numbers=6", "guess.samples=2", "guess.sampling={max_response_tokens=4096}"]
    )
    game = game_of(cfg)
    episodes, memory, metrics = play_step(game, cfg, ScriptedTools(halving, turns="chat"), game.start(cfg), 0)
    assert memory == {} and [episode.reward for episode in episodes] == [1.0, 0.0] * 6
    assert [episode.group for episode in episodes[::2]] == [episode.group for episode in episodes[1::2]]
    assert len({episode.group for episode in episodes}) == 6
    turns = [[turn["kind"] for turn in episode.text["turns"]].count("sampled") for episode in episodes]
    assert all(1 <= count <= 5 for count in turns[::2]) and turns[1::2] == [5] * 6
    assert metrics["player/reward"] == 0.5
    assert {episode.text["prompt"] for episode in episodes} == {"Guess my number from 1 to 20. Write a number."}


def test_the_number_depends_on_the_seed_and_the_step() -> None:
    def rewards(seed: int, number: int) -> list[float]:
        cfg = load_card(
            CARD, ["guess.max_turns=5", f"seed={seed}", "guess.samples=1", "guess.sampling={max_response_tokens=4096}"]
        )
        game = game_of(cfg)
        tools = ScriptedTools(lambda now: "7", turns="chat")
        return [episode.reward for episode in play_step(game, cfg, tools, game.start(cfg), number)[0]]

    first = rewards(0, 0)
    assert first == rewards(0, 0)
    assert first != rewards(1, 0) or first != rewards(0, 1)


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    commands = re.findall(r"^scope-jax (.* examples/guess.toml.*)$", PAGE, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["check", "train"]
    short = [
        "--set",
        "train.steps=1",
        "--set",
        "guess.numbers=4",
        "--set",
        "guess.samples=2",
        "--set",
        "guess.max_turns=2",
    ]
    for command in commands:
        words = command.replace("runs/guess", str(tmp_path / "run")).split()
        result = CliRunner().invoke(app, [*words, *short])
        assert result.exit_code == 0, result.output
    (step,) = read_records(tmp_path / "run" / "metrics.jsonl")
    assert 0 <= step["player/reward"] <= 1 and step["player/sequences"] == 8
    texts = [episode["text"] for episode in read_records(tmp_path / "run" / "episodes.jsonl")]
    assert len(texts) == 8 and all(text["prompt"].startswith("Guess my number") for text in texts)
