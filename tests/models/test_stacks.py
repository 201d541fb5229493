"""Models with several kinds of layers: a stack for each kind, scanned as if the layers were alike."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import stacks, transformer
from scope_jax.models.decoder.adapter import Adapter, combined, declare_factors
from scope_jax.models.decoder.config import Dense, ModelConfig
from scope_jax.models.decoder.hf import hf_shapes
from scope_jax.models.decoder.lowrank import is_low_rank
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.spec import init_params


@pytest.fixture(scope="module")
def mixed(tiny) -> ModelConfig:
    """a b b a b b a: a has norms of queries and keys, b has none and a narrower feed-forward layer."""
    (a, _) = tiny.layers
    b = replace(a, mixer=replace(a.mixer, qk_norm="none"), feed=Dense(24))
    return replace(tiny, layers=(a, b, b) * 2 + (a,))


@pytest.fixture(scope="module")
def weights(mixed):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda param: (0.1 * rng.normal(size=param.shape)).astype(np.float32), transformer.declare(mixed)
    )


def test_a_stack_for_each_kind_of_layer(mixed, tiny):
    assert stacks.stacks(mixed) == ((0, 3, 6), (1, 2, 4, 5)) and stacks.stacks(tiny) == ((0, 1),)
    assert stacks.places(mixed) == [(0, 0), (1, 0), (1, 1), (0, 1), (1, 2), (1, 3), (0, 2)]
    assert transformer.layer_stages(mixed.layers) == [(0, mixed.layers[:3], 2), (6, mixed.layers[:1], 1)]
    layers = transformer.declare(mixed)["layers"]
    assert list(layers) == ["0", "1"] and layers["0"]["up_DF"].shape == (3, 32, 48)
    assert layers["1"]["up_DF"].shape == (4, 32, 24) and "q_norm_h" not in layers["1"]
    assert next(iter(transformer.declare(tiny)["layers"])) == "attn_norm_D"
    one = stacks.each(mixed, layers, lambda param, place: place)
    assert [layer["up_DF"] for layer in one] == [0, 0, 1, 1, 2, 3, 2]
    stacked = stacks.together(mixed, one, lambda *places: places)
    assert stacked["0"]["up_DF"] == (0, 1, 2) and stacked["1"]["up_DF"] == (0, 1, 2, 3)


def test_names_in_files(mixed, tiny):
    shapes = hf_shapes(mixed)
    assert [shapes[f"model.layers.{i}.mlp.up_proj.weight"][0] for i in range(7)] == [48, 24, 24, 48, 24, 24, 48]
    assert [f"model.layers.{i}.self_attn.q_norm.weight" in shapes for i in range(4)] == [True, False, False, True]
    assert len(hf_shapes(tiny)) == len(jax.tree.leaves(transformer.declare(tiny)["layers"])) * 2 + 3


@pytest.mark.slow  # tests/equivalence/test_families.py has gradients of such models, against transformers
def test_a_scan_over_periods_equals_a_loop_over_layers(mixed, weights):
    """Hidden states, and gradients of every weight and of the factors of an adapter of both kinds of layers."""
    ids = np.random.default_rng(1).integers(0, mixed.vocab_size, (1, 12)).astype(np.int32)
    row = [jnp.asarray(x, jnp.int32) for x in (ids, np.arange(12)[None], np.full((1, 12), 12))]
    adapter = Adapter(2, 4.0, ("q_proj", "down_proj"), base_dtype=jnp.float32)
    factors = init_params(declare_factors(mixed, adapter), jax.random.key(2))
    factors = jax.tree.map(lambda x: x + 0.1, factors)
    assert jax.tree.map(lambda x: x.shape[0], factors["layers"])["1"] == {
        "q_D_Hh": {"a": 4, "b": 4},
        "down_FD": {"a": 4, "b": 4},
    }
    forward = partial(transformer.hidden, mixed, shards=LOCAL, compute_dtype=jnp.float32)

    def loss(remat, unstacked, params, factors):
        params = transformer.unstack_layers(mixed, params) if unstacked else params
        hidden = forward(combined(mixed, params, factors, adapter.scale), *row, remat=remat)
        return jnp.sum(jnp.square(hidden) * jnp.arange(mixed.width)), hidden

    (scanned, hidden), grads = jax.jit(jax.value_and_grad(partial(loss, "full", False), (0, 1), has_aux=True))(
        weights, factors
    )
    (looped, same), others = jax.jit(jax.value_and_grad(partial(loss, "none", True), (0, 1), has_aux=True))(
        weights, factors
    )
    np.testing.assert_allclose(hidden, same, atol=1e-5)
    assert float(scanned) == pytest.approx(float(looped), rel=1e-5)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * float(jnp.abs(b).max()))
    whole = combined(mixed, weights, factors, adapter.scale)
    assert is_low_rank(whole["layers"]["1"]["q_D_Hh"]) and not is_low_rank(whole["layers"]["1"]["k_D_Kh"])
