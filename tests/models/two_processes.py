"""One of two processes with four fake devices each (test_weights_processes.py starts both); prints one JSON object.

python two_processes.py PORT PROCESS FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from safetensors.numpy import load_file, save_file

from scope_jax.models.decoder.hf import hf_shapes, hf_tensor
from scope_jax.models.decoder.transformer import declare
from scope_jax.models.files import streaming, tensorfile, weights, wrappers
from scope_jax.models.files.families import from_hf
from scope_jax.multihost import distributed
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import path_name

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 1024,
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "intermediate_size": 256,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 128,
}
CFG = from_hf(CONFIG)


def expected() -> dict:
    """The weights as numpy arrays, the same in both processes."""
    return {
        path_name(path): np.random.default_rng(i).normal(size=param.shape).astype(np.float32)
        for i, (path, param) in enumerate(jax.tree_util.tree_leaves_with_path(declare(CFG)))
    }


def is_correct(params: dict, values: dict) -> bool:
    """Every shard on this process's devices holds its part of the values, bit for bit."""
    return all(
        np.array_equal(np.asarray(shard.data), values[path_name(path)][shard.index])
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        for shard in leaf.addressable_shards
    )


def tensors(values: dict) -> dict:
    """The values under the checkpoint's names and in its layout."""
    named = {}
    for path, value in values.items():
        tensor = hf_tensor(CFG, path)
        for place in np.ndindex(value.shape[: tensor.leading]):
            named[tensor.at(place)] = value[place].T if tensor.transposed else value[place]
    return named


def main() -> None:
    port, process, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    distributed.start(distributed.Place(f"localhost:{port}", process, 2))
    values = expected()
    read: list[tensorfile.Checkpoint] = []

    class Counted(tensorfile.Checkpoint):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            read.append(self)

    wrappers.Checkpoint = Counted  # to read its counter afterwards
    facts: dict = {"devices": [len(jax.local_devices()), len(jax.devices())], "files": []}
    if process == 0:
        (folder / "source").mkdir()
        (folder / "source" / "config.json").write_text(json.dumps(CONFIG))
        written = {name: np.ascontiguousarray(value) for name, value in tensors(values).items()}
        save_file(written, folder / "source" / "model.safetensors")
    multihost_utils.sync_global_devices("source")
    for name, sizes in {"fsdp": (1, 8, 1), "fsdp_tensor": (1, 4, 2), "data": (2, 4, 1)}.items():
        mesh = make_mesh(MeshConfig(*sizes))
        # First each weight in one transfer, then all of them block by block.
        for block in (4 * 2**20, 24576):
            streaming.BLOCK_BYTES = block
            params = weights.load_hf(folder / "source", mesh, TRAIN)[1]
            facts[f"{name} {block} right"] = is_correct(params, values)
            facts[f"{name} {block} read"] = read[-1].bytes_read
            out = folder / f"{name}-{block}"
            weights.save_hf(out, CFG, params, jnp.float32, None)
            # The folder is complete when the call returns in any process, not only in process 0.
            facts["files"].append(sorted(path.name for path in out.iterdir()))
            written = load_file(out / "model.safetensors")
            facts[f"{name} {block} written"] = set(written) == set(hf_shapes(CFG)) and all(
                np.array_equal(written[key], value) for key, value in tensors(values).items()
            )
            weights.save_orbax(folder / f"{out.name}-orbax", CFG, params, jnp.float32, out)
            again = weights.load(folder / f"{out.name}-orbax", mesh, TRAIN)[1]
            facts[f"{name} {block} orbax"] = is_correct(again, values)
    facts["total"] = sum(value.nbytes for value in values.values())
    facts["whole on every device"] = sum(value.nbytes for path, value in values.items() if "norm" in path)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
