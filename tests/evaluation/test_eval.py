"""`eval` reports errors before it reads weights, keeps its records, and counts replies without a verdict."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import datasets
import pytest
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.errors import UserError
from scope_jax.evaluation.measuring import ExamSet
from scope_jax.evaluation.metrics import set_metrics
from scope_jax.games import GAMES
from scope_jax.run import host_memory
from tests.games.harness import card, run_exam, world
from tests.shallow import shallow

ATLAS = Path("assets/atlas")
CARD = "configs/ssp/atlas.toml"
SETS = tuple(
    f'{{name="{name}", path="assets/atlas/questions_held_out.jsonl", limit={limit}}}'
    for name, limit in (("few", 2), ("more", 3))
)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Atlas's base without its weights: any error here is raised before they are read."""
    folder = shutil.copytree(ATLAS / "ssp" / "base", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    return folder


def refused(model: Path, *words: object) -> str:
    """The error raised before the missing weights are noticed; no output, no files."""
    before = sorted(model.parent.rglob("*"))
    result = run("eval", model, "--card", CARD, "--set", f"evaluate.sets=[{SETS[0]}]", *words)
    assert result.exit_code == 2 and result.stdout == "", (result.output, result.exception)
    assert sorted(model.parent.rglob("*")) == before
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("scope-jax: ")]
    return sentence


def test_configuration_errors_come_before_weights_are_read(model: Path, tmp_path: Path) -> None:
    assert "safetensors" in refused(model)
    assert f"{tmp_path / 'none'} does not exist" in refused(model, "--records", tmp_path / "none" / "found.jsonl")
    assert f"{tmp_path} is a folder" in refused(model, "--records", tmp_path)
    second = f'{{name="second", path="{tmp_path / "gone.jsonl"}"}}'
    assert "gone.jsonl does not exist" in refused(model, "--set", f"evaluate.sets=[{SETS[0]}, {second}]")
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        judged = ("--set", "ssp.grader=judge", "--set", f'judge={{url="{url}/v1", model="m"}}')
        assert "judge.txt: the prompt file does not exist" in refused(model, *judged)
        prompts = ("--set", "ssp.prompts=scope_jax/games/ssp/prompts")
        assert f"the judge at {url}/v1 cannot be reached" in refused(model, *judged, *prompts)
        # in training, only verification uses the judge; an exam does not, so the judge may be down
        verifying = ("--set", "ssp.verify=judge", *judged[2:])
        assert "safetensors" in refused(model, *verifying, *prompts)
        search = ("--set", f'retrieval={{url="{url}/retrieve", timeout=1.0}}')
        searching = tmp_path / "searching.toml"
        searching.write_text(without_retrieval())
        text = refused(model, "--card", searching, *search)
        assert f"{url}/retrieve" in text and "search server" in text


def test_slots_follow_the_memory_and_what_cannot_fit_is_refused_before_weights_are_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("eval", model, "--card", CARD, "--set", f"evaluate.sets=[{SETS[0]}]")
    monkeypatch.setattr(host_memory, "resident", lambda: 2**33)
    monkeypatch.setattr(host_memory, "available", lambda: 2**25)
    assert "(rollout.slots = 8, of rollout.max_length = 512 tokens), of 0.03 GiB free" in run(*words).stderr
    assert "(rollout.slots = 16, of" in refused(model, "--set", "rollout.slots=16")
    monkeypatch.setattr(host_memory, "available", lambda: 2**20)
    text = refused(model)
    assert (
        "(rollout.slots = 1, of rollout.max_length = 512 tokens), but 0.00 GiB are free; lower rollout.max_length or"
        in text
    )


def test_without_a_card_rows_are_as_long_as_the_model_can_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps({"question": "What is 2 + 3?", "answers": ["5"]}) + "\n")
    done = run("eval", model, "--exam", "gsm8k", "--data", tmp_path, "--max-tokens", 16)
    assert "in float32" in done.stderr and "of rollout.max_length = 1024 tokens" in done.stderr
    assert "model.safetensors" in done.stderr.splitlines()[-1]


def test_a_set_of_the_hub_is_read_without_a_progress_bar(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent: list[bool] = []

    def load_dataset(*_: Any, **__: Any) -> None:
        silent.append(datasets.are_progress_bars_disabled())
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    datasets.enable_progress_bars()
    assert "cannot be loaded from the hub" in refused(model, "--set", 'evaluate.sets=[{name="s", path="o/s"}]')
    assert silent == [True]


def without_retrieval() -> str:
    """The card without its [retrieval] table, which an override cannot remove."""
    text = Path(CARD).read_text(encoding="utf-8")
    before, _, after = text.partition("[retrieval]")
    return before + after[after.index("[rollout]") :]


def test_sets_are_saved_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the judge fails in the second set, the records of the first remain; a complete exam replaces them."""
    lost = [True]

    def records(self: ExamSet, tools: Any, answers: Any) -> list[dict[str, Any]]:
        if len(self.rows) == 3 and lost:
            raise UserError("the judge is gone.")
        return [{"question": row["question"], "measures": {"accuracy": 1.0}, "counts": {}} for row in self.rows]

    monkeypatch.setattr(ExamSet, "records", records)
    found = tmp_path / "found.jsonl"
    small = ("rollout.slots=4", "rollout.max_length=256", "retrieval.dim=32", "evaluate.max_tokens=8")
    sets = [word for override in (*small, f"evaluate.sets=[{', '.join(SETS)}]") for word in ("--set", override)]
    command = ("eval", shallow("ssp"), "--card", CARD, *sets)
    result = run(*command, "--records", found)
    assert result.exit_code == 2 and "few: accuracy 1" in result.stderr and "the judge is gone" in result.stderr
    kept = [json.loads(line)["set"] for line in (tmp_path / "found.jsonl.partial").read_text().splitlines()]
    assert kept == ["few", "few"] and not found.exists()
    lost.clear()
    assert run(*command, "--records", found).exit_code == 0
    assert [json.loads(line)["set"] for line in found.read_text().splitlines()] == ["few"] * 2 + ["more"] * 3
    assert not (tmp_path / "found.jsonl.partial").exists()


def test_replies_without_a_verdict_are_counted() -> None:
    rows = [{"question": f"{name}?", "answers": [name]} for name in ("Paris", "Rome", "Oslo")]

    def script(ctx: Any) -> str:
        return "<think>x</think><answer>Oslo</answer>"

    cfg = card(grader="exact-match-then-judge", judge_table={"url": "http://judge/v1", "model": "m"})
    tools = world(script, judge_reply=lambda message: "hm" if "Rome" in message else "Wrong")
    records = run_exam(GAMES["ssp"], cfg, tools, rows)
    metrics = set_metrics("eval", "held-out", records)
    assert metrics["eval/held-out/judge_requests"] == 2.0 and metrics["eval/held-out/judge_unparsed"] == 1.0
    assert metrics["eval/held-out/accuracy"] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_an_index_of_another_encoder_is_rebuilt_on_request(tmp_path: Path) -> None:
    command = ("index", CARD, "--set", f"retrieval.index={tmp_path / 'index'}", "--set")
    assert run(*command, "retrieval.dim=16").exit_code == 0
    result = run(*command, "retrieval.dim=32")
    assert result.exit_code == 2 and "built from another encoder" in result.stderr
    assert "scope-jax index CARD --rebuild" in result.stderr
    said = re.search("`scope-jax (index CARD .*)`", result.stderr)
    assert said is not None  # also for the index of a run, whose card names no folder
    words = [CARD if word == "CARD" else word for word in shlex.split(said[1])]
    assert run(*words, "--set", "retrieval.dim=32").exit_code == 0
    assert run(*command, "retrieval.dim=32").exit_code == 0
