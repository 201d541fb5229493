"""Runs on 8 fake CPU devices in a separate process (test_picks.py starts it) and prints one JSON object: the experts
that engines on several meshes have picked."""

import dataclasses
import json
import os

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.pages import Loop
from scope_jax.rollouts.engine import Engine
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.rollouts.world import CFG, ENGINE, make_params, make_rollouts, request
from tests.shapes import like

MODEL = like(
    CFG,
    architecture="qwen3_moe",
    vocab_size=264,
    num_layers=3,
    num_experts=16,
    experts_per_token=3,
    norm_topk_prob=True,
)
MESHES = {
    "one": (Loop(), (1, 1, 1)),
    "columns, data 2, tensor 2": (Columns(ENGINE.max_length), (2, 1, 2)),
    "data 4, tensor 2": (Loop(), (4, 1, 2)),
    "data 2, fsdp 2, tensor 2": (Loop(), (2, 2, 2)),
}


def main() -> None:
    plain = {"temperature": 0.0, "max_tokens": 9, "stop_ids": ()}
    asked = [request("question " * (1 + 7 * (i % 2)), key=i, group=str(i % 2), **plain) for i in range(6)]
    config, facts = dataclasses.replace(ENGINE, picks=True), {}
    for name, (how, sizes) in MESHES.items():
        mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])
        rollouts = make_rollouts(Engine(MODEL, config, mesh, how), make_params(MODEL))
        said = rollouts.run([dataclasses.replace(one, picks=True) for one in asked])
        facts[name] = [[row.ids_T.tolist(), np.asarray(row.picked_TLk).tolist()] for one in said for row in one.rows]
    print(json.dumps(facts))


main()
