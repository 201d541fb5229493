"""R-Zero as runs: each phase trains its policy against the other, with a reference of its own; kills and processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.train import runs, test_processes

pytestmark = pytest.mark.slow

CARD = "r_zero/atlas.toml"
SMALL = (
    "train.save_every=1",
    "train.keep=20",
    "evaluate.sets=[]",
    "rollout.slots=16",
    "learner.micro_batch_rows=4",
    "r_zero.iterations=2",
    "r_zero.challenger_steps=2",
    "r_zero.challenger_batch=4",
    "r_zero.votes=4",
    "r_zero.pool=12",
    "r_zero.pool_votes=4",
    "r_zero.window=[0.0, 1.0]",
    "r_zero.solver_steps=2",
    "r_zero.solver_batch=3",
    "r_zero.solver.samples=4",
)
PHASES = ["challenger", "challenger", "pool", "solver", "solver"]


def command(run: Path, *sets: str, card: str = CARD) -> list[str]:
    return runs.command(card, run, (*SMALL, *sets))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    runs.finish(command(run))
    return run


def weights(run: Path, step: int, policy: str, part: str = "params") -> dict[str, np.ndarray]:
    found = runs.arrays(run, step)
    return {name.split(f"/{part}/")[1]: array for name, array in found.items() if name.startswith(f"{policy}/{part}/")}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    assert one.keys() == other.keys() != set()
    return all(np.array_equal(array, other[name]) for name, array in one.items())


def test_each_phase_trains_one_policy(whole: Path) -> None:
    metrics = runs.lines(whole, "metrics.jsonl")
    seen = [next(phase for phase in ("pool", "challenger", "solver") if f"{phase}/reward" in line) for line in metrics]
    assert seen == 2 * PHASES and [line["iteration"] for line in metrics] == 5 * [1.0] + 5 * [2.0]
    moved = [
        {policy for policy in ("challenger", "solver") if not equal(*(weights(whole, at, policy) for at in (s, s + 1)))}
        for s in range(1, 10)
    ]
    # from each step to the next; a step whose groups have equal rewards trains nothing
    assert all(one <= {phase} for one, phase in zip(moved, (2 * PHASES)[1:], strict=True))
    assert {"challenger"} in moved and {"solver"} in moved


def reference(run: Path, step: int) -> dict[str, np.ndarray]:
    return {name.partition("/")[2]: array for name, array in runs.reference_at(run, step).items()}


def test_the_reference_of_a_phase_is_what_its_policy_began_with(whole: Path) -> None:
    """After steps 3, 5 and 8 a phase of training begins; within it the reference stays."""
    for before, policy, inside in ((3, "solver", 4), (5, "challenger", 6), (8, "solver", 9)):
        began = weights(whole, before, policy)
        assert equal(reference(whole, before), began) and equal(reference(whole, inside), began)
    assert not equal(reference(whole, 5), reference(whole, 8))


def test_with_the_base_as_reference_it_never_changes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.finish(command(run, 'r_zero.reference="base"', "r_zero.iterations=1"))
    assert len(list((run / "checkpoints").glob("reference-*"))) == 1
    assert equal(reference(run, 1), reference(run, 5))


@pytest.mark.parametrize("step", [1, 3, 4, 5])
def test_a_run_killed_in_a_phase_ends_with_the_same_bits(whole: Path, tmp_path: Path, step: int) -> None:
    """Within the challenger's phase, after the pool (the kept questions and a new reference are saved), within the
    solver's, and between iterations."""
    run = tmp_path / "run"
    runs.kill_when(command(run), lambda: step in runs.saved(run))
    game = runs.memory(run, runs.saved(run)[-1])["game"]
    assert bool(game["items"]) == (game["phase"] == "solver")
    runs.finish(command(run))
    runs.same(whole, run)


def test_adapters_of_both_policies_are_trained(tmp_path: Path) -> None:
    runs.finish(command(tmp_path / "run", "r_zero.iterations=1", card="r_zero/adapters/atlas.toml"))
    arrays = runs.arrays(tmp_path / "run", 5)
    moved = {name.split("/")[0] for name, array in arrays.items() if name.endswith("/b") and np.abs(array).max() > 0}
    assert moved == {"challenger", "solver"}


def test_one_policy_in_both_roles_is_trained_in_both_phases(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.finish(command(run, "r_zero.iterations=1", 'r_zero.policies="shared"'))
    starts = [weights(run, step, "actor") for step in (1, 3, 5)]  # the pool's step, the third, trains nothing
    assert not equal(starts[0], starts[1]) and not equal(starts[1], starts[2])
    assert equal(starts[1], weights(run, 2, "actor"))
    assert equal(reference(run, 3), starts[1])  # the solver's phase begins with what the challenger's has trained


def test_two_processes_play_and_learn_as_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    specs = []
    for run, processes in ((one, 1), (two, 2)):
        arguments = command(run, "r_zero.iterations=1", "rollout.slots=16", "mesh.fsdp=-1")[3:]
        log = {"log": f"{run}.log", "arguments": arguments}
        specs.append({"processes": processes, "devices": 4 // processes, **log})
    test_processes.do(tmp_path, *specs)
    test_processes.same_step(one, two)
    assert {line["step"] for line in runs.lines(two, "metrics.jsonl")} == {1, 2, 3, 4, 5}
