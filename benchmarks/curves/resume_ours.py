"""tunix#2290 on scope-jax: a run that is stopped and started again, `python -m benchmarks.curves.resume_ours`.

The card with two optimiser steps per batch. Prints which steps of the file were read, and whether the exported weights
are the bytes of those of a run that was not stopped. Needs the base that `python -m benchmarks.curves` writes.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.curves import task
from benchmarks.peers.client import ROOT
from scope_jax.run.files import read_records

STEPS, STOP = 4, 2
CARD = Path(__file__).parent / "card.toml"
SETS = (f"train.steps={STEPS}", "train.save_every=1", "sums.loss.mini_batches=2")


def start(run: Path) -> subprocess.Popen[bytes]:
    words = [word for override in SETS for word in ("--set", override)]
    command = [sys.executable, "-m", "scope_jax", "train", str(CARD), "--run", str(run), *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr)


def steps_of(run: Path) -> list[int]:
    """The steps of the file whose prompts were answered, in order."""
    rows = task.read(task.FOLDER / "trained.jsonl")
    steps = {row["question"]: place // task.PROMPTS for place, row in enumerate(rows)}
    return list(dict.fromkeys(steps[episode["group"]] for episode in list(read_records(run / "episodes.jsonl"))))


def weights(run: Path) -> bytes:
    subprocess.run(
        [sys.executable, "-m", "scope_jax", "export", str(run), str(run / "weights"), "--dtype", "float32"],
        cwd=ROOT,
        stdout=sys.stderr,
        check=True,
    )
    return (run / "weights" / "model.safetensors").read_bytes()


def main() -> None:
    whole, stopped = task.FOLDER / "resume" / "whole", task.FOLDER / "resume" / "stopped"
    shutil.rmtree(whole.parent, ignore_errors=True)
    start(whole).wait()
    process = start(stopped)
    while process.poll() is None and not (stopped / "checkpoints" / str(STOP)).is_dir():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait()
    before = steps_of(stopped)
    start(stopped).wait()
    found = {"uninterrupted": steps_of(whole), "before": before, "after": steps_of(stopped)[len(before) :]}
    print(json.dumps(found | {"same_bits": weights(whole) == weights(stopped)}))


if __name__ == "__main__":
    main()
