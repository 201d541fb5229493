"""What checkpoints of a model cost: how long the next update waits, bytes written for each, bytes read on resume.

    python -m benchmarks.checkpoints [--dtype bfloat16] [--copies-gb 4] [--layers 28] [--width 1024] [--ffn 3072]

The state is that of a model with random weights, by default of the shape of Qwen3-0.6B (596 million): weights and two
moments of a dtype, and a bfloat16 reference. Each checkpoint is followed by an update, which overwrites the state as
soon as it may; resume happens in a process of its own, and the arrays it reads are compared by their sums. Bytes are
those that the processes passed to and from files (/proc/self/io, wchar and rchar). Prints a JSON line for each
checkpoint, and one for the resume. In float32 the state has 7.8 GiB; copies, and what is compressed of them, come on
top.

On two busy cores, with `--dtype bfloat16 --copies-gb 4` (3.3 GiB of state, and a reference of 1.1 GiB), the next update
waited 3.5 s, and the first checkpoint was on disk after 23.5 s (with the reference, 3.09 GiB), the second after 16.8 s
(2.23 GiB). Without room for all copies, in float32, the update waited 31.6 of 35.3 s. A resume read 6.0 GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from scope_jax.games import load_card
from scope_jax.learner.state import TrainState
from scope_jax.run import checkpoint_writer
from scope_jax.run.checkpoint_writer import Checkpoints

CARD = Path(__file__).parents[1] / "configs" / "ssp" / "atlas.toml"


def passed(kind: str) -> int:
    """Bytes that this process has read ("rchar") or written ("wchar") so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind))


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def shapes(layers: int, width: int, ffn: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Of Qwen3's weights, stacked by layer: 16 query and 8 kv heads of 128 at width 1,024, tied embeddings."""
    queries, keys = 2 * width, width
    return {
        "embed": (vocabulary, width),
        "q": (layers, width, queries),
        "k": (layers, width, keys),
        "v": (layers, width, keys),
        "o": (layers, queries, width),
        "gate": (layers, width, ffn),
        "up": (layers, width, ffn),
        "down": (layers, ffn, width),
    }


def state(sizes: dict[str, tuple[int, ...]], dtype: Any, key: jax.Array) -> TrainState:
    """Random numbers, which cannot be compressed."""

    def tree(number: int, dtype: Any) -> dict[str, jax.Array]:
        own = jax.random.fold_in(key, number)
        return {name: jax.block_until_ready(jax.random.normal(own, x, dtype)) for name, x in sizes.items()}

    params, moments = tree(0, dtype), (tree(1, dtype), tree(2, dtype))
    return TrainState(jnp.int32(0), jnp.int32(0), params, moments, tree(3, jnp.bfloat16))


@jax.jit
def sums(tree: Any) -> jax.Array:
    return jnp.stack([jnp.sum(jnp.abs(leaf).astype(jnp.float32)) for leaf in jax.tree.leaves(tree)])


def save(folder: Path, sizes: dict[str, tuple[int, ...]], dtype: Any, count: int) -> None:
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    checkpoints = Checkpoints(folder, load_card(CARD))
    one = jax.block_until_ready(state(sizes, dtype, jax.random.key(0)))
    reference = one.ref_params
    for step in range(1, count + 1):
        expected, held = sums(one).tolist(), resident()
        written, began = passed("wchar"), time.monotonic()
        checkpoints.save(step, {"actor": one}, {})
        returned = time.monotonic() - began
        checkpoints.copied()
        waited, peak = time.monotonic() - began, resident()
        one = jax.block_until_ready(update(one.replace(ref_params=None))).replace(ref_params=reference)
        checkpoints.wait()
        figures = {"save_returns_s": returned, "update_waits_s": waited, "on_disk_s": time.monotonic() - began}
        gib = {"written_gib": (passed("wchar") - written) / 2**30, "above_gib": (peak - held) / 2**30}
        print(json.dumps({"step": step} | {name: round(x, 2) for name, x in (figures | gib).items()}), flush=True)
        (folder / "sums.json").write_text(json.dumps(expected))


def resume(folder: Path, sizes: dict[str, tuple[int, ...]], dtype: Any) -> None:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        jax.eval_shape(partial(state, sizes, dtype), jax.random.key(0)),
    )
    checkpoints = Checkpoints(folder, load_card(CARD))
    read, began = passed("rchar"), time.monotonic()
    saved = checkpoints.resume({"actor": target}, print)
    assert saved is not None
    figures = {"seconds": time.monotonic() - began, "read_gib": (passed("rchar") - read) / 2**30}
    assert sums(saved.states["actor"]).tolist() == json.loads((folder / "sums.json").read_text())
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(saved.states)) / 2**30
    print(
        json.dumps({"resumed": saved.step, "state_gib": round(size, 2)} | {n: round(x, 2) for n, x in figures.items()})
    )


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--ffn", type=int, default=3072)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--checkpoints", type=int, default=2)
    parser.add_argument("--dtype", default="float32", help="of weights and moments")
    parser.add_argument("--copies-gb", type=float, help="arrays in host memory at a time; default: as a run has it")
    parser.add_argument("--folder", type=Path, help="of the checkpoints; default: a temporary one")
    parser.add_argument("--part", choices=("save", "resume"), help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    checkpoint_writer.BATCH_GB = args.copies_gb
    sizes = shapes(args.layers, args.width, args.ffn, args.vocabulary)
    if args.part == "save":
        save(args.folder, sizes, args.dtype, args.checkpoints)
    elif args.part == "resume":
        resume(args.folder, sizes, args.dtype)
    else:
        words = [sys.executable, "-m", "benchmarks.checkpoints", *(sys.argv[1:] if given is None else given)]
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            for part in ("save", "resume"):
                subprocess.run([*words, "--folder", folder, "--part", part], check=True)


if __name__ == "__main__":
    main()
