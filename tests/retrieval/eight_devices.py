"""An encoder and its index over 8 fake CPU devices, for test_neural.py."""

import json
import os
from pathlib import Path
from typing import Any

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from scope_jax.models.encoders.texts import TextEncoder
from scope_jax.retrieval.exact import ExactIndex
from scope_jax.sharding.mesh import MeshConfig, make_mesh


def main(model: str, results: str) -> dict[str, Any]:
    """Facts; vectors.npy in the folder of the results has the vectors of its texts.json."""
    folder, out = Path(model), Path(results)
    contents = json.loads((out / "texts.json").read_text())
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    encoder = TextEncoder.load(folder, max_tokens=32, rows=5, mesh=mesh)  # 5 becomes 8, a row for each device
    vectors_NE = encoder(contents)
    np.save(out / "vectors.npy", vectors_NE)
    _, rows_Qk = ExactIndex(vectors_NE, mesh=mesh, axes=("data", "fsdp")).search(vectors_NE, 1)
    weight = jax.tree.leaves(encoder._params)[0]
    out_BE = encoder._run([[2, 5, 3]], 8, 16)
    return {
        "copies": len(weight.addressable_shards) if weight.is_fully_replicated else 0,
        "rows": len({shard.index[0].start for shard in out_BE.addressable_shards}),
        "nearest": rows_Qk[:, 0].tolist(),
    }
