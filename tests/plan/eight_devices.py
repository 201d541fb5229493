"""Compiles a program with known dots, loops and collectives for 8 fake CPU devices, and prints what the parser counts
(test_hlo.py starts it)."""

import json
import os

from tests.flags import fake_devices

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = fake_devices(8)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from scope_jax.plan.hlo import Program


def body(x_BD, w_LDD, steps):
    """Three layers that gather their weights, in a loop of unknown length; then one product and one sum."""

    def layer(x, w):
        whole = lax.all_gather(w, "d", axis=0, tiled=True)
        return jnp.tanh(x @ whole), None

    def once(_, x):
        return lax.scan(layer, x, w_LDD)[0]

    x_BD = lax.fori_loop(0, steps, once, x_BD)
    return lax.psum(x_BD.T @ x_BD, "d")


def main() -> None:
    mesh = Mesh(np.array(jax.devices()), ("d",))
    rows = PartitionSpec("d")
    program = jax.shard_map(
        body, mesh=mesh, in_specs=(rows, PartitionSpec(None, "d"), PartitionSpec()), out_specs=PartitionSpec()
    )
    shapes = [(64, 32), (3, 32, 32), ()]
    args = [jax.ShapeDtypeStruct(s, jnp.float32 if s else jnp.int32) for s in shapes]
    text = jax.jit(program).lower(*args).compile().as_text()
    assert text is not None
    costs = Program(text).costs()
    moved = {kind: [one.count, one.bytes, one.largest] for kind, one in costs.collectives.items()}
    print(json.dumps({"flops": costs.flops, "unknown": costs.unknown, "moved": moved}))


main()
