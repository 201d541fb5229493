"""Token log-probs: values, gradients, and the largest block of logits in the program."""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.learner.batching import CHUNK
from scope_jax.learner.logprobs import LANES, token_logprobs, token_logprobs_and_entropy, vocabulary_block
from scope_jax.sharding.collectives import LOCAL

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


@pytest.mark.parametrize("chunk", [8, 512])
def test_capped_logits(inputs, chunk):
    """c tanh(x / c) before the temperature; the table is padded, as those of large vocabularies are."""
    hidden_ND, table_VD, targets_N = inputs
    cap, temperature = 3.0, jnp.float32(0.7)
    padded_VD = jnp.pad(table_VD, ((0, 45), (0, 0)))

    def ours(h, w):
        options = {"chunk": chunk, "shards": LOCAL, "vocab": V, "softcap": cap, "entropy_slope": True}
        logp_N, entropy_N = token_logprobs_and_entropy(h, w, targets_N, temperature, **options)
        return (logp_N + 0.3 * entropy_N).sum(), logp_N

    def theirs(h, w):
        logp_NV = jax.nn.log_softmax(cap * jnp.tanh(h @ w.T / cap) / temperature)
        entropy_N = -(jnp.exp(logp_NV) * logp_NV).sum(1)
        logp_N = jnp.take_along_axis(logp_NV, targets_N[:, None], 1)[:, 0]
        return (logp_N + 0.3 * entropy_N).sum(), logp_N

    (grad_ND, grad_VD), logp_N = jax.jit(jax.grad(ours, (0, 1), has_aux=True))(hidden_ND, padded_VD)
    (want_ND, want_VD), wanted_N = jax.jit(jax.grad(theirs, (0, 1), has_aux=True))(hidden_ND, table_VD)
    np.testing.assert_allclose(logp_N, wanted_N, atol=2e-6)
    assert float(jnp.abs(hidden_ND @ table_VD.T).max()) > 3 * cap  # far beyond where the cap is nearly linear
    np.testing.assert_array_equal(grad_VD[V:], 0)
    for a, b in ((grad_ND, want_ND), (grad_VD[:V], want_VD)):
        np.testing.assert_allclose(a, b, atol=5e-6 * float(jnp.abs(b).max()))


@pytest.mark.parametrize(("chunk", "below"), [(8, 10.0), (512, 10.0), (8, 300.0)])
def test_padding_of_the_table_has_no_probability_and_no_gradient(inputs, chunk, below):
    """Every real logit is below the zero that a row of zeros gives."""
    hidden_ND, table_VD, targets_N = inputs
    low_VD = table_VD.at[:, 0].set(-below)
    ahead_ND = hidden_ND.at[:, 0].set(1.0)
    padded_VD = jnp.pad(low_VD, ((0, 150), (0, 0)))

    def ours(h, w):
        logp_N, entropy_N = token_logprobs_and_entropy(
            h, w, targets_N, jnp.float32(0.7), chunk, LOCAL, V, entropy_slope=True
        )
        return (logp_N + 0.3 * entropy_N).sum(), logp_N

    def theirs(h, w):
        logp_NV = jax.nn.log_softmax(h @ w.T / 0.7)
        entropy_N = -(jnp.exp(logp_NV) * logp_NV).sum(1)
        logp_N = plain(h, w, targets_N, 0.7)
        return (logp_N + 0.3 * entropy_N).sum(), logp_N

    (grad_ND, grad_VD), logp_N = jax.jit(jax.grad(ours, (0, 1), has_aux=True))(ahead_ND, padded_VD)
    (want_ND, want_VD), wanted_N = jax.jit(jax.grad(theirs, (0, 1), has_aux=True))(ahead_ND, low_VD)
    np.testing.assert_allclose(logp_N, wanted_N, atol=1e-6 * below)  # the spacing of floats grows with the logits
    np.testing.assert_array_equal(grad_VD[V:], 0)
    for a, b in ((grad_ND, want_ND), (grad_VD[:V], want_VD)):
        np.testing.assert_allclose(a, b, atol=5e-6 * below * float(jnp.abs(b).max()))


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

    (_, entropy_N), grads = jax.jit(jax.value_and_grad(ours, (0, 1), has_aux=True))(hidden_ND, table_VD)
    (_, exact_N), exact = jax.jit(jax.value_and_grad(theirs, (0, 1), has_aux=True))(hidden_ND, table_VD)
    np.testing.assert_allclose(entropy_N, exact_N, atol=2e-6)
    for a, b in zip(grads, exact, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6 * float(jnp.abs(b).max()))
    measured = jax.jit(jax.grad(lambda h, w: ours(h, w, False)[0], (0, 1)))(hidden_ND, table_VD)
    alone = jax.jit(jax.grad(lambda h, w: plain(h, w, targets_N, temperature).sum(), (0, 1)))(hidden_ND, table_VD)
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


def test_no_more_than_one_block_of_logits_exists(inputs):
    hidden_ND, table_VD, targets_N = inputs
    run = jax.grad(lambda h, w: token_logprobs(h, w, targets_N, jnp.float32(1), 8, LOCAL).sum(), (0, 1))
    shapes = set(shapes_in(jax.make_jaxpr(run)(hidden_ND, table_VD).jaxpr))
    assert (N, LANES) in shapes
    assert not [shape for shape in shapes if np.prod(shape) > N * LANES and shape != (V, D)]


def test_blocks_cover_the_vocabulary_within_the_memory_of_a_chunk():
    for sizes in ((151936, 4096, 4096, 128), (151936, 80000, 64, 128), (32000, 999, 256, 512), (211, 37, 16, 8)):
        vocab, positions, width, chunk = sizes
        block = vocabulary_block(*sizes)
        assert block % LANES == 0 and block <= vocab
        assert block == LANES or (positions + width) * block <= chunk * vocab
    assert vocabulary_block(151936, 4096, 64, 128) == 4608  # 33 blocks, the last two share 128 tokens
    assert vocabulary_block(151936, 100, 4096, 128) == 151936
    assert vocabulary_block(100, 37, 16, 8) == 100


def full(hidden_ND, table_VD, targets_N):
    logits_NV = jnp.dot(hidden_ND, table_VD.T, preferred_element_type=jnp.float32)
    return jnp.take_along_axis(jax.nn.log_softmax(logits_NV), targets_N[:, None], 1)[:, 0]


def chunked(hidden_ND, table_VD, targets_N):
    return token_logprobs(hidden_ND, table_VD, targets_N, jnp.float32(1), CHUNK, LOCAL)


def value_and_gradient(log_probs):
    """(log-probs, their pull-back) of one weight for each position."""

    def program(hidden_ND, table_VD, targets_N, cotangent_N):
        logp_N, pull = jax.vjp(lambda h, w: log_probs(h, w, targets_N), hidden_ND, table_VD)
        return logp_N, *pull(cotangent_N)

    return program


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("width", [64, 4096])
def test_memory_is_a_twentieth_of_the_full_logits(backward, width):
    """V = 151,936 (Qwen's), T = 4,096, D of Qwen3-8B or small, float32, default chunk: XLA's count of temporaries in
    the compiled program, which is not run.

    Arguments and results are not temporaries (one of them is the gradient of the table, as in the full version).
    """
    positions, vocab = 4096, 151936

    def temporaries(log_probs):
        program = value_and_gradient(log_probs) if backward else lambda h, w, t, _: log_probs(h, w, t)
        shapes = ((positions, width), jnp.float32), ((vocab, width), jnp.float32), ((positions,), jnp.int32)
        arrays = [jax.ShapeDtypeStruct(*shape) for shape in (*shapes, ((positions,), jnp.float32))]
        used = jax.jit(program).lower(*arrays).compile().memory_analysis()
        assert used is not None
        return used.temp_size_in_bytes

    assert temporaries(full) >= positions * vocab * 4  # 2.3 GiB: the baseline does hold full logits
    assert temporaries(chunked) < temporaries(full) / 20


def in_float64(hidden_ND, table_VD, targets_N, cotangent_N):
    """value_and_gradient of full logits, in numpy's float64."""
    hidden_ND, table_VD = hidden_ND.astype(np.float64), table_VD.astype(np.float64)
    rows_N = np.arange(len(targets_N))
    logits_NV = hidden_ND @ table_VD.T
    logp_NV = logits_NV - np.log(np.exp(logits_NV).sum(1, keepdims=True))  # logits far below 700: no overflow
    slope_NV = -np.exp(logp_NV)
    slope_NV[rows_N, targets_N] += 1
    slope_NV *= cotangent_N[:, None]
    return logp_NV[rows_N, targets_N], slope_NV @ table_VD, slope_NV.T @ hidden_ND


@pytest.mark.slow  # blocks that overlap are above, and in eight_devices.py, with small tables
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_values_and_gradients_at_qwens_vocabulary(spread):
    """V = 151,936 in several blocks whose last two overlap; logits with a standard deviation of `spread`.

    Against float64: log-probs to 1e-5 absolute, gradients to 1e-5 of their largest entry. Against full logits in
    float32: the same, and 1e-5 absolute throughout at a spread of 1. No float32 program meets the latter at a spread
    of 3, where gradients reach 10: full logits themselves are then 1.8e-5 from float64.
    """
    positions, width, vocab = 256, 8, 151936
    assert vocab % vocabulary_block(vocab, positions, width, CHUNK)
    rng = np.random.default_rng(0)
    hidden_ND, table_VD = (rng.normal(size=size).astype(np.float32) for size in ((positions, width), (vocab, width)))
    table_VD *= np.float32(spread / np.sqrt(width))
    targets_N = np.concatenate([[0, vocab - 1, vocab // 2], rng.integers(0, vocab, positions - 3)])
    arrays = hidden_ND, table_VD, targets_N.astype(np.int32), rng.normal(size=positions).astype(np.float32)
    ours = jax.jit(value_and_gradient(chunked))(*map(jnp.asarray, arrays))
    theirs = jax.jit(value_and_gradient(full))(*map(jnp.asarray, arrays))
    for name, mine, other, exact in zip(("logp", "hidden", "table"), ours, theirs, in_float64(*arrays), strict=True):
        bound = 1e-5 if name == "logp" else 1e-5 * np.abs(exact).max()
        np.testing.assert_allclose(mine, exact, rtol=0, atol=bound, err_msg=name)
        np.testing.assert_allclose(mine, other, rtol=0, atol=min(bound, 1e-5) if spread == 1 else bound, err_msg=name)
