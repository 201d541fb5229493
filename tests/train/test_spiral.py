"""SPIRAL, killed between or within steps, ends with the bits of an uninterrupted run; adapters; two processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.train import runs, test_processes

pytestmark = pytest.mark.slow

SMALL = (
    "train.steps=3",
    "train.save_every=1",
    "train.keep=3",
    "evaluate.sets=[]",
    "rollout.slots=16",
    "learner.micro_batch_rows=4",
    "learner.logprob_chunk=128",
    "spiral.turns=48",
    "spiral.passes=2",
    'spiral.loss.old_logprobs="rollout"',
)


def command(run: Path, card: str = "spiral/atlas.toml") -> list[str]:
    return runs.command(card, run, SMALL)


def test_a_step_trains_its_turns_and_moves_the_baselines(whole: Path) -> None:
    episodes = runs.lines(whole, "episodes.jsonl")
    for step in (1, 2, 3):
        trained = [episode for episode in episodes if episode["step"] == step and episode["trained"]]
        assert len(trained) == 48
    baselines = [runs.memory(whole, step)["game"]["b"] for step in (1, 2, 3)]
    assert len(baselines[2]) == 6 and all(abs(value) < 2 for value in baselines[2].values())
    assert baselines[0] != baselines[1] != baselines[2]
    last = runs.lines(whole, "metrics.jsonl")[-1]
    assert {name: last[f"{name}/baseline"] for name in baselines[2]} == baselines[2]
    (norm,) = (value for name, value in last.items() if name.endswith("/grad_norm"))
    assert norm > 0


@pytest.mark.parametrize("moment", ["between steps", "in a step"])
def test_a_killed_run_ends_with_the_same_bits(whole: Path, tmp_path: Path, moment: str) -> None:
    run = tmp_path / "run"
    log = run / "metrics.jsonl"
    moments = {
        "between steps": lambda: 1 in runs.saved(run),
        "in a step": lambda: log.is_file() and log.read_bytes().count(b"\n") >= 2 and 2 not in runs.saved(run),
    }
    runs.kill_when(command(run), moments[moment])
    runs.finish(command(run))
    runs.same(whole, run)


@pytest.mark.parametrize("card", ["spiral/adapters/atlas.toml", "spiral/adapters/atlas-two-policies.toml"])
def test_adapters_of_all_policies_are_trained(tmp_path: Path, card: str) -> None:
    runs.finish(command(tmp_path / "run", card))
    arrays = runs.arrays(tmp_path / "run", 3)
    moved = {name.split("/")[0] for name, array in arrays.items() if name.endswith("/b") and np.abs(array).max() > 0}
    assert moved == ({"first_player", "second_player"} if "two" in card else {"actor"})


def test_two_processes_play_and_learn_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = "spiral/atlas.toml"
    monkeypatch.setitem(test_processes.CARDS, card, (*SMALL, "train.steps=1"))
    one, two = tmp_path / "one", tmp_path / "two"
    test_processes.do(tmp_path, test_processes.spec(card, one, 1), test_processes.spec(card, two, 2))
    test_processes.same_step(one, two)
