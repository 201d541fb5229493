"""Runs on 8 fake CPU devices in a separate process (test_eight_devices.py starts it) and prints one JSON object:
the engine's completions of the same requests, with searches in between, on a mesh and on one device.
"""

import dataclasses
import json
import os
import re

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from rollouts.engine import Engine
from rollouts.paged import PagedEngine
from rollouts.types import Request
from sharding.mesh import MeshConfig, make_mesh
from tests.rollouts.world import CFG, ENGINE, make_params, make_rollouts, request

MESHES = {"one": (1, 1, 1), "data2_fsdp2_tensor2": (2, 2, 2)}


def requests() -> list[Request]:
    def respond(turns):
        return f" seen {len(turns)} " if len(turns) < 3 else None

    greedy = [
        request(f"prompt {i}" * (1 + i % 3), key=i, group=f"{i % 5}", temperature=0.0, max_tokens=25, stop_ids=())
        for i in range(5)
    ]
    talk = [
        request(f"talk {i}", key=i, temperature=0.0, max_tokens=9, stop_ids=tuple(range(0, 256, 17)), max_turns=3)
        for i in range(7)
    ]
    return [*greedy, *greedy[:2], *(dataclasses.replace(one, respond=respond) for one in talk)]


def main() -> None:
    params = make_params()
    facts = {}
    for name, sizes in MESHES.items():
        devices = jax.devices()[: int(np.prod(sizes))]
        engine = Engine(CFG, ENGINE, make_mesh(MeshConfig(*sizes), devices))
        rollouts = make_rollouts(engine, params)
        said = rollouts.run(requests())
        weights = engine.load_params(params)
        paged = PagedEngine(CFG, ENGINE, make_mesh(MeshConfig(*sizes), devices))
        again = make_rollouts(paged, params).run(requests())
        program = (
            engine._generate.lower(128, weights, engine.init_decode_state(), np.int32(1)).compile().as_text() or ""
        )
        facts[name] = {
            "ids": [c.ids_T.tolist() for c in said],
            "logprobs": [c.logprobs_T.tolist() for c in said],
            "turns": [len(c.turns) for c in said],
            "paged": {"ids": [c.ids_T.tolist() for c in again], "logprobs": [c.logprobs_T.tolist() for c in again]},
            "gathered": sorted(set(re.findall(r"= (f32\[[\d,]+\])\S* all-gather\(", program))),
        }
    print(json.dumps(facts))


main()
