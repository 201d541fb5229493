"""What a slow process costs the others of a run: seconds of a step of SSP on Atlas in two processes of this machine.

    python -m benchmarks.slow_process [--slow 1 2 4] [--steps 6] [--set KEY=VALUE …]

Each process has a CPU core, one device that learns and one that generates; a step is learned while the next one is
played. After each round of its decode loop, process 1 sleeps for as long as a device of 1 / SLOW of the speed would
have taken longer. Prompts are divided in advance by their length, or as the product hands them out. The episodes of
all runs must be the same. Prints a line for each run and a table with the median of all steps but the first two,
which compile. "its share" is what a step would take if playing could be divided at will: that of two equal processes
times 2 / (1 + 1 / SLOW). Linux only.

Seconds of a step on two CPU cores, medians of three runs, each of which varies by a second:

    process 1 slower   divided in advance   handed out   its share
    1                  4.7                  4.7          4.7
    2                  5.0                  4.1          6.3
    4                  6.2                  4.4          7.5
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

CARD = "configs/ssp/atlas.toml"
SETS = (
    "evaluate.sets=[]",
    "train.save_every=1000",
    "train.batch_size=16",
    "train.one_step_off_policy=true",
    "rollout.slots=8",
    "rollout.devices=1",
    "ssp.solver.samples=4",
    "ssp.proposer.loss.rollout_cap=2.0",
    "ssp.solver.loss.rollout_cap=2.0",
    "learner.micro_batch_rows=4",
)
COORDINATES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "SCOPE_JAX_RUN_KEY")


def process(core: int, slow: float, fixed: bool, arguments: list[str]) -> None:
    """One process of a run on one core, `slow` times as slow as it would be."""
    os.sched_setaffinity(0, {core})
    from scope_jax import cli
    from scope_jax.rollouts.loop import DecodeLoop
    from scope_jax.run.processes import HandedOut

    play, begin = DecodeLoop.round, HandedOut.__init__

    def slowed(loop: DecodeLoop) -> Any:
        began = time.monotonic()
        result = play(loop)
        time.sleep((slow - 1) * (time.monotonic() - began))
        return result

    def at_once(handed: HandedOut, what: str, costs: Sequence[float], sizes: Sequence[int], slots: int) -> None:
        begin(handed, what, costs, sizes, sum(sizes) if fixed else slots)

    sys.argv = ["scope-jax", *arguments]
    with mock.patch.object(DecodeLoop, "round", slowed), mock.patch.object(HandedOut, "__init__", at_once):
        cli.run()


def run(folder: Path, slow: float, fixed: bool, steps: int, changes: list[str]) -> list[float]:
    """Seconds of the steps of a run, whose files are in `folder`."""
    sets = (*SETS, f"train.steps={steps}", *changes)
    arguments = ["train", CARD, "--run", str(folder), *(word for each in sets for word in ("--set", each))]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address, key = f"localhost:{free.getsockname()[1]}", secrets.token_hex()
    children = []
    for number in range(2):
        place = dict(zip(COORDINATES, (address, "2", str(number), key), strict=True))
        own = [str(number), str(slow if number else 1.0), str(fixed), *arguments]
        with folder.with_suffix(f".{number}.log").open("w") as log:
            children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.slow_process", "process", *own],
                    env=os.environ | place | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
                    stdout=log,
                    stderr=log,
                )
            )
    if any(list(map(subprocess.Popen.wait, children))):
        sys.exit(folder.with_suffix(".0.log").read_text() + folder.with_suffix(".1.log").read_text())
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["time/play"] + line["time/wait"] for line in lines if "time/wait" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", type=float, nargs="+", default=[1.0, 2.0, 4.0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--set", dest="changes", action="append", default=[])
    args = parser.parse_args()
    medians: dict[tuple[float, bool], float] = {}
    episodes = set()
    with TemporaryDirectory() as folder:
        for slow in args.slow:
            for fixed in (True, False):
                place = Path(folder) / f"{slow:g}-{fixed}"
                seconds = run(place, slow, fixed, args.steps, args.changes)
                medians[slow, fixed] = statistics.median(seconds[2:])
                episodes.add((place / "episodes.jsonl").read_bytes())
                print(json.dumps({"slow": slow, "in_advance": fixed, "seconds": seconds}), flush=True)
    assert len(episodes) == 1, "timing has changed what was played"
    print("| process 1 slower | divided in advance, s | handed out, s | its share, s |")
    print("|---|---|---|---|")
    for slow in args.slow:
        share = medians[args.slow[0], False] * 2 / (1 + 1 / slow)
        print(f"| × {slow:g} | {medians[slow, True]:.2f} | {medians[slow, False]:.2f} | {share:.2f} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["process"]:
        process(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "True", sys.argv[5:])
    else:
        main()
