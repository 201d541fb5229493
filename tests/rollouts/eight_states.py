"""A model with states, or "shared", with layers that attend to the keys of others, on 8 fake CPU devices and on one,
with a page for each slot and with pages that they share; test_states.py starts it in a process of its own. Prints one
JSON object."""

import json
import os
import sys

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

from dataclasses import replace

import jax
import numpy as np

from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.pages import Loop
from scope_jax.rollouts.engine import Engine
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.rollouts.test_page_shapes import SHARED
from tests.rollouts.test_states import HYBRID, conversations
from tests.rollouts.world import ENGINE, make_params, make_rollouts

MESHES = {"one": (1, 1, 1), "data2_fsdp2_tensor2": (2, 2, 2)}


def main() -> None:
    model = SHARED if sys.argv[1:] == ["shared"] else HYBRID
    params, facts = make_params(model), {}
    greedy = [replace(one, params=replace(one.params, temperature=0.0)) for one in conversations(10)]
    for name, sizes in MESHES.items():
        mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])
        for how in (Columns(ENGINE.max_length), Loop()):
            said = make_rollouts(Engine(model, ENGINE, mesh, how), params).run(greedy)
            facts[f"{name} {type(how).__name__}"] = {
                "ids": [one.ids_T.tolist() for one in said],
                "logprobs": [one.logprobs_T.tolist() for one in said],
            }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
