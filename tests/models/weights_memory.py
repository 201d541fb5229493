"""Measures, in a separate process, the host memory that reading and writing weights takes beyond that of the weights.

    python weights_memory.py FOLDER     (environment: see test_weights_processes.py)

Prints one JSON object: for each case the peak as a multiple of the checkpoint's largest tensor.

On a CPU the device arrays are host memory too, so the measure is the peak resident set (VmHWM, kept by the kernel)
minus the bytes of all live jax arrays, minus the same difference at the beginning. It is taken, and VmHWM is reset,
after every single weight: over a whole load, later arrays would hide the cost of an early weight. Mapped file pages
count. Three sources of error are excluded: memory that malloc keeps and reuses (everything above 64 KiB is mapped, so
it is returned at once), compilation (each case runs once before it is measured), and a measure that always gives zero
(a known allocation and a simple reader with numpy.stack are measured as well).

Synthetic Qwen3 of 140 MiB in float32, largest tensor 64 MiB (32 in bfloat16), four files, one device. Reading float32
as float32 0.29, as bfloat16 0.27; bfloat16 as float32 0.51, as bfloat16 0.50. Writing float32 0.06, bfloat16 0.07. File
to file 0.25. Stacking on the host 2.00. That is about 20 MiB whatever the model.
"""

import ctypes
import gc
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open

from scope_jax.models.decoder.hf import hf_tensor
from scope_jax.models.decoder.transformer import declare
from scope_jax.models.files import tensorfile
from scope_jax.models.files.families import from_hf
from scope_jax.models.files.weights import load_hf, recast_hf, save_hf
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import path_name

DEVICES = len(jax.devices())
VOCAB, WIDTH, LAYERS, FFN = 65536, 256, 20, 1024  # float32: table 64 MiB, 76 MiB in layers, 1 MiB a matrix of the ffn
CFG = from_hf(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": VOCAB,
        "num_hidden_layers": LAYERS,
        "hidden_size": WIDTH,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": FFN,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "max_position_embeddings": 128,
    }
)


def resident(field: str) -> int:
    """VmRSS or VmHWM in bytes."""
    found = re.search(rf"^{field}:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


class Meter:
    """The highest cost so far, in bytes; called whenever a weight is finished."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self.highest = 0
        self._other = resident("VmRSS") - self._arrays()
        self._reset()

    def __call__(self, done: int = 0, total: int = 0) -> None:
        self.highest = max(self.highest, resident("VmHWM") - self._arrays() - self._other)
        self._reset()

    def _arrays(self) -> int:
        shards = (shard.data for array in jax.live_arrays() for shard in array.addressable_shards)
        return sum({data.unsafe_buffer_pointer(): data.nbytes for data in shards}.values())  # some share a buffer

    def _reset(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")


def peak(action: Callable[[Meter], Any]) -> int:
    """Peak bytes of the action beyond the weights; the action has run once before."""
    meter = Meter()
    left = action(meter)
    meter()
    del left
    return meter.highest


def synthetic() -> Any:
    """Weights whose values differ from row to row and layer to layer, exact in bfloat16."""
    return jax.tree.map(
        lambda p: (jnp.arange(int(np.prod(p.shape)), dtype=jnp.int32) % 251).astype(jnp.float32).reshape(p.shape) / 256,
        declare(CFG),
    )


def stacked(folder: Path, meter: Meter) -> Any:
    """The simple reader: every weight is stacked on the host and then put on the devices."""
    index = json.loads((folder / tensorfile.INDEX).read_text())["weight_map"]

    def read(name: str, transposed: bool) -> np.ndarray:
        with safe_open(folder / index[name], framework="np") as file:
            array = file.get_tensor(name)
        return array.T if transposed else array

    def one(path: Any, param: Any) -> jax.Array:
        tensor = hf_tensor(CFG, path_name(path))
        parts = [read(tensor.at(i), tensor.transposed) for i in np.ndindex(param.shape[: tensor.leading])]
        weight = jax.device_put(np.stack(parts).reshape(param.shape).astype(jnp.float32), may_alias=False)
        weight.block_until_ready()
        del parts
        meter()
        return weight

    return jax.tree_util.tree_map_with_path(one, declare(CFG))


def same(got: Any, expected: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(np.asarray(x, np.float32), y), got, expected))


def main(folder: Path) -> None:
    tensorfile.MAX_SHARD_BYTES = 40_000_000
    several = DEVICES > 1
    mesh = make_mesh(MeshConfig(1, DEVICES // 2, 2)) if several else None
    params = synthetic()
    full, half, out = folder / "float32", folder / "bfloat16", folder / "out"
    save_hf(full, CFG, params, jnp.float32, None)
    save_hf(half, CFG, params, jnp.bfloat16, None)
    largest = {full: VOCAB * WIDTH * 4, half: VOCAB * WIDTH * 2}
    facts: dict[str, Any] = {"files": len(list(full.glob("*.safetensors"))), "values": True}
    pairs = [(full, jnp.float32), (full, jnp.bfloat16), (half, jnp.float32), (half, jnp.bfloat16)]
    for source, dtype in pairs[:1] if several else pairs:
        facts["values"] &= same(load_hf(source, mesh, TRAIN, dtype)[1], params)
        cost = peak(lambda meter, source=source, dtype=dtype: load_hf(source, mesh, TRAIN, dtype, meter))
        facts[f"load {source.name} as {jnp.dtype(dtype).name}"] = cost / largest[source]
    del params
    for source, dtype in ((full, jnp.float32), (half, jnp.bfloat16)):
        params = load_hf(source, mesh, TRAIN, dtype)[1]
        save_hf(out, CFG, params, dtype, None)
        cost = peak(partial(save_hf, out, CFG, params, dtype, None))
        facts[f"save as {jnp.dtype(dtype).name}"] = cost / largest[source]
        facts["values"] &= all((out / f.name).read_bytes() == f.read_bytes() for f in source.glob("*.safetensors"))
    facts["recast"] = peak(lambda meter: recast_hf(full, out, jnp.bfloat16, meter)) / largest[full]
    facts["known"] = peak(lambda meter: np.ones(largest[full] // 4, np.float32).size) / largest[full]
    if not several:
        facts["stacked"] = peak(lambda meter: stacked(full, meter)) / largest[full]
    print(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
