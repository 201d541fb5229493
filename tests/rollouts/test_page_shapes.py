"""Layers whose heads differ in number and size: pages of each shape have numbers and memory of their own."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.errors import UserError
from scope_jax.models.decoder.config import Attention, Dense, Layer, ModelConfig
from scope_jax.models.decoder.paging import PAGE, Paging, arrays, layer_groups, page_shapes
from scope_jax.models.decoder.paging import SHARED as PAGES
from scope_jax.models.kernels.rope import Rope
from scope_jax.plan.architectures import public
from scope_jax.rollouts.budget import page_bytes, pages_within
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.pages import OutOfPages, Pool
from scope_jax.rollouts.types import Continuation
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.rollouts.world import ENGINE, bits, make_engine, make_paged, make_params, make_rollouts, request
from tests.rollouts.world import trainer_logprobs as learner_logprobs

WINDOW, LENGTH = 40, 320
SLIDING = Attention(4, 2, 8, Rope(1e4), WINDOW, "head", scale=1.0, v_norm=True)
FULL = Attention(4, 1, 16, Rope(1e6, "proportional", share=0.25), None, "head", scale=1.0, v_norm=True, values="keys")
SHAPED = ModelConfig(
    *(
        "gemma4_text",
        260,
        32,
        tuple(Layer(one, Dense(48, "gelu_tanh"), "both", True) for one in (SLIDING, FULL, SLIDING)),
    ),
    *(1e-6, True, 1024),
    embed_scale=32**0.5,
    final_softcap=4.0,
)
# As Gemma 4's E2B: a vector of each layer for each token, and layers that attend to the keys of earlier ones.
SHARED = replace(
    SHAPED,
    layers=tuple(
        Layer(one, Dense(48 if one.source is None else 96, "gelu_tanh"), "both", True, inputs=12)
        for one in (SLIDING, SLIDING, FULL, replace(SLIDING, source=1), replace(FULL, source=2))
    ),
)
LONG = replace(ENGINE, slots=4, max_length=LENGTH, prefill_tokens=64)


def test_groups_have_one_shape_and_each_shape_its_arrays():
    assert page_shapes(SHAPED) == ((2, 8), (1, 16))
    assert layer_groups(SHAPED) == ((WINDOW, (0, 2), 0), (None, (1,), 1))
    assert arrays(SHAPED) == (0, 0, 1)
    # Keys and values of 64 tokens in float32: two layers of two heads of 8, one layer of one head of 16.
    assert page_bytes(SHAPED, np.float32, 1) == (2 * 2 * 2 * 8 * 64 * 4, 2 * 16 * 64 * 4)


def test_layers_without_keys_of_their_own_have_no_pages():
    assert page_shapes(SHARED) == page_shapes(SHAPED) and SHARED.cache_layers == (0, 1, 2)
    assert layer_groups(SHARED) == ((WINDOW, (0, 1), 0), (None, (2,), 1))
    assert page_bytes(SHARED, np.float32, 1) == page_bytes(SHAPED, np.float32, 1)
    by_slot = Paging(128, by_slot=True)
    assert layer_groups(SHARED, by_slot) == ((None, (0, 1), 0), (None, (2,), 1)) and arrays(SHARED, by_slot) == (
        0,
        0,
        1,
    )


def test_a_pool_of_two_shapes_never_mixes_them():
    pool = Pool(0, (6, 4), (WINDOW, WINDOW, None), (0, 0, 1))
    assert (pool.available(0), pool.available(1), pool.used) == (5, 3, 0)
    table = pool.columns(2)
    assert table.shape == (3, 2) and len(set(table.ravel().tolist())) == 6
    assert set(table[:2].ravel()) <= set(range(1, 6)) and set(table[2]) <= set(range(7, 10))
    assert (pool.available(0), pool.available(1), pool.used) == (1, 1, 6)
    with pytest.raises(OutOfPages):  # there is one of each, but two groups have the first shape
        pool.columns(1)
    assert (pool.available(0), pool.available(1)) == (1, 1)
    serial = pool.enter(0, b"some tokens", table[:, 0].tolist())
    pool.drop(table.ravel().tolist())
    assert serial == 1 and (pool.available(0), pool.available(1), pool.used) == (5, 3, 0)
    pool.take(3, shape=1)  # the prompt's page of this shape has to go
    assert pool.find(np.frombuffer(b"some tokens ", np.int32)).computed == 0
    assert pool.available(0) == 5


def test_a_budget_is_divided_among_the_shapes():
    """Of Gemma 4 12B a page of 40 sliding layers takes 20 MiB and one of 8 full layers 1 MiB."""
    model = public("gemma-4-12B-it")
    assert model is not None
    config, mesh = (
        replace(ENGINE, slots=64, max_length=32768, compute_dtype=jnp.bfloat16),
        make_mesh(MeshConfig(1, 1, 1)),
    )
    sizes = page_bytes(model, jnp.bfloat16, 1)
    assert sizes == (20 * 2**20, 2**20)
    least = Engine(model, replace(config, pages=10**4), mesh).budget.least
    for gib in (20, 30, 80):
        sliding, full = pages_within(model, config, mesh, gib * 2**30)
        taken = sliding * sizes[0] + full * sizes[1]
        assert gib * 2**30 - sum(sizes) < taken <= gib * 2**30 and sliding >= least[0] and full >= least[1]
        rest = gib * 2**30 - sum(count * size for count, size in zip(least, sizes, strict=True))
        assert (sliding - least[0]) * sizes[0] <= rest / 2 or full >= 64 * 512  # half, unless all slots have enough
    few = pages_within(model, config, mesh, 2**30)
    assert any(count < needed for count, needed in zip(few, least, strict=True))
    with pytest.raises(UserError, match="one episode of"):
        Engine(model, replace(config, pages=few), mesh)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


def cut(turns):
    sampled = [turn for turn in turns if turn.kind == "sampled"]
    return Continuation(tokens(50, 9), "", kept=3) if len(sampled) == 1 else None


def asked() -> list:
    """Prompts shorter and longer than the window, two of them equal; some go on after a cut turn, some grow long."""
    prompts = [tokens(20), tokens(200, 1), tokens(200, 1), tokens(130, 2)]
    ask = [request(ids, key=i, temperature=0.0, max_tokens=60, stop_ids=()) for i, ids in enumerate(prompts)]
    grow = [request(tokens(100, i), key=i, temperature=0.0, max_tokens=200, stop_ids=()) for i in (3, 4, 5)]
    return [*grow, *(replace(one, max_turns=2) for one in (*ask, *(replace(one, respond=cut) for one in ask[:3])))]


@pytest.mark.slow
@pytest.mark.parametrize("model", [SHAPED, SHARED], ids=["shapes", "shared"])
def test_the_completions_are_those_of_pages_of_slots_and_the_learners(monkeypatch, model):
    weights = make_params(model)
    paged = make_rollouts(make_paged(LONG, model), weights)
    said = paged.run(asked())
    columns = make_rollouts(make_engine(LONG, model), weights).run(asked())
    for ours, theirs in zip(said, columns, strict=True):
        assert ours.ids_T.tolist() == theirs.ids_T.tolist()
        np.testing.assert_allclose(ours.logprobs_T, theirs.logprobs_T, atol=1e-5, rtol=0)
        expected = learner_logprobs(weights, ours, 1.0, model, LENGTH)[ours.sampled_T]
        np.testing.assert_allclose(ours.logprobs_T[ours.sampled_T], expected, atol=2e-5, rtol=0)
    alone = [paged.run([one])[0] for one in asked()]
    assert [bits(one) for one in alone] == [bits(one) for one in said]
    aside, set_aside = [], Engine.set_aside
    monkeypatch.setattr(Engine, "set_aside", lambda self, *given: aside.append(given) or set_aside(self, *given))
    least = 1 + PAGES.count(LENGTH) + 2
    few = make_rollouts(make_paged(LONG, model, pages=(20, least)), weights)
    assert [bits(one) for one in few.run(asked())] == [bits(one) for one in said]
    pool = few._state.pools[0]
    assert aside and pool.used == 0 and (pool.available(0), pool.available(1)) == (19, least - 1)
    assert PAGE * (least - 1) >= LENGTH
