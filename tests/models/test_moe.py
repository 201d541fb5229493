"""MoE: routing and dispatch by hand, grouped matmuls of every backend and their cost, the program for TPU."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import moe
from scope_jax.models.decoder.config import Experts, ModelConfig
from scope_jax.models.kernels import moe_tpu
from scope_jax.models.kernels.moe_gpu import triton_matmul, triton_outer
from scope_jax.sharding.collectives import LOCAL
from tests.shapes import like

ROOT = Path(__file__).resolve().parents[2]
ROWS, EXPERTS, IN, OUT = 32, 4, 12, 20
RUNS = ([5, 0, 7, 20], [0, 0, 32, 0], [8, 8, 8, 8], [0, 1, 0, 31])


def feed_of(cfg: ModelConfig) -> Experts:
    feed = cfg.layers[0].feed
    assert isinstance(feed, Experts)
    return feed


@pytest.fixture(scope="module")
def cfg(tiny):
    return like(tiny, architecture="qwen3_moe", num_experts=EXPERTS, experts_per_token=2, norm_topk_prob=True, width=IN)


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    shapes = ((ROWS, IN), (EXPERTS, IN, OUT), (ROWS, OUT))
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


@jax.jit
def of_rows(x_JI, w_XIO, expert_J):
    return jnp.einsum("mi,mio->mo", x_JI, w_XIO[expert_J])


def by_row(x_JI, w_XIO, sizes):
    return of_rows(x_JI, w_XIO, np.repeat(np.arange(EXPERTS), sizes))


@partial(jax.jit, static_argnums=0)
def with_gradients(product, ct, x, w, which):
    """product(x, w, which) and its gradients with respect to x and w."""
    out, pull = jax.vjp(lambda x, w: product(x, w, which), x, w)
    return out, *pull(ct)


@pytest.mark.parametrize("sizes", RUNS)
def test_grouped_product_and_gradient(arrays, sizes):
    """Against a product row by row; empty groups get a gradient of zero."""
    x, w, ct = arrays
    ours = with_gradients(moe.grouped_matmul, ct, x, w, jnp.asarray(sizes))
    expected = with_gradients(of_rows, ct, x, w, np.repeat(np.arange(EXPERTS), sizes))
    for mine, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_groups_may_leave_rows_at_the_end(arrays):
    """As where experts are distributed: rows for the experts of other devices come last and are not computed."""
    x, w, _ = arrays
    expected = by_row(x[:12], w, [5, 0, 7, 0])
    kernels = partial(moe.megablox_matmul, tile=moe.SUBLANES), triton_matmul
    for product in (moe.block_matmul, *(partial(kernel, interpret=True) for kernel in kernels)):
        np.testing.assert_allclose(product(x, w, jnp.asarray([5, 0, 7, 0]))[:12], expected, atol=1e-5)


@pytest.mark.parametrize("sizes", RUNS[:2])
@pytest.mark.parametrize(
    ("matmul", "outer"), [(moe.megablox_matmul, moe.megablox_outer), (triton_matmul, triton_outer)], ids=["tpu", "gpu"]
)
def test_kernels_in_the_interpreter(arrays, sizes, matmul, outer):
    """Tests the three kernels' arguments, padding and transposes without an accelerator."""
    x, w, ct = arrays
    sizes_X = jnp.asarray(sizes)
    expected, dx, dw = with_gradients(of_rows, ct, x, w, np.repeat(np.arange(EXPERTS), sizes))
    np.testing.assert_allclose(matmul(x, w, sizes_X, interpret=True), expected, atol=1e-5)
    transposed = matmul(ct, w, sizes_X, transposed=True, interpret=True)
    np.testing.assert_allclose(transposed, dx, atol=1e-5)
    np.testing.assert_allclose(outer(x, ct, sizes_X, interpret=True), dw, atol=1e-5)


def dense_experts(x_ND, share_NX, gate_XDF, up_XDF, down_XFD):
    """Every token times every expert, in float32."""
    x, gate, up, down = (a.astype(jnp.float32) for a in (x_ND, gate_XDF, up_XDF, down_XFD))
    hidden = jax.nn.silu(jnp.einsum("nd,xdf->nxf", x, gate)) * jnp.einsum("nd,xdf->nxf", x, up)
    return jnp.einsum("nxf,xfd,nx->nd", hidden, down, share_NX)


def few(tokens, experts, width, ffn, dtype, chance=0.4):
    """Tokens, shares and matrices; expert 0 has all tokens, expert 1 none, the others some."""
    rng = np.random.default_rng(0)
    share = np.where(rng.random((tokens, experts)) < chance, rng.random((tokens, experts)), 0)
    share[:, 0], share[:, 1] = 1, 0
    shapes = ((experts, width, ffn), (experts, width, ffn), (experts, ffn, width))
    x, *matrices = (jnp.asarray(rng.normal(size=s) / s[-2] ** 0.5, dtype) for s in ((tokens, width), *shapes))
    return x, jnp.asarray(share, jnp.float32), *matrices


def routed(share_NX):
    """These shares as the kernel for routing gives them."""
    rows = -(-len(share_NX) // moe_tpu.LANES) * moe_tpu.LANES
    share_XN = jnp.pad(share_NX, ((0, rows - len(share_NX)), (0, 0))).T
    count_X = jnp.sum(share_XN > 0, axis=1, dtype=jnp.int32)
    held_X = [max((other for other in range(x + 1) if count_X[other]), default=0) for x in range(len(count_X))]
    return moe_tpu.Routed(share_XN, count_X, jnp.asarray(held_X, jnp.int32))


@pytest.mark.parametrize(
    ("tokens", "experts", "picks", "normalised"),
    [
        (40, 8, 3, True),
        (200, 60, 4, False),
        *(
            pytest.param(*sizes, normalised, marks=pytest.mark.slow)
            for *sizes, normalised in ((40, 8, 3, False), (128, 128, 8, True), (128, 128, 8, False), (200, 60, 4, True))
        ),
    ],
)
def test_routing_in_the_interpreter(cfg, tokens, experts, picks, normalised):
    """The TPU's kernel against `route`: the same experts, also where two are equally likely, and the same shares up to
    the rounding of the softmax's sums; on two devices with half of the experts each."""
    rng = np.random.default_rng(0)
    x, router = (jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32) for s in ((tokens, 128), (128, experts)))
    router = router.at[:, 5].set(router[:, 2])  # ties
    cfg = like(cfg, num_experts=experts, experts_per_token=picks, norm_topk_prob=normalised)
    weights_Nk, picked_Nk = moe.route(feed_of(cfg), x, router)
    share = np.zeros((tokens, experts), np.float32)
    np.put_along_axis(share, np.asarray(picked_Nk), np.asarray(weights_Nk), axis=1)
    assert ((share[:, 2] > 0) & (share[:, 5] == 0)).any(), "a tie is between the last pick and the next"
    own = experts // 2
    for first in (0, own):
        kernel = moe_tpu.route_few(x, router, jnp.int32(first), own, picks, normalised, interpret=True)
        known = moe_tpu.routed_few(weights_Nk, picked_Nk, jnp.int32(first), own)
        expected = routed(jnp.asarray(share[:, first : first + own]))
        for ours in (kernel, known):
            np.testing.assert_array_equal(ours.share_XN > 0, expected.share_XN > 0)
            np.testing.assert_allclose(ours.share_XN, expected.share_XN, rtol=2e-6)
            np.testing.assert_array_equal(ours.count_X, expected.count_X)
            np.testing.assert_array_equal(ours.held_X, expected.held_X)


def test_routing_of_a_token_does_not_depend_on_the_others():
    rng = np.random.default_rng(0)
    x, router = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((150, 128), (128, 8)))

    def run(x):
        return np.asarray(moe_tpu.route_few(x, router, jnp.int32(0), 8, 3, True, interpret=True).share_XN)

    expected = run(x)
    np.testing.assert_array_equal(run(x[:40])[:, :40], expected[:, :40])
    out = run(x.at[7].set(jnp.nan))
    np.testing.assert_array_equal(np.delete(out, 7, axis=1), np.delete(expected, 7, axis=1))
    assert not (out[:, 7] > 0).any(), "a token that is not a number picks no expert"


@pytest.mark.parametrize(
    ("tokens", "experts", "dtype", "bound"),
    [(40, 4, "float32", 2e-6), (200, 3, "float32", 2e-6), (256, 4, "bfloat16", 0.01)],
)
def test_few_tokens_in_the_interpreter(monkeypatch, tokens, experts, dtype, bound):
    """The TPU's kernel against all products: more tokens of one expert than a block has, none, an odd number of
    experts, and an ffn that is read in three parts. In bfloat16 the result is of size 1 and rounded to 2^-8."""
    x, share, *matrices = few(tokens, experts, 128, 384, jnp.dtype(dtype))
    expected = dense_experts(x, share, *matrices)
    for limit in (moe_tpu.WEIGHTS, 1):
        monkeypatch.setattr(moe_tpu, "WEIGHTS", limit)
        out = moe_tpu.few_tokens(x, routed(share), *matrices, interpret=True)
        assert out.dtype == jnp.dtype(dtype)
        np.testing.assert_allclose(out.astype(jnp.float32), expected, atol=bound * float(jnp.abs(expected).max()))


def test_few_tokens_do_not_depend_on_each_other():
    """A token's bits are the same beside other tokens, elsewhere, and beside one that is not a number."""
    x, share, *matrices = few(150, 4, 128, 128, jnp.float32)

    def run(x, share):
        return np.asarray(moe_tpu.few_tokens(x, routed(share), *matrices, interpret=True))

    expected = run(x, share)
    order = np.random.default_rng(1).permutation(150)
    np.testing.assert_array_equal(run(x[order], share[order]), expected[order])
    np.testing.assert_array_equal(run(x[:40], share[:40]), expected[:40])
    out = run(x.at[7].set(jnp.nan).at[9].set(jnp.inf), share)
    others = np.delete(np.arange(150), [7, 9])
    np.testing.assert_array_equal(out[others], expected[others])


@pytest.mark.slow
def test_few_and_sorted_tokens_agree(cfg, monkeypatch):
    """Both ways to multiply by a device's own experts, here the second four of eight, routed before or not."""
    for kernel in ("few_tokens", "route_few"):
        monkeypatch.setattr(moe_tpu, kernel, partial(getattr(moe_tpu, kernel), interpret=True))
    x, _, *matrices = few(48, 4, 128, 256, jnp.float32)
    cfg = like(cfg, num_experts=8, experts_per_token=3)
    router = jnp.asarray(np.random.default_rng(2).normal(size=(128, 8)), jnp.float32)
    w = {"router_DX": router, **dict(zip(moe.EXPERTS, matrices, strict=True))}
    expected = moe._own_sorted(feed_of(cfg), w, lambda gate: gate, None, x, x, jnp.int32(4))
    routed = moe.route(feed_of(cfg), x, router)
    assert np.array_equal(expected, moe._own_sorted(feed_of(cfg), w, lambda gate: gate, routed, x, x, jnp.int32(4)))
    for known in (None, routed):
        ours = moe._own_few(feed_of(cfg), w, known, x, x, jnp.int32(4))
        np.testing.assert_allclose(ours, expected, atol=2e-6 * float(jnp.abs(expected).max()))
    assert moe._few(x, matrices) and not moe._few(jnp.zeros((513, 128)), matrices)
    for tokens, taken in ((128, True), (129, False)):
        assert moe._few(jnp.zeros((tokens, 7168)), matrices) == taken, "too much for the vector memory"
    assert not moe._few(x, [matrix[..., :100] for matrix in matrices])


def test_blocks_of_the_gpu_kernel():
    """More rows, columns and inner columns than a block has, none of them a multiple of it."""
    rng, sizes_X = np.random.default_rng(3), jnp.asarray([70, 0, 3, 127])
    x, w, ct = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((200, 72), (4, 72, 136), (200, 136)))
    expected, dx, dw = with_gradients(of_rows, ct, x, w, np.repeat(np.arange(EXPERTS), sizes_X))
    np.testing.assert_allclose(triton_matmul(x, w, sizes_X, interpret=True), expected, atol=1e-4)
    np.testing.assert_allclose(triton_matmul(ct, w, sizes_X, transposed=True, interpret=True), dx, atol=1e-4)
    np.testing.assert_allclose(triton_outer(x, ct, sizes_X, interpret=True), dw, atol=1e-4)


def test_routing_by_hand(cfg):
    """Logits ln 1, ln 2, ln 3, ln 4: probabilities 0.1 to 0.4, of which 0.4 and 0.3 are picked."""
    x = jnp.zeros((1, IN)).at[0, 0].set(1.0)
    router = jnp.zeros((IN, EXPERTS)).at[0].set(jnp.log(jnp.arange(1.0, 5.0)))
    weights, picked = moe.route(feed_of(cfg), x, router)
    assert picked.tolist() == [[3, 2]]
    np.testing.assert_allclose(weights, [[4 / 7, 3 / 7]], rtol=1e-6)
    plain, _ = moe.route(replace(feed_of(cfg), normalised=False), x, router)
    np.testing.assert_allclose(plain, [[0.4, 0.3]], rtol=1e-6)


def test_routing_has_the_same_bits_without_a_gradient(cfg):
    rng = np.random.default_rng(4)
    x, router = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((64, IN), (IN, EXPERTS)))
    feed = feed_of(cfg)
    for one, other in zip(moe.route(feed, x, router), moe.route(feed, x, router, gradient=False), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_token_gets_its_experts(cfg):
    """Value and gradients of the layer against an explicit sum over experts, also if one expert gets every token."""
    rng = np.random.default_rng(1)
    shapes = {"router_DX": (IN, 4), "gate_XDF": (4, IN, 6), "up_XDF": (4, IN, 6), "down_XFD": (4, 6, IN)}
    w = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    x, ct = (jnp.asarray(rng.normal(size=(2, 9, IN)), jnp.float32) for _ in range(2))

    def layer(w, x, _):
        return moe.moe_layer(feed_of(cfg), w, x, LOCAL)

    def dense(w, x, _):
        weights, picked = moe.route(feed_of(cfg), x.reshape(-1, IN), w["router_DX"])
        share = jnp.sum(jax.nn.one_hot(picked, 4) * weights[..., None], axis=1).reshape(2, 9, 4)
        hidden = jax.nn.silu(jnp.einsum("btd,xdf->btxf", x, w["gate_XDF"])) * jnp.einsum(
            "btd,xdf->btxf", x, w["up_XDF"]
        )
        return jnp.einsum("btxf,xfd,btx->btd", hidden, w["down_XFD"], share)

    for bias in (0.0, 1e3):  # a router that sends every first pick to expert 1
        loaded = w | {"router_DX": w["router_DX"].at[:, 1].add(bias * x[0, 0])}
        ours, *gradients = with_gradients(layer, ct, loaded, x, None)
        expected, *others = with_gradients(dense, ct, loaded, x, None)
        np.testing.assert_allclose(ours, expected, atol=2e-5)
        for mine, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(others), strict=True):
            np.testing.assert_allclose(mine, other, atol=2e-5 * max(1.0, float(np.abs(other).max())))


def test_a_row_has_the_same_bits_in_any_batch(arrays):
    x, w, _ = arrays
    run = jax.jit(moe.block_matmul)
    row = np.asarray(run(x, w, jnp.asarray([0, 0, 32, 0])))[7].tobytes()
    for sizes, place in (([5, 0, 7, 20], 9), ([31, 0, 1, 0], 31), ([0, 0, 1, 31], 0)):
        others = jnp.roll(x, 3, axis=0).at[place].set(x[7])
        assert np.asarray(run(others, w, jnp.asarray(sizes)))[place].tobytes() == row


def test_work_and_memory_of_the_loop_over_blocks():
    """XLA counts a loop's body once. Times the number of blocks, it is at most 1.5 products of J rows, for each of the
    three products; `ragged_dot` on this platform multiplies every row by every expert. No temporary is [X, J, ·].
    """
    rows, experts, width = 2048, 16, 64
    sizes_X = jnp.full((experts,), rows // experts, jnp.int32)
    size, _, _, blocks = moe._blocks(sizes_X, rows)
    assert int(blocks) * size <= 1.5 * rows
    x, w = jnp.ones((rows, width)), jnp.ones((experts, width, width))
    ideal, block = 2 * rows * width * width, 2 * size * width * width
    forward = jax.jit(moe.grouped_matmul).lower(x, w, sizes_X).compile()
    gradient = jax.jit(jax.grad(lambda x, w: moe.grouped_matmul(x, w, sizes_X).sum(), (0, 1))).lower(x, w).compile()
    ragged = jax.jit(jax.lax.ragged_dot).lower(x, w, sizes_X).compile()
    flops = [(program.cost_analysis() or {})["flops"] for program in (forward, gradient, ragged)]
    assert flops[0] < 1.2 * block and flops[1] < 2.4 * block + 2 * experts * width * width
    assert flops[2] > 0.9 * experts * ideal
    memory = gradient.memory_analysis()
    assert memory is not None and memory.temp_size_in_bytes < experts * rows * width * 4 / 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="no libtpu: pip install libtpu compiles for TPU without one")
def test_the_tpu_program_does_no_dense_work():
    """Qwen3-30B-A3B's experts on 2,048 tokens for v5p: 9 kernels (three products, each forward, dx and dw) and at most
    1.1 times three forwards of FLOPs; the gradient of `ragged_dot` takes 43 times as many.
    """
    command = [sys.executable, str(Path(__file__).with_name("moe_on_tpu.py"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["kernels"] == 9
    assert 3 * facts["forward"] <= facts["flops"] <= 1.1 * 3 * facts["forward"]
    assert facts["temporary"] < 2**30
    assert facts["wide_scatters"] == []


@pytest.mark.parametrize("normalised", [True, False])
def test_replayed_picks_have_the_weights_of_their_own_probabilities(normalised):
    """Of tokens with picks, in their order; others, whose first two are equal, pick for themselves."""
    rng, feed = np.random.default_rng(0), Experts(8, 6, 3, normalised)
    x, router = rng.normal(size=(9, 16)).astype(np.float32), rng.normal(size=(16, 6)).astype(np.float32)
    given = rng.random((9, 6)).argsort(axis=-1)[:, :3].astype(np.uint8)
    given[::3] = 0
    own, best = moe.route(feed, jnp.asarray(x), jnp.asarray(router))
    weights, picked = moe.route(feed, jnp.asarray(x), jnp.asarray(router), replayed_Nk=jnp.asarray(given))
    assert np.array_equal(picked[::3], best[::3]) and np.array_equal(weights[::3], own[::3])
    (others,) = np.nonzero(np.arange(9) % 3)
    probs = np.exp(x @ router) / np.exp(x @ router).sum(-1, keepdims=True)
    wanted = np.take_along_axis(probs, given.astype(int), axis=1)[others]
    wanted = wanted / wanted.sum(-1, keepdims=True) if normalised else wanted
    assert np.array_equal(picked[others], given[others])
    np.testing.assert_allclose(weights[others], wanted, rtol=1e-5)
