"""Kernels for norm and rotation of queries and keys, and for writing them into pages, in Pallas's interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import pages
from scope_jax.models.decoder.config import Attention
from scope_jax.models.decoder.kinds import HeadTransform, plain_heads
from scope_jax.models.decoder.paged_gpu import Triton
from scope_jax.models.decoder.pages import Loop
from scope_jax.models.decoder.paging import PAGE
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
    expected = plain_heads(HeadTransform(mixer, 1e-6, scales), positions, q, k, None)
    flat = q[:, 0], k[:, 0], scales, positions[:, 0], rope, 128, 1e-6
    for ours, other in zip(heads_tpu.norm_and_rotate(*flat, interpret=True), expected[:2], strict=True):
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
        pages.Ragged.heads(HeadTransform(mixer, 1e-6, None), jnp.zeros((3, tokens), jnp.int32), q, k, None)
    assert asked == [(3, 256)]


@pytest.mark.parametrize(
    "rope",
    [Rope(1e6), YARN, Rope(1e4, share=0.25), Rope(1e4, "proportional", share=0.25)],
    ids=["plain", "yarn", "a quarter", "proportional"],
)
@pytest.mark.parametrize("norms", [True, False], ids=["norms", "no norms"])
@pytest.mark.parametrize(("heads", "dtype"), [(6, "float32"), (4, "bfloat16"), (2, "float32")])
def test_the_kernel_for_gpus_places_tokens(rope, norms, heads, dtype):
    """Numbers of heads that are no powers of two, heads of which a part turns; in any page and column, what is not
    finite, and nothing past the end. Values are equal, queries and keys up to two roundings."""
    mixer, rng = Attention(heads, 2, 64, rope), np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(8, 1, number * 64)), dtype) for number in (heads, 2))
    v = rng.normal(size=(8, 1, 2, 64))
    v[1, 0, 0, 3], v[2, 0, 1, 0] = np.nan, -np.inf
    scales = tuple(jnp.asarray(rng.uniform(0.5, 2, 64), dtype) for _ in range(2)) if norms else None
    positions = jnp.asarray(rng.integers(0, 2000, (8, 1)), jnp.int32)
    page, column = rng.permutation(8), PAGE - 1 - np.arange(8)  # of five pages

    def placed(how):
        layer = how.empty(5, 2, 64, jnp.dtype(dtype))
        at = jnp.asarray(page, jnp.int32), jnp.asarray(column, jnp.int32)
        q_R1Hh, layer = how.place(
            layer, *at, HeadTransform(mixer, 1e-6, scales), positions, q, k, jnp.asarray(v, dtype)
        )
        return q_R1Hh, *layer[:2]

    (ours_q, ours_k, ours_v), (q_R1Hh, k_PKht, v_PKth) = placed(Triton(interpret=True)), placed(Loop())
    bound = 2 * float(jnp.finfo(dtype).eps)
    for ours, other in ((ours_q, q_R1Hh), (ours_k, k_PKht)):
        assert ours.dtype == other.dtype and ours.shape == other.shape
        np.testing.assert_allclose(ours.astype(jnp.float32), other.astype(jnp.float32), rtol=bound, atol=bound)
    np.testing.assert_array_equal(ours_v, v_PKth)
    assert not np.isnan(np.asarray(v_PKth, "float32")).any()


@pytest.mark.parametrize(
    ("head_dim", "rope", "cache", "queries"),
    [
        (64, None, "float32", 1),
        (96, Rope(1e4), "float32", 1),
        (64, Rope(1e4), "int8", 1),
        (64, Rope(1e4), "float32", 2),
    ],
    ids=["no rotation", "96 dimensions", "a cache in 8 bits", "prompts"],
)
def test_what_the_kernel_for_gpus_does_not_take(head_dim, rope, cache, queries):
    """Is placed by XLA's program, which needs no GPU."""
    rng, how = np.random.default_rng(0), HeadTransform(Attention(2, 1, head_dim, rope), 1e-6, None)
    q, k = (jnp.asarray(rng.normal(size=(3, queries, heads * head_dim)), "float32") for heads in (2, 1))
    numbers = jnp.arange(3 * queries)

    def placed(one):
        layer = one.empty(6, 1, head_dim, jnp.dtype(cache))
        return jax.tree.leaves(one.place(layer, numbers, numbers, how, numbers.reshape(3, -1), q, k, k[:, :, None]))

    for ours, other in zip(placed(Triton()), placed(Loop()), strict=True):
        np.testing.assert_array_equal(ours, other)
