"""gpt-oss on 8 fake CPU devices against one (test_gpt_oss.py starts it with "learner" or "engines"): an update with
tensor, sequence and context parallelism, or the engine with experts distributed over the devices; prints one JSON
object."""

import json
import sys
from dataclasses import replace

from tests.learner.eight_devices import max_difference, run, worst  # isort: skip  # prepares JAX

import jax
import jax.numpy as jnp

from scope_jax.rollouts.engine import Engine
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.models.gpt_oss import CFG, weights
from tests.rollouts.world import ENGINE, make_rollouts, request

LEARNERS = {  # data, fsdp, tensor, context; each device of a tensor group of two has one kv head
    "tensor": ((2, 2, 2, 1), {}),
    "sequence": ((1, 4, 2, 1), {"sequence_parallel": True}),
    "ring": ((1, 2, 2, 2), {"sequence_parallel": True}),
    "ulysses": ((2, 2, 1, 2), {}),
}
ENGINES = {"one": (1, 1, 1), "data4_tensor2": (4, 1, 2)}


def learner() -> dict[str, dict[str, float]]:
    cfg = replace(CFG, vocab_size=72)
    params, facts = weights(cfg), {}
    one = run((1, 1, 1), params, jnp.float32, model=cfg)
    for name, (sizes, options) in LEARNERS.items():
        grads, after, measured, _ = run(sizes, params, jnp.float32, 8, model=cfg, **options)
        facts[name] = {
            "grads": max_difference(grads, one[0]),
            "params": max_difference(after, one[1]),
            "metrics": worst(measured, one[2]),
        }
    return facts


def engines() -> dict[str, list[list[int]]]:
    requests = [
        request(f"prompt {i}" * (1 + i % 3), key=i, temperature=0.0, max_tokens=25, stop_ids=()) for i in range(9)
    ]
    found, params = {}, weights(CFG)
    for name, sizes in ENGINES.items():
        mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: sizes[0] * sizes[1] * sizes[2]])
        said = make_rollouts(Engine(CFG, ENGINE, mesh), params).run(requests)
        found[name] = [completion.ids_T.tolist() for completion in said]
    return found


if __name__ == "__main__":
    print(json.dumps({"learner": learner, "engines": engines}[sys.argv[1]]()))
