"""A run of two processes has the same episodes and weights as a run of one, and ends when one of its processes does."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.run.files import TOOL_CALLS, read_records
from tests.train import runs

COMMON = ("train.save_every=1", "evaluate.sets=[]", "rollout.slots=8", "learner.micro_batch_rows=4")
# For eight devices. AdamW's first step is lr · g / (|g| + eps): with an eps of 1e-8 it also follows gradients that are
# rounding alone, and weights differ by more than 1e-6 although gradients agree to 1e-6 of the largest.
EIGHT = ("learner.micro_batch_rows=8", "optimizer.eps=1e-6")
CARDS = {
    "spice/atlas.toml": (
        "train.steps=1",
        "train.batch_size=2",
        "spice.challenger.samples=2",
        "spice.reasoner.samples=2",
    ),
    "ssp/atlas.toml": (
        "train.steps=1",
        "train.batch_size=4",
        "ssp.solver.samples=2",
    ),
    "scope/atlas.toml": (*runs.SCOPE, "train.steps=2", "rollout.slots=8"),
}
ADAPTERS = "ssp/adapters/atlas.toml"


def spec(card: str, run: Path, processes: int, *sets: str, devices: int = 4, **more: Any) -> dict[str, Any]:
    """A run of `processes` on so many devices in all, see several.py."""
    arguments = runs.command(card, run, (*COMMON, *CARDS[card.replace("adapters/", "")], *sets))[3:]
    return {
        "processes": processes,
        "devices": devices // processes,
        "arguments": arguments,
        "log": str(run) + ".log",
    } | more


def begin(folder: Path, *specs: dict[str, Any]) -> subprocess.Popen[str]:
    """Starts the runs, one after the other."""
    (folder / "spec.json").write_text(json.dumps(specs))
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(runs.ROOT / ".cache" / "jax"))
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("several.py")), str(folder / "spec.json")],
        cwd=runs.ROOT,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONPATH": str(runs.ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], *specs: dict[str, Any]) -> None:
    """Waits for the runs, which must all end well."""
    output, _ = process.communicate(timeout=3 * runs.LIMIT)
    assert json.loads(output) == [[0] * each["processes"] for each in specs], said(*specs)


def do(folder: Path, *specs: dict[str, Any]) -> None:
    finish(begin(folder, *specs), *specs)


def said(*specs: dict[str, Any]) -> str:
    """What the processes of the runs printed."""
    logs = [Path(f"{each['log']}.{n}") for each in specs for n in range(each["processes"])]
    return "\n".join(f"{log.name}:\n{log.read_text()}" for log in logs if log.is_file())


def same_step(one: Path, other: Path) -> None:
    """Asserts that the episodes of the first step are identical, the weights after it within 1e-6, and its gradients
    (their first moments) within 1e-6 of the largest."""
    first = [record for record in runs.lines(one, "episodes.jsonl") if record["step"] == 1]
    assert first and first == [record for record in runs.lines(other, "episodes.jsonl") if record["step"] == 1]
    assert runs.memory(one, 1) == runs.memory(other, 1)
    left, right = runs.arrays(one, 1), runs.arrays(other, 1)
    assert left.keys() == right.keys()
    largest = max(np.abs(array).max() for name, array in left.items() if "/mu/" in name)
    for name, array in left.items():
        if "/params/" in name:
            np.testing.assert_allclose(right[name], array, rtol=0, atol=1e-6, err_msg=name)
        if "/mu/" in name:
            np.testing.assert_allclose(right[name], array, rtol=0, atol=1e-6 * largest, err_msg=name)


def test_two_processes_play_and_learn_as_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    do(tmp_path, spec("spice/atlas.toml", one, 1), spec("spice/atlas.toml", two, 2))
    same_step(one, two)
    assert {line["step"] for line in runs.lines(two, "metrics.jsonl")} == {1}  # one writer
    assert (two / "report" / "index.html").is_file()


@pytest.mark.slow
def test_a_grader_that_runs_out_of_time_on_one_process_gives_all_the_same_rewards_also_when_resumed(
    tmp_path: Path,
) -> None:
    """Process 0 calls every mathematical answer equal, process 1 has no time for any: what the two are told is the
    same, and what a resumed run is told is what was recorded, though both of its graders say something else."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    sets = ("train.steps=2", "spice.reasoner.samples=4")
    first = spec("spice/atlas.toml", whole, 2, *sets, graders=["equal", "timeout"])
    do(tmp_path, first)
    told = [Path(f"{first['log']}.{n}.verdicts").read_text() for n in range(2)]
    assert told[0] == told[1] and '"equal"' in told[0] and '"timeout"' in told[0]
    recorded = verdicts(whole)
    assert {line["value"] for line in recorded if line["step"] == 2} == {"equal", "timeout"}

    shutil.copytree(whole, resumed)
    shutil.rmtree(runs.saved_at(resumed, 2))  # as after a kill in step 2
    do(tmp_path, spec("spice/atlas.toml", resumed, 2, *sets, graders=["unequal", "unequal"]))
    runs.same(whole, resumed)  # bit for bit
    assert verdicts(resumed) == recorded


def verdicts(run: Path) -> list[dict[str, Any]]:
    """What the run has recorded of graders of mathematical answers."""
    return [line for line in read_records(run / TOOL_CALLS) if line.get("name") == "math"]


@pytest.mark.slow
def test_adapters_in_two_processes_equal_one(tmp_path: Path) -> None:
    """On four devices; every factor is trained."""
    one, two = tmp_path / "one", tmp_path / "two"
    do(tmp_path, spec(ADAPTERS, one, 1), spec(ADAPTERS, two, 2))
    same_step(one, two)
    trained = [array for name, array in runs.arrays(two, 1).items() if "/params/" in name and name.endswith("/b")]
    assert trained and all(np.abs(array).max() > 0 for array in trained)


@pytest.mark.slow
def test_the_experts_that_the_engines_of_two_processes_picked_are_replayed_as_those_of_one(tmp_path: Path) -> None:
    """A random model in bfloat16, whose learner without replay picks others for some tokens. One process has
    one device, as over two its engine divides the experts, whose sums in bfloat16 may sample other tokens."""
    families = pytest.importorskip("tests.train.test_families")
    base = families.checkpoint("qwen3_moe", tmp_path / "base")
    one, two, replayed, without = (tmp_path / name for name in ("one", "two", "replayed", "without"))
    more = (f"model.checkpoint={base}", "model.compute_dtype=bfloat16", "optimizer.warmup_steps=1")
    replay, large = "learner.router_replay=true", "train.batch_size=24"  # some tokens of a few are picked alike
    do(tmp_path, *(spec("ssp/atlas.toml", run, n, *more, replay, devices=n) for run, n in ((one, 1), (two, 2))))
    same_step(one, two)
    with_replay = spec("ssp/atlas.toml", replayed, 2, *more, large, replay, devices=2)
    do(tmp_path, with_replay, spec("ssp/atlas.toml", without, 2, *more, large, devices=2))
    assert runs.lines(replayed, "episodes.jsonl") == runs.lines(without, "episodes.jsonl")
    apart = [runs.lines(run, "metrics.jsonl")[-1]["proposer/mismatch_kl"] for run in (replayed, without)]
    assert 0 < apart[0] < apart[1], apart


@pytest.mark.slow
@pytest.mark.parametrize("card", CARDS)
def test_eight_devices_in_two_processes_equal_one_and_delays_of_search_and_judge_change_nothing(
    card: str, tmp_path: Path
) -> None:
    one, two, late = (tmp_path / name for name in ("one", "two", "late"))
    specs = (spec(card, folder, n, *EIGHT, devices=8) for folder, n in ((one, 1), (two, 2)))
    do(tmp_path, *specs, spec(card, late, 2, *EIGHT, devices=8, delays=True))
    same_step(one, two)
    runs.same(two, late)  # bit for bit


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_other_and_one_process_finishes_the_run(killed: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    whole = spec("spice/atlas.toml", run, 2, "train.steps=40")
    process = begin(tmp_path, whole)
    runs.wait_for(process, lambda: 1 in runs.saved(run))
    os.kill(int(Path(f"{whole['log']}.{killed}.pid").read_text()), signal.SIGKILL)
    began = time.monotonic()
    output, _ = process.communicate(timeout=runs.LIMIT)
    assert time.monotonic() - began < 60
    assert json.loads(output)[0][killed] == -signal.SIGKILL and json.loads(output)[0][1 - killed] == 1
    left = Path(f"{whole['log']}.{1 - killed}").read_text()
    sentences = [line for line in left.splitlines() if line.startswith("scope-jax:")]
    assert len(sentences) == 1, left
    assert sentences[0].startswith(f"scope-jax: process {1 - killed}: process {killed} is gone (no sign of life"), left
    assert not re.search("Traceback|Check failure", left), left
    done = max(runs.saved(run))
    alone = spec("spice/atlas.toml", run, 1, f"train.steps={done + 1}")
    do(tmp_path, alone)
    assert max(runs.saved(run)) == done + 1
    assert [line["step"] for line in runs.lines(run, "metrics.jsonl")] == [*range(1, done + 2)]
    again = spec("spice/atlas.toml", run, 2, f"train.steps={done + 2}")
    do(tmp_path, again)
    assert max(runs.saved(run)) == done + 2


@pytest.mark.slow
def test_one_process_that_gets_sigterm_stops_all_after_the_same_step(tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    sets = ("train.steps=4", "train.save_every=4")
    two = spec("spice/atlas.toml", run, 2, *sets)
    process = begin(tmp_path, two)
    runs.wait_for(process, lambda: bool(runs.lines(run, "metrics.jsonl")))
    os.kill(int(Path(f"{two['log']}.1.pid").read_text()), signal.SIGTERM)
    output, _ = process.communicate(timeout=runs.LIMIT)
    assert json.loads(output) == [[143, 143]], said(two)
    (step,) = runs.saved(run)
    assert step < 4 and max(line["step"] for line in runs.lines(run, "metrics.jsonl")) == step
    last = f"scope-jax: stopped by SIGTERM after step {step}; the same command resumes from the last checkpoint."
    assert [Path(f"{two['log']}.{n}").read_text().splitlines()[-1] for n in range(2)] == [last, last]
    do(tmp_path, two, spec("spice/atlas.toml", whole, 2, *sets))
    runs.same(whole, run, steps=[4])  # bit for bit
