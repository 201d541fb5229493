"""Dr. Zero, killed in any phase, ends with the bits of an uninterrupted run; with adapters; in two processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.train import runs, test_processes

pytestmark = pytest.mark.slow

# Of one iteration: two steps that train the proposer, two that write pairs, two that train the solver.
SMALL = (
    "train.save_every=1",
    "train.keep=6",
    "evaluate.sets=[]",
    "rollout.slots=16",
    "learner.micro_batch_rows=4",
    "learner.logprob_chunk=128",
    "train.batch_size=4",
    "dr_zero.iterations=1",
    "dr_zero.steps=2",
    "dr_zero.samples=2",
    "dr_zero.attempts=2",
    "dr_zero.solver.samples=8",
)
PHASES = ("proposer", "proposer", "data", "data", "solver", "solver")


def command(run: Path, card: str = "dr_zero/atlas.toml") -> list[str]:
    return runs.command(card, run, SMALL)


def trained(run: Path, step: int, suffix: str = "") -> set[str]:
    """The policies that the step has trained."""
    before, after = (runs.arrays(run, number) for number in (step - 1, step))
    names = [name for name in after if "/params/" in name and name.endswith(suffix)]
    return {name.split("/")[0] for name in names if (before[name] != after[name]).any()}


def test_each_phase_trains_its_own_policy(whole: Path) -> None:
    assert runs.saved(whole) == [1, 2, 3, 4, 5, 6]
    assert [runs.memory(whole, step)["game"]["phase"] for step in (1, 2, 3, 4, 5)] == [*PHASES[1:]]
    assert trained(whole, 2) <= {"proposer"} and not trained(whole, 3) | trained(whole, 4)
    assert trained(whole, 5) | trained(whole, 6) == {"solver"}
    assert len(runs.memory(whole, 4)["game"]["pairs"]) == 8
    assert runs.memory(whole, 6)["game"]["iteration"] == 2


@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_run_killed_in_a_phase_ends_with_the_same_bits(whole: Path, tmp_path: Path, step: int) -> None:
    run = tmp_path / "run"
    runs.kill_when(command(run), lambda: step in runs.saved(run))
    assert runs.memory(run, step)["game"]["phase"] == PHASES[step]
    runs.finish(command(run))
    runs.same(whole, run)


def test_adapters_of_both_policies_are_trained(tmp_path: Path) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    runs.finish(command(run, "dr_zero/adapters/atlas.toml"))
    arrays = runs.arrays(run, 6)
    moved = {name.split("/")[0] for name, array in arrays.items() if name.endswith("/b") and np.abs(array).max() > 0}
    assert moved == {"proposer", "solver"}
    runs.kill_when(command(again, "dr_zero/adapters/atlas.toml"), lambda: 4 in runs.saved(again))
    runs.finish(command(again, "dr_zero/adapters/atlas.toml"))
    runs.same(run, again)


def test_two_processes_play_and_learn_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = "dr_zero/atlas.toml"
    monkeypatch.setitem(test_processes.CARDS, card, (*SMALL, "rollout.slots=8"))
    one, two = tmp_path / "one", tmp_path / "two"
    test_processes.do(
        tmp_path, test_processes.spec(card, one, 1, "train.steps=1"), test_processes.spec(card, two, 2, "train.steps=1")
    )
    test_processes.same_step(one, two)
