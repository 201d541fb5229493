"""SCOPE, killed in any stage, resumes and ends with the bits of an uninterrupted run: policies, tasks, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train import runs

pytestmark = pytest.mark.slow

# Two iterations of 2 challenger steps, 2 batches of tasks (fewer than the target) and 2 solver steps.
SMALL = (*runs.SCOPE, "scope.iterations=2", "scope.max_batches=2")
# Metrics that only steps of that stage have.
STAGES = {"challenger": "estimate/reward", "tasks": "tasks/kept", "solver": "solver/reward"}


def command(run: Path) -> list[str]:
    return runs.command("scope/atlas.toml", run, SMALL)


def steps(run: Path, stage: str, iteration: int) -> list[int]:
    """The steps of a stage."""
    records = runs.lines(run, "metrics.jsonl")
    return [r["step"] for r in records if STAGES[stage] in r and r["iteration"] == iteration]


def moved(run: Path, policy: str) -> bool:
    """True if the policy's weights differ from the base's, of which the run holds one copy."""
    arrays = runs.arrays(run, runs.saved(run)[-1])
    base = {name.partition("/")[2]: array for name, array in runs.reference_arrays(run).items()}
    assert base
    return any((arrays[f"{policy}/params/{name}"] != array).any() for name, array in base.items())


def test_the_run_plays_every_stage_twice_and_both_policies_learn(whole: Path) -> None:
    order = [step for i in (1, 2) for stage in STAGES for step in steps(whole, stage, i)]
    assert order == list(range(1, 13)) and all(len(steps(whole, stage, i)) == 2 for i in (1, 2) for stage in STAGES)
    kept = {r["step"]: r["tasks/kept"] for r in runs.lines(whole, "metrics.jsonl") if "tasks/kept" in r}
    assert all(kept[steps(whole, "tasks", i)[-1]] > 0 for i in (1, 2))
    assert moved(whole, "challenger") and moved(whole, "solver")
    before_last = runs.memory(whole, runs.saved(whole)[-2])["game"]
    assert before_last["stage"] == "solver" and before_last["tasks"]


@pytest.mark.parametrize(("stage", "iteration"), [("challenger", 1), ("tasks", 2), ("solver", 2)])
def test_a_run_killed_in_a_stage_ends_with_the_same_bits(
    whole: Path, tmp_path: Path, stage: str, iteration: int
) -> None:
    run, first = tmp_path / "run", steps(whole, stage, iteration)[0]
    runs.kill_when(command(run), lambda: first in runs.saved(run))
    # its files show that the run was in the second step of the stage: the first is saved, the second not yet played
    assert runs.saved(run)[-1] == runs.lines(run, "metrics.jsonl")[-1]["step"] == first
    game = runs.memory(run, first)["game"]
    assert (game["stage"], game["iteration"], game["place"]) == (stage, iteration, 1)
    assert bool(game["tasks"]) == (stage != "challenger")
    runs.finish(command(run))
    runs.same(whole, run)
