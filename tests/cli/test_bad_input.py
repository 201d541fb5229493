"""User errors: one message on standard error, exit code 2, no partial output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.games import load_card
from scope_jax.run.folder import RunFolder

ROOT = Path(__file__).parents[2]
CARD = """
system = "ssp"
[model]
checkpoint = "models/nowhere"
[retrieval]
corpus = "nowhere/corpus.jsonl"
[data]
answers = "nowhere/answers.jsonl"
[train]
steps = 1
[ssp]
grader = "exact-match"
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result: Result) -> str:
    """The one-line message of an error."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    sentences = [line for line in result.stderr.splitlines() if line.startswith("scope-jax: ")]
    assert len(sentences) == 1, result.stderr
    assert result.stderr.endswith(sentences[0] + "\n")
    assert sentences[0].endswith((".", ")", "?"))
    return sentences[0]


def test_replay_needs_two_runs_of_scope(tmp_path: Path) -> None:
    assert "does not exist" in refused(run("replay", tmp_path / "none", tmp_path))
    assert "is not a run folder" in refused(run("replay", tmp_path, tmp_path))
    (tmp_path / "config.toml").write_text(CARD)
    assert "the card's system is 'ssp'" in refused(run("replay", tmp_path, tmp_path))


@pytest.fixture
def card(tmp_path: Path) -> Path:
    path = tmp_path / "card.toml"
    path.write_text(CARD)
    return path


def test_missing_card(tmp_path: Path) -> None:
    text = refused(run("train", tmp_path / "none.toml", "--run", tmp_path / "run"))
    assert "none.toml: no such card" in text
    assert not (tmp_path / "run").exists()


def test_unknown_key(card: Path, tmp_path: Path) -> None:
    card.write_text(CARD + "\n[optimizer]\nlearning_rte = 1.0\n")
    text = refused(run("train", card, "--run", tmp_path / "run"))
    assert "card.toml" in text
    assert text.endswith(": unknown key `optimizer.learning_rte`; perhaps `optimizer.learning_rate` is meant.")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("trian.steps", "`trian`; perhaps `train` is meant"),
        ("ssp.solver.los.kl", "`ssp.solver.los`; perhaps `ssp.solver.loss` is meant"),
        ("judge.timout", "`judge.timout`; perhaps `judge.timeout` is meant"),
        ("train.learning_rate", "`train.learning_rate`; perhaps `optimizer.learning_rate` is meant"),
        ("train.nonsense", "`train.nonsense`; remove it or correct its name"),
    ],
)
def test_what_an_unknown_key_may_mean(card: Path, tmp_path: Path, key: str, said: str) -> None:
    assert said in refused(run("train", card, "--run", tmp_path / "run", "--set", f"{key}=3"))


def test_a_run_of_another_game_is_told_by_the_game(card: Path, tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", load_card(card))
    log.metrics(0, {"eval/held-out/accuracy": 0.25})
    log.close()
    text = refused(run("train", "spice/atlas", "--run", tmp_path / "run"))
    assert "run is of the game 'ssp', and the card's system is 'spice'; give another folder" in text
    assert "different values" not in text


def test_cards_that_extend_nothing_or_each_other(card: Path, tmp_path: Path) -> None:
    (tmp_path / "child.toml").write_text('extends = "none.toml"\n')
    text = refused(run("train", tmp_path / "child.toml", "--run", tmp_path / "run"))
    assert "child.toml: extends" in text and "none.toml, which does not exist" in text
    (tmp_path / "one.toml").write_text('extends = "two.toml"\n')
    (tmp_path / "two.toml").write_text('extends = "./one.toml"\n')
    assert "remove one of the two" in refused(run("train", tmp_path / "one.toml", "--run", tmp_path / "run"))
    (tmp_path / "child.toml").write_text("extends = 3\n")
    assert "`extends` must be the path of one card" in refused(
        run("train", tmp_path / "child.toml", "--run", tmp_path / "run")
    )
    assert not (tmp_path / "run").exists()


def test_card_that_is_not_toml(card: Path, tmp_path: Path) -> None:
    card.write_text("system = ssp\n")
    assert "not valid TOML" in refused(run("train", card, "--run", tmp_path / "run"))


def test_encodings_of_cards(card: Path, tmp_path: Path) -> None:
    """Editors on Windows write a mark before UTF-8, and redirected output of its shell is UTF-16."""
    card.write_bytes(b"\xef\xbb\xbf" + CARD.replace("\n", "\r\n").encode())
    assert load_card(card).train.steps == 1
    card.write_bytes(CARD.encode("utf-16"))
    assert "card.toml: not UTF-8 (byte 1 is 0xff); save the file as UTF-8." in refused(run("check", card))
    card.write_bytes(b"# caf\xe9\n" + CARD.encode())
    assert "card.toml: not UTF-8 (byte 6 is 0xe9); save the file as UTF-8." in refused(run("check", card))


def test_a_folder_is_no_card(card: Path, tmp_path: Path) -> None:
    """A run is often given where its card is wanted."""
    (tmp_path / "run").mkdir()
    assert f"{tmp_path / 'run'} is a folder, not a card; give a TOML file." in refused(run("check", tmp_path / "run"))
    own = tmp_path / "run" / "config.toml"
    own.write_text(CARD)
    assert f"is a folder, not a card; give its card, {own}." in refused(run("check", tmp_path / "run"))
    card.write_text('extends = "run"\n')
    assert f"extends {tmp_path / 'run'}, which is a folder; give a path" in refused(run("check", card))


def test_a_file_is_no_folder(card: Path, tmp_path: Path) -> None:
    for words in (("serve", card), ("chat", card), ("eval", card), ("convert", card, tmp_path / "out", "--to", "hf")):
        assert f"{card} is a file; give a run, one of its checkpoints or a" in refused(run(*words))


def test_a_mistyped_data_set_leaves_no_folder(tmp_path: Path) -> None:
    assert "there is no data set 'nqq'" in refused(run("data", "nqq", tmp_path / "data" / "exams" / "nq.jsonl"))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.steps", "not of the form a.b=value"),
        ('data.columns={reply="x"}', "unknown key `data.columns.reply`; give one of 'question', 'answers', "),
        ('model.stop=[""]', "`model.stop.0` must not be empty."),
        ('evaluate.sets=[{name="a b", path="x"}]', "`evaluate.sets.0.name` must match the pattern ^["),
        ("model.adapter={rank=4, targets=[]}", "`model.adapter.targets` must not be empty."),
        ("model.chat_template_kwargs={messages=1}", "'messages' is not a variable of the template that a card"),
        ("model.chat_template_kwargs={add_generation_prompt=false}", "'add_generation_prompt' is not a variable"),
        ("model.chat_template_kwargs={chat_template='x'}", "'chat_template' is not a variable"),
        ("model.checkpoint=~/none", "'~/none' begins with ~, which only a shell expands; write ${HOME}/…"),
        ("model.checkpoint=$HOME/none", "'$HOME/none' begins with $, which only a shell expands; write ${HOME}/…"),
        ("train.steps=many", "train.steps"),
        ("train.stops=3", "unknown key `train.stops`"),
        ("system.steps=3", "is a value, not a table"),
        ("train.batch_size=0", "`train.batch_size` is 0 but must be at least 1"),
        ("optimizer.learning_rate=nan", "must be a finite number"),
        ("ssp.solver.loss.clip_low=1.5", "must be at most 1"),
        ("data.min_searches=5", "min_searches must be at most max_searches"),
        ('judge={url="http://me:hunter2@host/v1", model="m"}', "an environment variable that api_key_env names"),
    ],
)
def test_broken_override(card: Path, tmp_path: Path, override: str, words: str) -> None:
    text = refused(run("train", card, "--run", tmp_path / "run", "--set", override))
    assert words in text and "card.toml" in text and "hunter2" not in text
    assert not (tmp_path / "run").exists()


def test_foreign_run_folder(card: Path, tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("")
    text = refused(run("train", card, "--run", folder))
    assert f"{folder} is not empty and is not a run" in text
    assert [path.name for path in folder.iterdir()] == ["chapter.tex"]


def test_run_folder_of_another_config(card: Path, tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", load_card(card))
    log.metrics(0, {"eval/held-out/accuracy": 0.25})
    log.close()
    text = refused(run("train", card, "--run", tmp_path / "run", "--set", "seed=3"))
    assert "was started with different values of seed" in text


def test_missing_model_checkpoint(card: Path, tmp_path: Path) -> None:
    assert "nowhere" in refused(run("train", card, "--run", tmp_path / "run"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_nothing_to_evaluate_or_export(tmp_path: Path) -> None:
    assert f"the folder {tmp_path / 'run'} does not exist" in refused(run("eval", tmp_path / "run"))
    assert "does not exist" in refused(run("export", tmp_path / "run", tmp_path / "out"))
    (tmp_path / "run").mkdir()
    assert "--card" in refused(run("eval", tmp_path / "run"))
    assert "is not a run folder" in refused(run("export", tmp_path / "run", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_report_of_nothing(tmp_path: Path) -> None:
    assert "does not exist" in refused(run("report", tmp_path / "none"))
    assert "is not a run folder" in refused(run("report", tmp_path))


def test_index_without_a_folder(card: Path) -> None:
    assert "has no index folder" in refused(run("index", card))


def test_a_process_prints_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scope_jax", "train", "none.toml", "--run", str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "scope-jax: none.toml: no such card; give a name that `scope-jax cards` lists, such as ssp/atlas, "
        "or a TOML file."
    ]


@pytest.mark.slow
def test_a_process_prints_one_if_asked(tmp_path: Path) -> None:
    debug = [sys.executable, "-m", "scope_jax", "--debug", "train", "none.toml", "--run", str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(debug, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    """huggingface_hub would tell of each of its six tries, twice."""
    words = ("check", "ssp/atlas", "--set", "data.answers=someone/answers")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "scope_jax", *words], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 2 and "WRONG  data: someone/answers is not a local file" in done.stdout
    assert done.stderr == "scope-jax: 1 of 10 parts of ssp/atlas cannot be used, see above.\n"
