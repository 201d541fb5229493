"""The TPU's kernel for norm and rotation of queries and keys, in Pallas's interpreter, against `plain_heads`."""

import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import pages
from scope_jax.models.decoder.config import Attention
from scope_jax.models.decoder.kinds import plain_heads
from scope_jax.models.kernels import heads_tpu
from scope_jax.models.kernels.rope import Rope

YARN = Rope(1e4, "yarn", factor=4.0, original_positions=1024, attention_factor=1.2)


@pytest.mark.parametrize("rope", [Rope(1e6), YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize("norms", [True, False], ids=["norms", "no norms"])
@pytest.mark.parametrize(("tokens", "dtype"), [(6, "float32"), (130, "bfloat16")])
def test_norm_and_rotation(rope, norms, tokens, dtype):
    """The same operations in the same order: equal up to two roundings of each number."""
    mixer = Attention(4, 2, 128, rope)
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(tokens, 1, heads * 128)), dtype) for heads in (4, 2))
    of_q, of_k = (jnp.asarray(rng.uniform(0.5, 2, 128), dtype) for _ in range(2))
    scales = (of_q, of_k) if norms else None
    positions = jnp.asarray(rng.integers(0, 2000, (tokens, 1)), jnp.int32)
    expected = plain_heads(mixer, 1e-6, scales, q, k, positions)
    flat = q[:, 0], k[:, 0], scales, positions[:, 0], rope, 128, 1e-6
    for ours, other in zip(heads_tpu.norm_and_rotate(*flat, interpret=True), expected, strict=True):
        assert other is not None
        assert ours.dtype == other.dtype and ours[:, None].shape == other.shape
        bound = 2 * float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(ours[:, None].astype(jnp.float32), other.astype(jnp.float32), rtol=bound, atol=bound)


def test_only_decoding_rows_of_whole_registers_use_the_kernel(monkeypatch):
    """Prompts, heads narrower than a register, and heads of which a part turns are computed as on any platform."""
    asked = []
    monkeypatch.setattr(heads_tpu, "norm_and_rotate", lambda q, k, *_: asked.append(q.shape) or (q, k))
    whole, part = Rope(1e4), Rope(1e4, share=0.5)
    for tokens, head_dim, rope in ((1, 128, whole), (2, 128, whole), (1, 64, whole), (1, 128, part)):
        mixer = Attention(2, 1, head_dim, rope)
        q, k = jnp.ones((3, tokens, 2 * head_dim)), jnp.ones((3, tokens, head_dim))
        pages.Ragged.heads(mixer, 1e-6, None, q, k, jnp.zeros((3, tokens), jnp.int32))
    assert asked == [(3, 256)]
