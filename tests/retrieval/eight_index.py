"""Exact search over 8 fake CPU devices, for test_index.py."""

import jax
import numpy as np
from jax.sharding import Mesh

from scope_jax.retrieval.exact import ExactIndex


def main() -> str:
    """The word "equal"; an AssertionError where it is not as on one device."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1003, 32)).astype(np.float32)  # not divisible by eight
    x[500:900] = x[:400]  # ties across shards
    q = np.concatenate([x[:20], rng.standard_normal((40, 32)).astype(np.float32)])
    whole = ExactIndex(x, mesh=None, axes=()).search(q, 5)
    assert len(jax.devices()) == 8
    for shape, axes in (((4, 1, 2), ("data", "fsdp")), ((1, 4, 2), ("data", "fsdp", "tensor"))):
        mesh = Mesh(np.array(jax.devices()).reshape(shape), ("data", "fsdp", "tensor"))
        part = ExactIndex(x, mesh=mesh, axes=axes)
        shards = int(np.prod([mesh.shape[a] for a in axes]))
        own = part._rows_NE.addressable_shards[0].data
        assert own is not None and own.shape[0] == -(-1003 // shards)
        scores, rows = part.search(q, 5)
        assert np.array_equal(rows, whole[1])
        np.testing.assert_allclose(scores, whole[0], rtol=0, atol=1e-5)
    for size, k in ((5, 9), (11, 3), (57, 3), (90, 17)):  # fewer vectors than devices, shards that are partly filled
        part = ExactIndex(x[:size], mesh=mesh, axes=axes)
        assert np.array_equal(part.search(q, k)[1], ExactIndex(x[:size], mesh=None, axes=()).search(q, k)[1]), size
    return "equal"
