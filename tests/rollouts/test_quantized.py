"""Matrices in 8 bits: what they stand for, and an engine that has them beside one with whole weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder.adapter import merge
from scope_jax.models.decoder.lowrank import LowRank, product
from scope_jax.models.decoder.pages import Loop, LoopPages
from scope_jax.models.decoder.quantized import dequantized, is_quantized, quantize, round_vectors
from scope_jax.rollouts.budget import page_bytes
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.types import RolloutError
from scope_jax.rollouts.weights import MATRICES
from tests.rollouts.test_adapters import ADAPTED, ADAPTER, POLICIES, factors_of
from tests.rollouts.world import (
    CFG,
    ENGINE,
    bits,
    make_engine,
    make_paged,
    make_rollouts,
    mixed,
    request,
    trainer_logprobs,
)

QUANTIZED = dataclasses.replace(ENGINE, max_length=128, quantized=True)
CACHED = dataclasses.replace(ENGINE, max_length=128, cache_in_8_bits=True)


def rounded(params):
    """The weights that the engine's matrices in 8 bits stand for, in float32."""
    layers = {name: dequantized(quantize(w)) if name in MATRICES else w for name, w in params["layers"].items()}
    return {**params, "layers": layers}


def test_a_channel_is_rounded_to_127_steps_and_its_largest_weight_is_exact():
    w = jnp.asarray([[1.0, 0.0, -2.0], [-0.25, 0.0, 0.5], [0.003, 0.0, 1.99]])
    whole = quantize(w)
    assert whole.values.dtype == jnp.int8 and whole.scale.dtype == jnp.float32
    # 127 · (1, −.25, .003), nothing, 127 / 2 · (−2, .5, 1.99).
    np.testing.assert_array_equal(whole.values, [[127, 0, -127], [-32, 0, 32], [0, 0, 126]])
    np.testing.assert_allclose(whole.scale, [1 / 127, 1.0, 2 / 127], rtol=1e-6)
    assert whole.shape == w.shape
    error = np.abs(np.asarray(dequantized(whole) - w))
    assert (error <= np.asarray(whole.scale) / 2 + 1e-7).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_product_is_that_with_what_the_matrix_stands_for(dtype):
    """Also below low-rank factors. In bfloat16 the result is rounded once, to 8 bits."""
    rng = np.random.default_rng(0)
    w = quantize(jnp.asarray(rng.normal(size=(64, 48)), jnp.float32))
    x = jnp.asarray(rng.normal(size=(3, 5, 64)), dtype)
    exact = np.asarray(x, np.float64) @ np.asarray(dequantized(w), np.float64)
    rtol = 1e-5 if dtype == jnp.float32 else 2**-8
    np.testing.assert_allclose(np.asarray(product(x, w), np.float64), exact, rtol=rtol, atol=rtol)
    a, b = (jnp.asarray(rng.normal(size=size), dtype) for size in ((64, 4), (4, 48)))
    low = LowRank(w, a, b, 0.5)
    assert low.shape == (64, 48)
    added = exact + 0.5 * (np.asarray(x, np.float64) @ np.asarray(a, np.float64)) @ np.asarray(b, np.float64)
    loose = rtol if dtype == jnp.float32 else 2**-5  # both products and their sum are rounded
    np.testing.assert_allclose(np.asarray(product(x, low), np.float64), added, rtol=loose, atol=8 * loose)


@pytest.fixture(scope="module", params=["columns", pytest.param("paged", marks=pytest.mark.slow)])
def quantized(request, params):
    return make_rollouts(make_engine(QUANTIZED) if request.param == "columns" else make_paged(QUANTIZED), params)


def plain(count: int) -> list:
    """Requests at temperature 1, whose log-probs are the model's."""
    return [request(np.random.default_rng(i).integers(0, 256, size=5 + 9 * i).tolist(), key=i) for i in range(count)]


def furthest(params, completions) -> float:
    """The largest difference from the learner's log-probs with these weights."""
    pairs = [(one.logprobs_T, trainer_logprobs(params, one)) for one in completions]
    return max(np.abs(own - theirs).max() for own, theirs in pairs)


def test_the_engine_samples_with_the_log_probs_of_the_rounded_model(quantized, params):
    """Within 2e-4 of the learner's with what the matrices stand for, as whole weights are in float32, and over a
    hundred times as far from those with the weights themselves."""
    matrices = [w for w in jax.tree.leaves(quantized.params, is_leaf=is_quantized) if is_quantized(w)]
    assert len(matrices) == 7 * CFG.num_layers and all(w.values.dtype == jnp.int8 for w in matrices)
    completions = quantized.run(plain(5))
    near, far = furthest(rounded(params), completions), furthest(params, completions)
    assert near < 2e-4 and far > 100 * near, (near, far)


def test_shapes_and_dtypes_of_the_weights_are_those_of_the_plan(quantized):
    given = jax.tree.map(lambda x: (x.shape, x.dtype), quantized.params)
    planned = jax.tree.map(lambda x: (x.shape, x.dtype), quantized.engine.abstract_weights())
    assert jax.tree.leaves(given) == jax.tree.leaves(planned)
    assert jax.tree.structure(given) == jax.tree.structure(planned)


def test_adapters_lie_over_a_base_in_8_bits(params):
    rollouts = make_rollouts(make_engine(dataclasses.replace(ADAPTED, quantized=True)), params)
    for policy in POLICIES:
        rollouts.load_adapter(policy, factors_of(policy))
    for policy in (*POLICIES, None):
        completions = rollouts.run([dataclasses.replace(one, policy=policy) for one in plain(3)])
        own = rounded(params)
        if policy is not None:
            own = merge(CFG, own, factors_of(policy), ADAPTER.scale, jnp.float32)
        assert furthest(own, completions) < 5e-4


def test_whole_weights_sample_in_a_block_and_are_loaded_anew(quantized, params):
    whole = make_rollouts(make_engine(dataclasses.replace(QUANTIZED, quantized=False)), params)
    before = [bits(each) for each in quantized.run(mixed(6))]
    with quantized.unquantized():
        with pytest.raises(RolloutError, match="The engine has no weights"):
            quantized.run(mixed(6))
        quantized.load_params(params)
        completions = quantized.run(plain(3))
    assert furthest(params, completions) < 2e-4
    assert quantized.params is None
    quantized.load_params(params)
    assert [bits(each) for each in quantized.run(mixed(6))] == before
    with whole.unquantized():
        assert whole.params is not None  # nothing changes


# --------------------------------------------------------------------------------------------------------------- cache
class Rounded(Loop):
    """Keeps what keys and values in 8 bits stand for."""

    def write(self, layer: LoopPages, k_NKh, v_NKh, page_N, column_N) -> LoopPages:
        k_NKh, v_NKh = (q.astype(jnp.float32) * s[..., None] for q, s in map(round_vectors, (k_NKh, v_NKh)))
        return super().write(layer, k_NKh, v_NKh, page_N, column_N)


def test_a_vector_is_rounded_to_127_steps_and_one_that_is_not_finite_stays_so():
    values, scale = round_vectors(jnp.asarray([[1.0, -0.25, 0.0], [0.0, 0.0, 0.0], [jnp.nan, 1.0, 2.0]]))
    np.testing.assert_array_equal(values[:2], [[127, -32, 0], [0, 0, 0]])
    np.testing.assert_allclose(scale[:2], [1 / 127, 1.0], rtol=1e-6)
    assert values.dtype == jnp.int8 and bool(jnp.isnan(scale[2]))


@pytest.fixture(scope="module")
def narrow(params):
    return make_rollouts(make_paged(CACHED), params)


def test_a_cache_in_8_bits_is_one_of_rounded_keys_and_values(narrow, params):
    """The same tokens, and log-probs within 2e-5, as of an engine that keeps in float32 what they stand for; over a
    hundred times as far from whole ones."""
    whole = dataclasses.replace(CACHED, cache_in_8_bits=False)
    rounded_cache = make_rollouts(Engine(CFG, whole, narrow.engine.mesh, Rounded()), params)
    ours, theirs = narrow.run(plain(6)), rounded_cache.run(plain(6))
    for one, other in zip(ours, theirs, strict=True):
        assert one.ids_T.tolist() == other.ids_T.tolist()
        np.testing.assert_allclose(one.logprobs_T, other.logprobs_T, atol=2e-5, rtol=0)
    assert furthest(params, ours) > 100 * 2e-5


def test_rows_of_such_a_cache_do_not_depend_on_the_others(narrow):
    """Nor on whether a prompt was computed before, or by whom."""
    together = narrow.run(mixed(16))
    assert [bits(narrow.run([one])[0]) for one in mixed(16)] == [bits(one) for one in together]


def test_exams_have_a_whole_cache_in_the_same_memory(params):
    """Two kv heads of 8 in two layers, 64 tokens, keys and values: 8 + 4 bytes in 8 bits, 32 in float32."""
    assert page_bytes(CFG, jnp.int8, 1) == (2 * 2 * 2 * 64 * 12,)
    assert page_bytes(CFG, jnp.float32, 1) == (2 * 2 * 2 * 64 * 32,)
    narrow = make_paged(dataclasses.replace(CACHED, pages=40))
    whole = narrow.unquantized()
    assert whole.pages == (40 * 12 // 32,) and not whole.config.in_8_bits
    few = make_paged(dataclasses.replace(CACHED, pages=8))
    assert few.unquantized().pages == few.budget.least
    rollouts = make_rollouts(narrow, params)
    with rollouts.unquantized() as anew:
        assert not anew  # the weights are those of both
        assert furthest(params, rollouts.run(plain(3))) < 2e-4
    assert furthest(params, rollouts.run(plain(3))) > 2e-3
