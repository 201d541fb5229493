"""Host memory while a checkpoint is written: how far it rises above what was in use before, and when `save` returns.

    python -m benchmarks.checkpoints --arrays 24 --mib 64

On CPU the state itself is in host memory, too, and not counted. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import jax
import numpy as np

from scope_jax.games import load_card
from scope_jax.learner.state import TrainState
from scope_jax.run import checkpoint

CARD = Path(__file__).parents[1] / "configs" / "ssp" / "atlas.toml"


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def state(arrays: int, mib: int) -> dict[str, TrainState]:
    """Arrays of random numbers, which cannot be compressed."""
    rng = np.random.default_rng(0)
    made = {f"{n}": jax.device_put(rng.standard_normal((mib, 2**18), np.float32)) for n in range(arrays)}
    zero = jax.device_put(np.int32(0))
    return {"actor": TrainState(zero, zero, jax.block_until_ready(made), (), None)}


def measure(arrays: int, mib: int, batch_gb: int) -> dict[str, float]:
    checkpoint.BATCH_GB = batch_gb
    states = state(arrays, mib)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = checkpoint.Checkpoints(Path(folder), load_card(CARD))
        checkpoints.save(1, state(1, 1), {})  # imports and threads
        checkpoints.wait()
        before = peak = resident()
        over = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not over.wait(0.005):
                peak = max(peak, resident())

        watching = threading.Thread(target=watch)
        watching.start()
        began = time.monotonic()
        checkpoints.save(2, states, {})
        returned = time.monotonic() - began
        checkpoints.wait()
        written = time.monotonic() - began
        over.set()
        watching.join()
    unit = 2**20
    return {
        "state_mib": arrays * mib,
        "batch_gb": batch_gb,
        "peak_above_mib": round((peak - before) / unit),
        "save_returns_s": round(returned, 3),
        "written_s": round(written, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrays", type=int, default=24)
    parser.add_argument("--mib", type=int, default=64, help="size of an array")
    parser.add_argument("--batch-gb", type=int, default=checkpoint.BATCH_GB, help="arrays on the host at a time")
    given = parser.parse_args()
    print(json.dumps(measure(given.arrays, given.mib, given.batch_gb)))


if __name__ == "__main__":
    main()
