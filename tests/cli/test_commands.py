"""Commands whose results do not need a trained model, and the launcher."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launch import run as launch
from scope_jax import errors
from scope_jax.cli import app
from scope_jax.games import parse_config
from scope_jax.grading.rewards import mean
from scope_jax.run import rules
from scope_jax.run.folder import RunFolder

ROOT = Path(__file__).parents[2]
TABLE = {
    "system": "ssp",
    "model": {"checkpoint": "base"},
    "retrieval": {"corpus": "corpus.jsonl"},
    "data": {"answers": "answers.jsonl"},
    "train": {"steps": 2},
    "ssp": {"grader": "exact-match"},
}


def test_help_names_every_command_without_starting_jax() -> None:
    code = (
        "import sys; from scope_jax.cli import app; app(['--help'], standalone_mode=False); print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    for command in ("train", "demo", "eval", "export", "convert", "index", "report"):
        assert f" {command} " in done.stdout


def test_report_prints_the_page(tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", parse_config(TABLE, "card"))
    log.metrics(0, {"eval/held-out/accuracy": 0.5})
    log.metrics(1, {"solver/reward": 0.25})
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--json"])
    assert result.exit_code == 0, result.output
    page = Path(json.loads(result.stdout.splitlines()[-1])["page"])
    assert page == tmp_path / "run" / "report" / "index.html"
    assert "50.0 %" in page.read_text()


def test_report_ignores_an_incomplete_last_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    RunFolder(run, parse_config(TABLE, "card")).metrics(1, {"solver/reward": 0.25})
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole + '{"step": 2, "solver/rew')
    (run / "episodes.jsonl").write_text('{"step": 1, "role": "sol')
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 0, result.output
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert f"{run / name} ends with an incomplete line" in result.stderr
        assert f"{run / name} ends with an incomplete line" in (run / "report" / "index.html").read_text()
    (run / "metrics.jsonl").write_text('{"step": 0, "solver\n' + whole)
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"scope-jax: line 1 of {run / 'metrics.jsonl'} is not valid JSON")


def test_launch_prints_the_command_of_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    card = tmp_path / "card.toml"
    card.write_text('system = "ssp"\n[model]\ncheckpoint = "b"\n[retrieval]\ncorpus = "c"\n[data]\nanswers = "a"\n'
                    '[train]\nsteps = 2\n[ssp]\ngrader = "exact-match"\n[launch]\nfake_devices = 4\n')  # fmt: skip
    assert launch.main([str(card), "--run", "runs/x", "--set", "train.steps=5", "--print"]) == 0
    assert capsys.readouterr().out.strip() == (
        f"XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu "
        f"{sys.executable} -m scope_jax train {card} --run runs/x --set train.steps=5"
    )
    assert launch.main([str(tmp_path / "none.toml"), "--run", "runs/x"]) == 2
    assert "no such card" in capsys.readouterr().err


def caught(action) -> BaseException:
    with pytest.raises(Exception) as info:
        action()
    return info.value


def test_a_bug_shows_where_it_is_and_asks_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strict zip of unequal lengths is a ValueError, of which we have many: a bug, whatever file raises it."""

    source = "def broken(*given):\n    for _ in zip([1, 2], [1], strict=True):\n        pass\n"
    for file, said in (
        (rules.__file__, "a bug in scope-jax"),
        ("/home/me/game.py", "your code fails in /home/me/game.p"),
    ):
        names: dict[str, Any] = {}
        exec(compile(source, file, "exec"), names)
        monkeypatch.setattr(rules, "check", names["broken"])
        result = CliRunner().invoke(app, ["check", "ssp/atlas"])
        assert isinstance(result.exception, ValueError) and result.exit_code == 1
        assert said in result.stderr and ("CONTRIBUTING.md" in result.stderr) == (file == rules.__file__)


GAME = """
from scope_jax.config import LossCard, SamplingSection, Section
from scope_jax.play.game import Game
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent

class Options(Section):
    loss: LossCard = LossCard()

def roles(cfg):
    return (Role("solver", Agent("actor", SamplingSection()), loss=cfg.options(Options).loss),)

def play(step):
    BODY

GAME = Game("own", Options, roles, play)
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            'return {}["x"]',
            'your code fails in {game}, line 14:\nTraceback (most recent call last):\n  File "{game}", l',
        ),
        ("step.rows(0, 1)", "scope-jax: the game reads rows, but names no data; give Game(…, data=("),
        ('step.play("solve", [])', "scope-jax: there is no role 'solve'; the game has solver (Game.roles)."),
        (
            "return []",
            "scope-jax: play of the game own returned a list; it is no async function or generator, and retu",
        ),
    ],
)
def test_an_error_in_a_game_of_ones_own_shows_that_game_alone(tmp_path: Path, body: str, said: str) -> None:
    game, card = tmp_path / "game.py", tmp_path / "card.toml"
    game.write_text(GAME.replace("BODY", body), encoding="utf-8")
    base = ROOT / "assets" / "atlas" / "ssp" / "base"
    card.write_text(f'system = "{game}"\n[model]\ncheckpoint = "{base}"\n[train]\nsteps = 1\n', encoding="utf-8")
    sets = ["--set", "rollout.max_length=64", "--set", "learner.buckets=[64]"]
    words = [sys.executable, "-m", "scope_jax", "check", str(card), *sets]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "typer" not in done.stderr and len(done.stderr.splitlines()) < 8
    if "Traceback" in said:
        assert said.format(game=game) in done.stderr and done.stderr.endswith("KeyError: 'x'\n")
    else:
        assert said.partition(": ")[2] in done.stdout and "Traceback" not in done.stderr


def test_which_errors_are_user_errors(tmp_path: Path) -> None:
    assert errors.is_users(errors.UserError("x"))
    assert errors.is_users(caught(lambda: parse_config({}, "card")))
    assert errors.is_users(caught(lambda: (tmp_path / "none").read_text()))
    assert not errors.is_users(caught(lambda: json.loads("{")))  # raised inside a library: a bug of ours
    assert not errors.is_users(caught(lambda: {}["x"]))
    assert not errors.is_users(caught(lambda: mean([])))  # raised by a function of ours that was called wrongly
    assert errors.sentence(ValueError("two\n  lines")) == "two lines."
