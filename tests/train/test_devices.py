"""An engine on devices of its own, on 8 fake devices: in turns with the learner, the same tokens as on shared devices;
with steps played ahead, each with the weights it should have, and the same bits after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.flags import fake_devices
from tests.train import runs
from tests.train import test_processes as several
from tests.user_game.test_user_game import prepare

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
def test_two_processes_with_devices_of_their_own_play_and_learn_as_one(folder: Path) -> None:
    """2 of 4 devices in each process against 4 of 8 in one."""
    sets = (*COMMON, "coordination.loss.rollout_cap=2.0", "train.steps=1", "evaluate.sets=[]")
    specs = []
    for processes, name in ((1, "one"), (2, "two")):
        chosen = (*sets, f"rollout.devices={4 // processes}")
        overrides = [part for override in chosen for part in ("--set", override)]
        arguments = ["train", str(folder / "card.toml"), "--run", str(folder / name), *overrides]
        log = str(folder / f"{name}.log")
        specs.append({"processes": processes, "devices": 8 // processes, "arguments": arguments, "log": log})
    several.finish(several.begin(folder, *specs), *specs)
    several.same_step(folder / "one", folder / "two")


@pytest.mark.slow
def test_a_killed_run_of_scope_with_adapters_played_ahead_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Two steps of the challenger, tasks, two of the solver, on one device that learns and one that generates; only
    the second step of each is played ahead. Killed while the fourth step, of the solver, is in hand."""

    def begin(name: str) -> subprocess.Popen[str]:
        command = runs.command("scope/adapters/atlas.toml", tmp_path / name, SCOPE)
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
