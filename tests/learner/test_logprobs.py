"""Token log-probs: values, gradients, and how large the logits in the program ever are."""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.logprobs import token_logprobs, token_logprobs_and_entropy
from sharding.collectives import LOCAL

N, D, V = 37, 16, 211


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    hidden_ND, table_VD = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((N, D), (V, D)))
    return hidden_ND, table_VD, jnp.asarray(rng.integers(0, V, N), jnp.int32)


def plain(hidden_ND, table_VD, targets_N, temperature):
    logp_NV = jax.nn.log_softmax(hidden_ND @ table_VD.T / temperature)
    return jnp.take_along_axis(logp_NV, targets_N[:, None], 1)[:, 0]


@pytest.mark.parametrize(("chunk", "temperature"), [(8, 1.0), (37, 0.7), (512, 1.3)])
def test_values_and_gradients_equal_the_plain_softmax(inputs, chunk, temperature):
    hidden_ND, table_VD, targets_N = inputs
    weight_N = jnp.linspace(-1, 2, N)

    def weighted(h, w):
        return (weight_N * token_logprobs(h, w, targets_N, jnp.float32(temperature), chunk, LOCAL)).sum()

    chunked = jax.jit(jax.value_and_grad(weighted, (0, 1)))
    whole = jax.jit(jax.value_and_grad(lambda h, w: (weight_N * plain(h, w, targets_N, temperature)).sum(), (0, 1)))
    ours, our_grads = chunked(hidden_ND, table_VD)
    theirs, their_grads = whole(hidden_ND, table_VD)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)
    for a, b in zip(our_grads, their_grads, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6 * float(jnp.abs(b).max()))


@pytest.mark.parametrize(("chunk", "temperature"), [(8, 1.0), (512, 0.7)])
def test_entropy_and_its_gradient_equal_the_plain_softmax(inputs, chunk, temperature):
    hidden_ND, table_VD, targets_N = inputs
    weight_N = jnp.linspace(-1, 2, N)

    def ours(h, w, entropy_slope=True):
        logp_N, entropy_N = token_logprobs_and_entropy(
            h, w, targets_N, jnp.float32(temperature), chunk, LOCAL, entropy_slope=entropy_slope
        )
        return (logp_N + weight_N * entropy_N).sum(), entropy_N

    def theirs(h, w):
        logp_NV = jax.nn.log_softmax(h @ w.T / temperature)
        entropy_N = -(jnp.exp(logp_NV) * logp_NV).sum(1)
        return (plain(h, w, targets_N, temperature) + weight_N * entropy_N).sum(), entropy_N

    (_, entropy_N), grads = jax.value_and_grad(ours, (0, 1), has_aux=True)(hidden_ND, table_VD)
    (_, exact_N), exact = jax.value_and_grad(theirs, (0, 1), has_aux=True)(hidden_ND, table_VD)
    np.testing.assert_allclose(entropy_N, exact_N, atol=2e-6)
    for a, b in zip(grads, exact, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6 * float(jnp.abs(b).max()))
    measured = jax.grad(lambda h, w: ours(h, w, False)[0], (0, 1))(hidden_ND, table_VD)
    alone = jax.grad(lambda h, w: plain(h, w, targets_N, temperature).sum(), (0, 1))(hidden_ND, table_VD)
    for a, b in zip(measured, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6 * float(jnp.abs(b).max()))


def test_entropy_of_known_distributions():
    # logits 0, 0, 0 and log 2, 0, 0: probabilities ⅓ each, and ½, ¼, ¼
    hidden_ND, table_VD = jnp.array([[0.0], [1.0]]), jnp.array([[np.log(2.0)], [0.0], [0.0]], jnp.float32)
    targets_N = jnp.zeros(2, jnp.int32)
    _, entropy_N = token_logprobs_and_entropy(
        hidden_ND, table_VD, targets_N, jnp.float32(1), 8, LOCAL, entropy_slope=False
    )
    np.testing.assert_allclose(entropy_N, [np.log(3), 1.5 * np.log(2)], rtol=1e-6)


def test_bfloat16_inputs_give_float32_log_probs_and_bfloat16_gradients(inputs):
    hidden_ND, table_VD, targets_N = inputs
    low = hidden_ND.astype(jnp.bfloat16), table_VD.astype(jnp.bfloat16)

    def run(h, w):
        logp_N = token_logprobs(h, w, targets_N, jnp.float32(1), 16, LOCAL)
        return logp_N.sum(), logp_N

    grads, logp_N = jax.jit(jax.grad(run, (0, 1), has_aux=True))(*low)
    assert logp_N.dtype == jnp.float32
    assert [grad.dtype for grad in grads] == [jnp.bfloat16] * 2
    exact_N = plain(low[0].astype(jnp.float32), low[1].astype(jnp.float32), targets_N, 1.0)
    np.testing.assert_allclose(logp_N, exact_N, atol=1e-5)


def shapes_in(jaxpr):
    """Shapes of every value in a program, inner programs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from shapes_in(inner)


def test_no_more_than_one_chunk_of_logits_exists(inputs):
    hidden_ND, table_VD, targets_N = inputs
    run = jax.grad(lambda h, w: token_logprobs(h, w, targets_N, jnp.float32(1), 8, LOCAL).sum(), (0, 1))
    shapes = set(shapes_in(jax.make_jaxpr(run)(hidden_ND, table_VD).jaxpr))
    assert (8, V) in shapes
    assert not [shape for shape in shapes if V in shape and np.prod(shape) > 8 * V and shape != (V, D)]


def test_memory_grows_with_the_chunk_not_with_the_positions():
    rng = np.random.default_rng(0)
    positions, vocab = 4096, 2048
    hidden_ND, table_VD = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((positions, D), (vocab, D)))
    targets_N = jnp.zeros(positions, jnp.int32)
    run = jax.grad(lambda h, w: token_logprobs(h, w, targets_N, jnp.float32(1), 64, LOCAL).sum(), (0, 1))
    used = jax.jit(run).lower(hidden_ND, table_VD).compile().memory_analysis()
    assert used is not None and used.temp_size_in_bytes < positions * vocab * 4 / 8  # the logits would take 32 MiB
