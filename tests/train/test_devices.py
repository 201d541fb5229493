"""An engine on devices of its own, on 8 fake devices: in turns with the learner, the same tokens as on shared devices;
with steps played ahead, each with the weights it should have, and the same bits after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.run.steps import unpacked
from tests.flags import fake_devices
from tests.shapes import like
from tests.train import runs
from tests.train import test_processes as several
from tests.user_game.test_user_game import MODEL, prepare

COMMON = (
    "train.save_every=1",
    "train.keep=9",
    "evaluate.every=2",
    "learner.micro_batch_rows=4",
    "optimizer.learning_rate=1e-3",
    "optimizer.eps=1e-6",  # as in test_processes.py
)
APART = ("rollout.devices=4",)
AHEAD = ("train.one_step_off_policy=true", "coordination.loss.rollout_cap=2.0", "train.steps=5")
SCOPE = (
    *runs.SCOPE,
    "train.keep=9",
    "scope.iterations=1",
    "scope.max_batches=1",
    "scope.challenger.loss.rollout_cap=2.0",
    "scope.solver.loss.rollout_cap=2.0",
    "rollout.devices=1",
    "train.one_step_off_policy=true",
)
TRAIN = """
import sys
from pathlib import Path
from tests.user_game.test_user_game import run
run(Path(sys.argv[1]), *sys.argv[2:])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("letters")
    prepare(folder)
    return folder


def start(folder: Path, name: str, devices: int, *sets: str) -> subprocess.Popen[str]:
    """A run of the game of letters on so many devices."""
    command = [sys.executable, "-c", TRAIN, str(folder), name, *COMMON, *sets]
    return runs.start(command, XLA_FLAGS=fake_devices(devices), PYTHONPATH=str(runs.ROOT))


def finish(folder: Path, name: str, devices: int, *sets: str) -> Path:
    runs.end(start(folder, name, devices, *sets))
    return folder / name


@pytest.fixture(scope="module")
def apart(folder: Path) -> Path:
    return finish(folder, "apart", 8, *APART, "coordination.loss.rollout_cap=2.0", "train.steps=3")


@pytest.fixture(scope="module")
def ahead(folder: Path) -> Path:
    return finish(folder, "ahead", 8, *APART, *AHEAD)


@pytest.mark.slow
def test_devices_of_its_own_change_no_token(folder: Path, apart: Path) -> None:
    """4 that learn and 4 that generate against 4 that do both. (XLA's CPU client divides sums by its number of devices,
    so that updates differ by rounding.)"""
    shared = finish(folder, "shared", 4, "coordination.loss.rollout_cap=2.0", "train.steps=3")
    several.same_step(shared, apart)
    left, right = (runs.lines(run, "episodes.jsonl") for run in (shared, apart))
    assert [record["text"] for record in left] == [record["text"] for record in right]


def test_steps_played_ahead_have_the_weights_before_the_last_update(apart: Path, ahead: Path) -> None:
    before, *metrics = runs.lines(ahead, "metrics.jsonl")
    assert [line["staleness"] for line in metrics] == [0.0, 1.0, 1.0, 1.0, 1.0] and "staleness" not in before
    # π_old / μ: engine and learner differ by rounding in the first step, afterwards by an update.
    off = [abs(line["caller+guesser/rollout_weight_mean"] - 1.0) for line in metrics]
    mismatch = [line["caller+guesser/mismatch_mean"] for line in metrics]
    assert 100 * off[0] < min(off[1:]) and 100 * mismatch[0] < min(mismatch[1:]), (off, mismatch)
    # Learned in turn from what the first step has sampled: the same update as without.
    left, right = runs.arrays(ahead, 1), runs.arrays(apart, 1)
    assert left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)
    held = [set(runs.memory(ahead, step)) for step in (1, 2, 3, 4, 5)]
    assert held == [{"game", "baselines", "ahead"}] * 4 + [{"game", "baselines"}]  # nothing follows the last step


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3])
def test_a_killed_run_with_steps_played_ahead_ends_with_the_same_bits(folder: Path, ahead: Path, step: int) -> None:
    name = f"killed-{step}"
    process = start(folder, name, 8, *APART, *AHEAD)
    runs.wait_for(process, lambda: step in runs.saved(folder / name))
    os.kill(process.pid, signal.SIGKILL)
    runs.end(process, -signal.SIGKILL)
    assert 5 not in runs.saved(folder / name)
    runs.same(ahead, finish(folder, name, 8, *APART, *AHEAD))


@pytest.mark.slow
def test_replayed_experts_of_a_step_played_ahead_survive_a_kill(tmp_path: Path) -> None:
    prepare(tmp_path, like(MODEL, architecture="qwen3_moe", num_experts=8, experts_per_token=2, norm_topk_prob=True))
    sets = (*APART, *AHEAD, "train.steps=3", "learner.router_replay=true")
    whole = finish(tmp_path, "whole", 8, *sets)
    for datum in (one for episode in unpacked(runs.memory(whole, 1)["ahead"]).episodes for one in episode.datums):
        assert datum.picked_TLk is not None and datum.picked_TLk.shape == (len(datum.ids_T), 1, 2)
        assert (datum.picked_TLk[:-1, 0, 0] != datum.picked_TLk[:-1, 0, 1]).all()
    process = start(tmp_path, "killed", 8, *sets)
    runs.wait_for(process, lambda: 1 in runs.saved(tmp_path / "killed"))
    os.kill(process.pid, signal.SIGKILL)
    runs.end(process, -signal.SIGKILL)
    assert 3 not in runs.saved(tmp_path / "killed")
    runs.same(whole, finish(tmp_path, "killed", 8, *sets))


def spec(folder: Path, name: str, processes: int, *sets: str) -> dict[str, Any]:
    """A run of the game of letters on 8 devices in all, half of which generate, see several.py."""
    chosen = (*COMMON, f"rollout.devices={4 // processes}", *sets)
    overrides = [part for override in chosen for part in ("--set", override)]
    arguments = ["train", str(folder / "card.toml"), "--run", str(folder / name), *overrides]
    log = str(folder / f"{name}.log")
    return {"processes": processes, "devices": 8 // processes, "arguments": arguments, "log": log}


@pytest.mark.slow
def test_two_processes_with_devices_of_their_own_play_and_learn_as_one(folder: Path) -> None:
    """2 of 4 devices in each process against 4 of 8 in one."""
    sets = ("coordination.loss.rollout_cap=2.0", "train.steps=1", "evaluate.sets=[]")
    specs = [spec(folder, name, processes, *sets) for processes, name in ((1, "one"), (2, "two"))]
    several.do(folder, *specs)
    several.same_step(folder / "one", folder / "two")


@pytest.mark.slow
def test_two_processes_play_a_step_ahead_as_one_does_and_end_with_the_same_bits_after_a_kill(
    folder: Path, ahead: Path
) -> None:
    """Of 5 steps all but the first are played ahead; process 1 is killed in the fourth. Everything that is exchanged
    goes through the devices."""
    whole = spec(folder, "ahead-two", 2, *AHEAD) | {"small": 1024}
    several.do(folder, whole)
    several.same_step(ahead, folder / "ahead-two")
    trained = [line for line in runs.lines(folder / "ahead-two", "metrics.jsonl") if "staleness" in line]
    assert [line["staleness"] for line in trained] == [0.0, 1.0, 1.0, 1.0, 1.0]
    killed = spec(folder, "ahead-killed", 2, *AHEAD) | {"small": 1024}
    process = several.begin(folder, killed)
    runs.wait_for(process, lambda: 3 in runs.saved(folder / "ahead-killed"))
    os.kill(int(Path(f"{killed['log']}.1.pid").read_text()), signal.SIGKILL)
    output, _ = process.communicate(timeout=runs.LIMIT)
    assert json.loads(output) == [[1, -signal.SIGKILL]]
    assert 5 not in runs.saved(folder / "ahead-killed")
    several.do(folder, killed)
    runs.same(folder / "ahead-two", folder / "ahead-killed")


@pytest.mark.slow
@pytest.mark.parametrize("card", ["scope/atlas.toml", "scope/adapters/atlas.toml"])
def test_a_killed_run_of_scope_played_ahead_ends_with_the_same_bits(card: str, tmp_path: Path) -> None:
    """Policies and judge are whole weights, or adapters. Two steps of the challenger, tasks, two of the solver, on one
    device that learns and one that generates; only the second step of each is played ahead. Killed while the fourth
    step, of the solver, is in hand."""

    def begin(name: str) -> subprocess.Popen[str]:
        command = runs.command(card, tmp_path / name, SCOPE)
        return runs.start(command, XLA_FLAGS=fake_devices(2))

    runs.end(begin("whole"))
    metrics = runs.lines(tmp_path / "whole", "metrics.jsonl")
    trained = [line["staleness"] for line in metrics if "staleness" in line]
    process = begin("killed")
    runs.wait_for(process, lambda: 4 in runs.saved(tmp_path / "killed"))
    os.kill(process.pid, signal.SIGKILL)
    runs.end(process, -signal.SIGKILL)
    runs.end(begin("killed"))
    assert trained.count(1.0) == 2, metrics
    runs.same(tmp_path / "whole", tmp_path / "killed")
