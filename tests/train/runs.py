"""Training runs in separate processes, for tests that kill them, and the contents of their folders afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from scope_jax.run import checkpoint
from scope_jax.run.files import JUDGEMENTS, read_records

ROOT = Path(__file__).parents[2]
LIMIT = 600  # seconds for anything to happen
# How the lines begin that a run without exams prints.
SAID = ("memory of a device", "loading", "passages", "starting", "step", "nothing to learn")
# SCOPE on Atlas with so few documents and samples that a step takes a second or two, and few programs to compile. All
# tasks that could be graded are kept; `generation_batch` is below the target, so that every batch is a separate step.
SCOPE = (
    "train.save_every=1",
    "evaluate.sets=[]",
    "rollout.slots=16",
    "learner.buckets=[512]",
    "learner.micro_batch_rows=4",
    "learner.logprob_chunk=128",
    "scope.steps_per_iteration=2",
    "scope.challenger_batch=4",
    "scope.challenger.samples=2",
    "scope.n_train=2",
    "scope.n_filter=2",
    "scope.window=[0.0, 1.0]",
    "scope.generation_batch=8",
    "scope.solver_batch=2",
    "scope.solver.samples=4",
)


# --------------------------------------------------------------------------------------------------------- processes
def command(card: str, run: Path | str, sets: Sequence[str]) -> list[str]:
    """`scope-jax train` of a card of configs/ with overrides."""
    overrides = [part for override in sets for part in ("--set", override)]
    return [sys.executable, "-m", "scope_jax", "train", str(ROOT / "configs" / card), "--run", str(run), *overrides]


def start(command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    """Starts the command in a separate process. variables: added to its environment."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    own = {"JAX_COMPILATION_CACHE_DIR": cache, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **variables}
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(process: subprocess.Popen[str], moment: Callable[[], bool]) -> None:
    """Returns when `moment` is true, which must happen while the process is running."""
    limit = time.monotonic() + LIMIT
    while not moment():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < limit, "the condition never became true"
        time.sleep(0.002)


def end(process: subprocess.Popen[str], code: int = 0) -> str:
    """The output of the process, after it has ended."""
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == code, output
    return output


def finish(command: Sequence[str]) -> None:
    end(start(command))


def kill_when(command: Sequence[str], moment: Callable[[], bool]) -> None:
    process = start(command)
    try:
        wait_for(process, moment)
    finally:
        process.send_signal(signal.SIGKILL)
    end(process, -signal.SIGKILL)


# ------------------------------------------------------------------------------------------------------------ folders
def lines(run: Path, name: str) -> list[dict[str, Any]]:
    """Records of a file without the figures of the clock and the machine, which differ between runs."""
    records = list(read_records(run / name))
    return [{key: v for key, v in record.items() if not key.startswith(("time/", "perf/"))} for record in records]


def saved(run: Path) -> list[int]:
    """Steps with a complete checkpoint."""
    return checkpoint.steps(run / "checkpoints")


def saved_at(run: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    folder = run / "checkpoints"
    return checkpoint.checkpoints_in(folder)[checkpoint.steps(folder).index(step)].absolute()


def arrays(run: Path, step: int) -> dict[str, np.ndarray]:
    """Every array of the policies' states in a checkpoint, by its path."""
    return _arrays(saved_at(run, step))


def reference_arrays(run: Path) -> dict[str, np.ndarray]:
    """Every array of the frozen reference, which the checkpoints of a run share, by its path."""
    (folder,) = (run / "checkpoints").glob("reference-*")
    return _arrays(folder.absolute())


def reference_at(run: Path, step: int) -> dict[str, np.ndarray]:
    """The same of the reference that a step's checkpoint has, in a run whose reference changes."""
    folder = saved_at(run, step)
    return _arrays(folder.parent / (checkpoint.reference_of(folder) or ""))


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    place = folder / "states"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        tree = reader.metadata(place).item_metadata.tree
        # As numpy arrays, whatever devices the run had.
        types = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        states = reader.restore(place, args=ocp.args.PyTreeRestore(restore_args=types))
    return {"/".join(path): np.asarray(leaf) for path, leaf in ocp.tree.to_flat_dict(states).items()}


def judged(run: Path) -> bytes:
    """The judges' replies as saved on disk; empty if there were no requests."""
    path = run / JUDGEMENTS
    return path.read_bytes() if path.is_file() else b""


def memory(run: Path, step: int) -> dict[str, Any]:
    """What a checkpoint holds besides the states."""
    handler = ocp.Checkpointer(ocp.JsonCheckpointHandler())
    return handler.restore(saved_at(run, step) / "memory")


def same(expected: Path, found: Path, steps: Sequence[int] | None = None) -> None:
    """Asserts that two runs saved the same bits: states and memory in every checkpoint, metrics, episodes.

    steps: the checkpoints to compare, if the runs do not have the same ones.
    """
    assert steps is not None or saved(expected) == saved(found) != []
    for step in saved(expected) if steps is None else steps:
        left, right = arrays(expected, step), arrays(found, step)
        assert left.keys() == right.keys()
        for name, array in left.items():
            assert array.dtype == right[name].dtype and array.tobytes() == right[name].tobytes(), (step, name)
        assert memory(expected, step) == memory(found, step), step
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert lines(expected, name) == lines(found, name), name
    assert judged(expected) == judged(found)


def several(folder: Path, *specs: dict[str, Any]) -> list[list[int]]:
    """The exit codes of runs of several.py, one after the other, by process."""
    (folder / "spec.json").write_text(json.dumps(specs))
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.several", str(folder / "spec.json")],
        cwd=ROOT,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
