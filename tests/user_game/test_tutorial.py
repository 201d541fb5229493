"""The game, card and commands of docs/tutorial.md, as they stand on the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.games import game_of, load_card
from scope_jax.play.collapse import with_signs
from scope_jax.play.game import play_step
from scope_jax.run.files import read_records
from tests.games.harness import ScriptedTools

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The page's only block in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the page says to save, and what a checkout has."""
    (tmp_path / "consensus").mkdir()
    (tmp_path / "consensus" / "game.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "consensus" / "card.toml").write_text(block("toml"), encoding="utf-8")
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_game_has_under_70_lines_and_plays_a_step(here: Path) -> None:
    assert "`consensus/game.py`" in PAGE and "`consensus/card.toml`" in PAGE
    assert len(block("python").splitlines()) < 70
    cfg = load_card("consensus/card.toml", ["consensus.questions=2", "consensus.samples=4"])
    says = {"a": [r"\boxed{7}", r"\boxed{7}", r"\boxed{8}", "?"], "b": ["?", "?", "?", "?"]}
    tools = ScriptedTools(
        lambda now: says["ab"[int(now.name)]][now.sample],
        data=[{"question": "a", "answers": ["7"]}, {"question": "b", "answers": ["8"]}],
    )
    game = game_of(cfg)
    episodes, memory, metrics = play_step(game, cfg, tools, game.start(cfg), 3)
    assert tools.taken == [(6, 2)] and memory == {}
    assert [episode.reward for episode in episodes] == [1.0, 1.0, 0.0, 0.0] + [0.0] * 4
    assert [episode.group for episode in episodes] == ["solver/0"] * 4 + ["solver/1"] * 4
    assert episodes[2].text["prediction"] == "8" and episodes[2].text["majority"] == "7"
    assert [episode.text["rejected"] for episode in episodes] == ["", "", ""] + ["no answer"] * 5
    assert metrics["solver/reward"] == 0.25 and with_signs(metrics, episodes)[
        "solver/identical_pairs"
    ] == pytest.approx((1 / 6 + 1) / 2)
    assert [share.role for update in game.updates(cfg) for share in update.roles] == ["solver"]
    assert game.exam_of(cfg).role.agent.policy == "actor"


@pytest.mark.slow
def test_the_commands_of_the_tutorial_run(here: Path) -> None:
    lines = block("console").splitlines()
    assert [shlex.split(line)[:2] for line in lines] == [
        ["scope-jax", command] for command in ("train", "report", "eval", "export")
    ]
    for line in lines:
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
    steps = list(read_records(here / "runs/consensus/metrics.jsonl"))
    assert [line["step"] for line in steps] == [0, 1, 2, 3, 4]
    assert "solver/grad_norm" in steps[1] and "eval/held_out/accuracy_se" in steps[0]
    page = (here / "runs/consensus/report/index.html").read_text(encoding="utf-8")
    assert "All 256 episodes" in page and "Signs of collapse" in page
    assert json.loads((here / "out/consensus/config.json").read_text())["model_type"] == "qwen3"
