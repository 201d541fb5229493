"""A run that is killed goes on and ends with the bits of one that was not: weights, metrics, episodes, memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

ROOT = Path(__file__).parents[2]
CARD = ROOT / "configs" / "ssp" / "atlas.toml"
SMALL = (
    "train.steps=4",
    "train.save_every=1",
    "train.keep=4",
    "train.batch_size=4",
    "evaluate.sets=[]",
    "rollout.slots=8",
    "ssp.solver.samples=2",
    "ssp.replay_reset_every=3",
    'ssp.proposer.loss.advantage="ema"',
)


def start(run: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scope_jax", "train", str(CARD), "--run", str(run)]
    for override in SMALL:
        command += ["--set", override]
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(run: Path) -> None:
    process = start(run)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output


def kill_when(run: Path, moment: Callable[[], bool]) -> None:
    process = start(run)
    limit = time.monotonic() + 600
    while not moment():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < limit, "the moment to kill the run never came"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def lines(run: Path, name: str) -> list[dict]:
    """Records of a file without the wall-clock figures, which no two runs share."""
    records = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{key: value for key, value in record.items() if not key.startswith("time/")} for record in records]


def final_arrays(run: Path) -> dict[str, np.ndarray]:
    states = ocp.PyTreeCheckpointer().restore((run / "checkpoints" / "4" / "states").absolute())
    return {"/".join(path): np.asarray(leaf) for path, leaf in ocp.tree.to_flat_dict(states).items()}


def memory(run: Path) -> dict:
    """What the last checkpoint keeps beside the states."""
    handler = ocp.Checkpointer(ocp.JsonCheckpointHandler())
    return handler.restore((run / "checkpoints" / "4" / "memory").absolute())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    finish(run)
    return run


def played(run: Path, step: int) -> bool:
    """True once the metrics of `step` are on disk, which is before its checkpoint is."""
    path = run / "metrics.jsonl"
    written = path.read_text().splitlines() if path.is_file() else []
    return any(json.loads(line)["step"] >= step for line in written if line.endswith("}"))


def writing(run: Path, step: int) -> bool:
    """True while the checkpoint of `step` lies under its temporary name."""
    return any(path.name.startswith(f"{step}.") for path in (run / "checkpoints").glob("*"))


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda run: (run / "config.toml").is_file(), id="before the first step", marks=pytest.mark.slow),
        pytest.param(lambda run: played(run, 2), id="between a step's metrics and its checkpoint"),
        pytest.param(lambda run: writing(run, 3), id="while a checkpoint is written", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(whole: Path, tmp_path: Path, moment: Callable[[Path], bool]) -> None:
    run = tmp_path / "run"
    kill_when(run, lambda: moment(run))
    finish(run)
    expected, found = final_arrays(whole), final_arrays(run)
    assert expected.keys() == found.keys()
    assert any(name.startswith("actor/params") for name in found)
    for name, array in expected.items():
        assert array.tobytes() == found[name].tobytes(), name
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert lines(whole, name) == lines(run, name)
    assert [record["step"] for record in lines(run, "metrics.jsonl")] == [1, 2, 3, 4]
    remembered = memory(run)
    assert remembered == memory(whole)
    assert remembered["baselines"] == {"actor/proposer": lines(run, "metrics.jsonl")[-1]["proposer/baseline"]}
    assert len({record["proposer/baseline"] for record in lines(run, "metrics.jsonl")}) == 4
