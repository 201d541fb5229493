"""Mistakes of the first hour: each ends in one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app

TRAIN = ["train", "ssp/atlas", "--run", "run"]
FOLDER = "the folder nowhere does not exist; give a run, one of its checkpoints or a Hugging Face folder."
GIVEN = "give the folder passed to train as --run."
CARD = "ssp/atlsa: no such card; give a name that `scope-jax cards` lists"
MISTAKES = {
    "no card": (["train"], "missing argument 'CARD'; see scope-jax train --help."),
    "no run folder": (["train", "ssp/atlas"], "missing option '--run'; see scope-jax train --help."),
    "a mistyped command": (["trian"], "no such command 'trian'; did you mean 'train'? See scope-jax --help."),
    "an unknown option": (["index", "ssp/atlas", "--bogus"], "no such option: --bogus; see scope-jax index --help."),
    "a mistyped card": (["train", "ssp/atlsa", "--run", "run"], CARD),
    "a card that is no TOML": (["train", "bad.toml", "--run", "run"], "bad.toml: not valid TOML: Expected ']'"),
    "an empty card": (
        ["train", "empty.toml", "--run", "run"],
        "key `system` is missing; add it; key `model` is missing",
    ),
    "a base that is not there": (
        ["train", "base.toml", "--run", "run"],
        "which does not exist; give a path relative to",
    ),
    "a run in a file": (["train", "ssp/atlas", "--run", "file"], "the run folder file is a file; give a folder"),
    "a mistyped key": ([*TRAIN, "--set", "train.step=4"], "unknown key `train.step`; perhaps `train.steps` is meant."),
    "no value": ([*TRAIN, "--set", "train.steps"], "--set 'train.steps' is not of the form a.b=value."),
    "a word for a number": ([*TRAIN, "--set", "train.steps=abc"], "`train.steps` must be a whole number."),
    "a mistyped game": ([*TRAIN, "--set", "system=ssq"], "`system` is 'ssq', which is not a game; give one of"),
    "a mistyped choice": ([*TRAIN, "--set", "ssp.grader=gpt"], "`ssp.grader` must be 'exact-match', 'judge' or"),
    "rows too short": (
        [*TRAIN, "--set", "learner.buckets=[16]"],
        "with --set learner.buckets: rollout.max_length is 512 but the largest of learner.buckets is 16",
    ),
    "a run that is not there": ([*TRAIN, "--from", "nothing"], "nothing has no checkpoint: give a run folder"),
    "a mistyped GPU": (["plan", "ssp/atlas", "--on", "8xH10"], "--on 8xH10 is not known hardware; give a TPU topology"),
    "a GPU without number": (
        ["plan", "ssp/atlas", "--on", "H100"],
        "--on H100 does not say how many; give --on 1xH100",
    ),
    "quick and whole": (["plan", "ssp/atlas", "--quick", "--whole"], "--whole compiles programs, and --quick none"),
    "eval of nothing": (["eval", "nowhere"], FOLDER),
    "chat with nothing": (["chat", "nowhere"], FOLDER),
    "serve of nothing": (["serve", "nowhere"], FOLDER),
    "a report of nothing": (["report", "nowhere"], f"the run folder nowhere does not exist; {GIVEN}"),
    "a report of a file": (["report", "file"], f"the run folder file is a file; {GIVEN}"),
    "an export of nothing": (["export", "nowhere", "out"], f"the run folder nowhere does not exist; {GIVEN}"),
    "an evaluation of a model alone": (
        ["eval", str(Path("assets/atlas/ssp/base").resolve())],
        "so it has no evaluation sets of its own; give the card that has some, for an export --card RUN/config.toml",
    ),
    "no layout": (["convert", "model", "out"], "missing option '--to'. Choose from: hf, orbax; see scope-jax convert"),
    "a mistyped key to read": (["keys", "train.step"], "no table or key 'train.step'; did you mean train.steps"),
    "cards of nothing": (["cards", "nowhere"], "there is no card in nowhere; give a folder with .toml files, or a"),
    "a new card of no game": (["new", "mine.toml"], "missing option '--game'; see scope-jax new --help."),
    "an index without place": (["search", "ssp/atlas"], "ssp/atlas has no index folder; give one with --index DIR"),
    "data without place": (["data", "nq"], "missing argument 'OUT'; see scope-jax data --help."),
    "unknown data": (["data", "nqq", "x.jsonl"], "there is no data set 'nqq'; give one of 2wikimultihopqa"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, sentence = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text('system = "ssp"\n[model\n')
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "base.toml").write_text('extends = "gone.toml"\n')
    (tmp_path / "file").write_text("x")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    *_, last = result.stderr.strip().splitlines()
    assert last.startswith("scope-jax: ") and sentence in last
    assert not (tmp_path / "run" / "config.toml").exists()
