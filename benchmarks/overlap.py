"""Seconds a step, and how long the engine waits, where engine and learner take fixed times: a stand-in for hardware.

    python -m benchmarks.overlap [--dispatch SECONDS] [--update SECONDS] [--steps N]

Runs of Search Self-play on Atlas, each in a process of its own: in turn, one step ahead, and overlapping with
`max_staleness` 1, 2 and 4, on one CPU device, and with a second, fake one for the engine. Every dispatch and
every update takes so many seconds at least, which sleep while the processor computes the rest; lengths of episodes are
those of Atlas. The first steps, which compile, are not counted. A row that is computed anew costs a dispatch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from scope_jax.cli import run as command_line
from scope_jax.learner.learner import Learner
from scope_jax.rollouts.engine import Engine
from scope_jax.run.folder import RunFolder

FIRST = 3  # steps that are not counted
FILE = "OVERLAP_BENCHMARK"  # the variable with the place of the child's figures
CARD = (
    *("train.batch_size=12", "rollout.slots=16", "ssp.solver.samples=4", "evaluate.sets=[]", "train.save_every=99"),
    *("ssp.solver.loss.rollout_cap=2.0", "ssp.proposer.loss.rollout_cap=2.0", "optimizer.learning_rate=1e-6"),
)
APART = "rollout.devices=1"
MODES = {
    "in turn": (),
    "max_staleness = 1": ("train.max_staleness=1",),
    "max_staleness = 2": ("train.max_staleness=2",),
    "max_staleness = 4": ("train.max_staleness=4",),
    "in turn, devices of its own": (APART,),
    "one step ahead": (APART, "train.one_step_off_policy=true"),
    "max_staleness = 1, devices of its own": (APART, "train.max_staleness=1"),
    "max_staleness = 2, devices of its own": (APART, "train.max_staleness=2"),
    "max_staleness = 4, devices of its own": (APART, "train.max_staleness=4"),
}


def child(dispatch: float, update: float, arguments: list[str]) -> None:
    """A run with these times; its figures go to the file that the environment names."""
    busy, marks = [0.0], []

    def lasting(function: Callable[..., Any], seconds: float, engine: bool) -> Callable[..., Any]:
        def work(*given: Any, **options: Any) -> Any:
            began = time.monotonic()
            result = function(*given, **options)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            busy[0] += (time.monotonic() - began) * engine
            return result

        return work

    def marked(folder: RunFolder, step: int, metrics: Any) -> None:
        marks.append({"step": step, "time": time.monotonic(), "busy": busy[0]})
        written(folder, step, metrics)

    written = RunFolder.metrics
    sys.argv = ["scope-jax", *arguments]
    try:
        with (
            patch.object(RunFolder, "metrics", marked),
            patch.object(Engine, "read", lasting(Engine.read, dispatch, True)),
            patch.object(Learner, "update", lasting(Learner.update, update, False)),
        ):
            command_line()
    finally:
        Path(os.environ[FILE]).write_text(json.dumps(marks), encoding="utf-8")


def measured(sets: tuple[str, ...], dispatch: float, update: float, steps: int, folder: Path) -> dict[str, float]:
    """Seconds of a step, and the share of the time in which no dispatch is under way."""
    overrides = [word for one in (*CARD, f"train.steps={steps}", *sets) for word in ("--set", one)]
    file = folder / "marks.json"
    command = [sys.executable, "-m", "benchmarks.overlap", "--child", str(dispatch), str(update)]
    command += ["train", "configs/ssp/atlas.toml", "--run", str(folder / "run"), *overrides]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={2 if APART in sets else 1}"
    subprocess.run(
        command, check=True, env=os.environ | {FILE: str(file), "XLA_FLAGS": flags}, stdout=subprocess.DEVNULL
    )
    marks = json.loads(file.read_text(encoding="utf-8"))
    first, last = marks[FIRST - 1], marks[-1]
    wall = last["time"] - first["time"]
    return {"seconds": wall / (last["step"] - first["step"]), "idle": 1 - (last["busy"] - first["busy"]) / wall}


def main() -> None:
    """Prints a line for each mode, and the figures as JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dispatch", type=float, default=0.1)
    parser.add_argument("--update", type=float, default=1.5, help="of each of the two updates of a step")
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    found = {}
    for name, sets in MODES.items():
        with TemporaryDirectory() as folder:
            found[name] = measured(sets, given.dispatch, given.update, given.steps, Path(folder))
        print(f"{name:<40} {found[name]['seconds']:6.2f} s a step, engine idle {found[name]['idle']:4.0%}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
    else:
        main()
