"""The game, card and commands of docs/tutorial.md, as they stand on the page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.games import game_of, load_card
from scope_jax.learner.types import Episode, Metrics
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
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    subprocess.run(["sh", "-e", "-c", block("sh")], cwd=tmp_path, check=True)
    (tmp_path / "sums" / "game.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "sums" / "card.toml").write_text(block("toml"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def played(says: str) -> tuple[list[Episode], Metrics]:
    """A step with two questions, each answered with these four texts."""
    cfg = load_card("sums/card.toml", ["sums.questions=2", "sums.samples=4"])
    texts = says.split()
    tools = ScriptedTools(
        lambda now: texts[now.sample],
        data=[{"question": "3 + 4", "answers": ["7"]}, {"question": "4 + 4", "answers": ["8"]}],
    )
    game = game_of(cfg)
    episodes, memory, metrics = play_step(game, cfg, tools, game.start(cfg), 3)
    assert tools.taken == [(6, 2)] and memory == {}
    assert [episode.group for episode in episodes] == ["solver/0"] * 4 + ["solver/1"] * 4
    assert [share.role for update in game.updates(cfg) for share in update.roles] == ["solver"]
    return episodes, metrics


def test_the_game_has_under_70_lines_and_rewards_right_answers(here: Path) -> None:
    assert "`sums/game.py`" in PAGE and "`sums/card.toml`" in PAGE
    assert len(block("python").splitlines()) < 70
    episodes, metrics = played(r"\boxed{7} \boxed{7.0} \boxed{8} ?")
    assert [episode.reward for episode in episodes] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert episodes[2].text["prediction"] == "8" and episodes[2].text["answers"] == ["7"]
    assert [episode.text["rejected"] for episode in episodes] == ["", "", "", "no answer"] * 2
    assert metrics["solver/reward"] == 3 / 8
    cfg = load_card("sums/card.toml")
    assert game_of(cfg).exam_of(cfg).role.agent.policy == "actor"


def test_the_other_reward_is_the_majority(here: Path) -> None:
    """Of the page's second `play`, put into the file in place of the first."""
    head, rest = block("python").split("def play(step):\n")
    tail = rest[rest.index("def exam(cfg):\n") :]
    game = f"from collections import Counter\n{head}{block('py')}\n\n{tail}"
    (here / "sums" / "majority.py").write_text(game, encoding="utf-8")
    card = here / "sums" / "card.toml"
    card.write_text(card.read_text(encoding="utf-8").replace("sums/game.py", "sums/majority.py"), encoding="utf-8")
    episodes, metrics = played(r"\boxed{7} \boxed{7} \boxed{8} ?")
    assert [episode.reward for episode in episodes] == [1.0, 1.0, 0.0, 0.0] * 2
    assert with_signs(metrics, episodes)["solver/identical_pairs"] == pytest.approx(1 / 6)
    assert [episode.reward for episode in played("? ? ? ?")[0]] == [0.0] * 8


@pytest.mark.slow
def test_the_commands_of_the_tutorial_run(here: Path) -> None:
    lines = block("console").splitlines()
    assert [shlex.split(line)[:2] for line in lines] == [
        ["scope-jax", command] for command in ("train", "report", "eval", "export")
    ]
    for line in lines:
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
    steps = list(read_records(here / "runs/sums/metrics.jsonl"))
    assert [line["step"] for line in steps if "solver/grad_norm" in line] == [*range(1, 21)]
    assert steps[0]["eval/held_out/accuracy"] < steps[-1]["eval/held_out/accuracy"]
    page = (here / "runs/sums/report/index.html").read_text(encoding="utf-8")
    assert "All 2,560 episodes" in page and "Signs of collapse" in page
    assert json.loads((here / "out/sums/config.json").read_text())["model_type"] == "qwen3"
