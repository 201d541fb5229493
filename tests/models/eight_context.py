"""Attention over tokens divided over devices against attention over whole rows, on fake CPU devices, for
test_context.py."""

import os
from typing import Any

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from scope_jax.models.decoder import context
from scope_jax.models.kernels.attention import make_attend
from tests.rows import laid_out

LENGTH = 64
GROUPS = [(18, [(9, []), (4, [(5, []), (6, [])]), (2, [])]), (5, [(7, []), (3, [])])]
ROWS = [laid_out(texts, LENGTH) for texts in ([(25, []), (6, []), (30, [])], [(LENGTH, [])], GROUPS)]
CASES: dict[str, Any] = {  # how, devices, kv heads, window, sinks
    "ulysses": ("ulysses", 4, 4, None, False),
    "ulysses_window": ("ulysses", 2, 2, 9, True),
    "ring": ("ring", 8, 2, None, False),
    "ring_window": ("ring", 4, 1, 9, True),  # less than a chunk: some products of chunks are left out
    "ring_in_blocks": ("ring", 4, 2, None, False),
}


def differences(how: Any, devices: int, kv_heads: int, window: int | None, sinks: bool) -> list[float]:
    rng = np.random.default_rng(0)
    shapes = [(len(ROWS), LENGTH, heads, 8) for heads in (8, kv_heads, kv_heads, 8)]
    *arrays, ct = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    behind, positions = (jnp.stack(arrays) for arrays in zip(*ROWS, strict=True))
    order = context.token_order(LENGTH, devices)
    spec, whole = PartitionSpec(None, "context"), PartitionSpec()
    sinks_H = [jnp.asarray(rng.normal(size=8), jnp.float32)] if sinks else []

    def local(behind, positions, ct, *arrays):
        attend = context.make_attends(how, "reference", behind, positions, [window], "context")[window]
        out, pull = jax.vjp(attend, *arrays)
        dq, dk, dv, *dsinks = pull(ct)
        return out, dq, dk, dv, *(jax.lax.psum(x, "context") for x in dsinks)

    mesh = Mesh(np.array(jax.devices()[:devices]), ("context",))
    specs = (spec,) * 6 + (whole,) * sinks, (spec,) * 4 + (whole,) * sinks
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False))
    moved = [x[:, order] for x in (behind, positions, ct, *arrays)]
    found = [np.asarray(x) for x in run(*moved, *sinks_H)]
    ours = [x[:, np.argsort(order)] if x.ndim > 1 else x for x in found]

    @jax.jit
    def dense(*arrays):
        out, pull = jax.vjp(make_attend("reference", behind, positions, window), *arrays)
        return out, *pull(ct)

    return [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, dense(*arrays, *sinks_H), strict=True)]


def main(name: str) -> list[float]:
    """The largest relative differences of the result and of each gradient."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "QUERIES", 4 if name == "ring_in_blocks" else 512)  # each chunk in two blocks of queries
        return differences(*CASES[name])
