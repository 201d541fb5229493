"""The forward pass: masks from ends and never from ids, packing, gradients, remat, attention by hand."""

import math
from dataclasses import replace
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.sums import with_bias
from scope_jax.models.decoder.transformer import Remat, declare
from scope_jax.models.kernels.attention import attention
from scope_jax.models.kernels.masks import visible_mask
from scope_jax.models.kernels.rope import Rope, frequencies, rotate
from scope_jax.plan.hlo import Program
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.spec import abstract_params, init_params, path_name
from tests.rows import ends
from tests.shapes import like

PAD_ID = 0


@partial(jax.jit, static_argnums=0, static_argnames=("remat", "dtype"))
def forward(cfg, params, ids_BT, positions_BT, ends_BT, remat: Remat = "none", dtype=jnp.float32):
    arrays = (ids_BT, positions_BT, ends_BT)
    return transformer.hidden(cfg, params, *arrays, shards=LOCAL, remat=remat, compute_dtype=dtype)


@partial(jax.jit, static_argnums=0, static_argnames="remat")
def gradients(cfg, params, ids_BT, positions_BT, ends_BT, weight_BT, remat="none"):
    """Gradients of Σ weight · hidden² over tokens and features."""

    def loss(p):
        hidden_BTD = forward(cfg, p, ids_BT, positions_BT, ends_BT, remat=remat)
        return jnp.sum(jnp.square(hidden_BTD) * weight_BT[..., None] * jnp.arange(cfg.width))

    return jax.grad(loss)(params)


def run(cfg, params, ids_BT, positions_BT, segments_BT, **options):
    return forward(
        cfg, params, *(np.asarray(x, np.int32) for x in (ids_BT, positions_BT, ends(segments_BT))), **options
    )


def grad(cfg, params, ids_BT, positions_BT, segments_BT, weight_BT, **options):
    arrays = (np.asarray(x, np.int32) for x in (ids_BT, positions_BT, ends(segments_BT)))
    return gradients(cfg, params, *arrays, np.asarray(weight_BT, np.float32), **options)


def test_attention_by_hand():
    """One head: q·k/√h is 0 or ln 3, so the second token's attention weights are 3 : 1."""
    q_BTHh = jnp.array([[[[math.sqrt(2.0), 0.0]], [[math.sqrt(2.0), 0.0]]]])
    k_BTKh = jnp.array([[[[math.log(3.0), 0.0]], [[0.0, 1.0]]]])
    v_BTKh = jnp.array([[[[4.0, 0.0]], [[0.0, 8.0]]]])
    out = attention(q_BTHh, k_BTKh, v_BTKh, visible_mask(jnp.array([[2, 2]])))
    np.testing.assert_allclose(out[0, :, 0], [[4.0, 0.0], [3.0, 2.0]], rtol=1e-6)
    apart = attention(q_BTHh, k_BTKh, v_BTKh, visible_mask(jnp.array([[1, 2]])))
    np.testing.assert_allclose(apart[0, :, 0], [[4.0, 0.0], [0.0, 8.0]], rtol=1e-6)


def test_query_heads_read_their_own_kv_head():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 5, heads, 4)).astype(np.float32) for heads in (6, 2, 2))
    mask = np.tril(np.ones((2, 5, 5), bool))
    grouped = jax.jit(attention)(q, k, v, mask)
    repeated = jax.jit(attention)(q, np.repeat(k, 3, axis=2), np.repeat(v, 3, axis=2), mask)
    np.testing.assert_allclose(grouped, repeated, atol=1e-6)


def test_rotation_by_hand_and_relative():
    """h = 4, θ = 100: pair (0, 2) turns by p, pair (1, 3) by p/10; a dot product depends on the distance alone."""
    rotated = jax.jit(rotate, static_argnums=2)
    x = np.array([[[[1.0, 0.0, 0.0, 2.0]]]], np.float32)
    turned = rotated(x, np.array([[3]]), Rope(100.0))[0, 0, 0]
    expected = [math.cos(3), -2 * math.sin(0.3), math.sin(3), 2 * math.cos(0.3)]
    np.testing.assert_allclose(turned, expected, rtol=1e-6)
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 4)).astype(np.float32)
    dots = [
        np.vdot(rotated(q, np.array([[p]]), Rope(100.0)), rotated(k, np.array([[p - 5]]), Rope(100.0))) for p in (5, 40)
    ]
    np.testing.assert_allclose(dots[0], dots[1], rtol=1e-5)


def test_a_share_of_a_head_turns():
    """h = 8: of a quarter, pair (0, 1) as a head of two; proportional, pair (0, 4), and pair (1, 5) has no angle."""
    x = jnp.arange(1.0, 9.0).reshape(1, 1, 1, 8)
    positions = jnp.array([[3]])
    cos, sin = math.cos(3), math.sin(3)
    part = rotate(x, positions, Rope(100.0, share=0.25))[0, 0, 0]
    np.testing.assert_allclose(part, [cos - 2 * sin, 2 * cos + sin, *range(3, 9)], rtol=1e-6)
    proportional = Rope(100.0, "proportional", share=0.25)
    np.testing.assert_array_equal(frequencies(proportional, 8), [1, 0, 0, 0])
    spread = rotate(x, positions, proportional)[0, 0, 0]
    np.testing.assert_allclose(spread, [cos - 5 * sin, 2, 3, 4, 5 * cos + sin, 6, 7, 8], rtol=1e-6)
    whole, half = Rope(100.0, "proportional"), Rope(100.0, "proportional", 2.0, share=0.5)
    np.testing.assert_array_equal(frequencies(whole, 8), frequencies(Rope(100.0), 8))
    np.testing.assert_allclose(frequencies(half, 8), [0.5, 0.5 * 100**-0.25, 0, 0], rtol=1e-6)


def test_norms_multiply_by_the_offset_and_the_weight(tiny, params):
    """With offset 1, norms whose weights are smaller by 1 give the same model, and fresh ones multiply by 1."""
    cfg = replace(tiny, norm_offset=1.0)
    fresh = jax.jit(lambda: init_params(declare(cfg), jax.random.key(0)))()

    def is_norm(path):
        return "norm" in path_name(path)

    smaller = jax.tree.map_with_path(lambda path, x: x - 1 if is_norm(path) else x, params)
    for path, x in jax.tree.leaves_with_path(fresh):
        assert not is_norm(path) or not np.any(x)
    arrays = [[3, 4, 5, 6]], [[0, 1, 2, 3]], [[1, 1, 1, 1]]
    np.testing.assert_allclose(run(cfg, smaller, *arrays), run(tiny, params, *arrays), atol=2e-6)


def test_packed_rows_equal_rows_alone(tiny, params):
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 64, 5), rng.integers(0, 64, 4)
    packed = run(
        tiny,
        params,
        [[*a, *b, 7, 7]],
        [[*range(5), *range(4), 0, 1]],
        [[1] * 5 + [2] * 4 + [0] * 2],
    )
    for row, start in ((a, 0), (b, 5)):
        alone = run(tiny, params, [row], [np.arange(len(row))], [np.ones(len(row))])
        np.testing.assert_allclose(packed[:, start : start + len(row)], alone, atol=2e-6)
    assert bool(jnp.isfinite(packed).all())


def test_a_real_pad_token_keeps_position_attention_and_gradient(tiny, params):
    """The row [5, PAD, PAD, 9] has four real tokens: masks come from ends, so PAD is attended to and trained."""
    positions, real = [[0, 1, 2, 3, 0]], [[1, 1, 1, 1, 0]]
    row = [[5, PAD_ID, PAD_ID, 9, PAD_ID]]
    out = run(tiny, params, row, positions, real)
    shorter = run(tiny, params, [[5, 9]], [[0, 1]], [[1, 1]])
    assert not np.allclose(out[0, 3], shorter[0, 1], atol=1e-3)  # the result if PADs were skipped
    swapped = run(tiny, params, [[5, PAD_ID, 8, 9, PAD_ID]], positions, real)
    assert not np.allclose(out[0, 3], swapped[0, 3], atol=1e-3)  # the second PAD is attended to

    grads = grad(tiny, params, row, positions, real, [[0, 0, 0, 1, 0]])["embed"]["table_VD"]
    assert float(np.abs(grads[PAD_ID]).max()) > 1e-3  # a gradient through attention only
    padding = grad(tiny, params, [[5, 8, 8, 9, PAD_ID]], positions, real, real)["embed"]["table_VD"]
    assert float(np.abs(padding[PAD_ID]).max()) == 0.0  # none for a PAD that is padding


def test_later_tokens_and_packed_neighbours_change_nothing(tiny, params):
    positions, segments = [[0, 1, 2, 0, 1]], [[1, 1, 1, 2, 2]]
    one = run(tiny, params, [[3, 4, 5, 6, 7]], positions, segments)
    two = run(tiny, params, [[3, 4, 9, 6, 8]], positions, segments)
    assert np.array_equal(one[0, :2], two[0, :2])
    assert np.array_equal(one[0, 3], two[0, 3])
    assert not np.allclose(one[0, 2], two[0, 2], atol=1e-3)


def test_remat_changes_no_gradient(tiny, params):
    row = ([[3, 4, 5, 6, 7]], [[0, 1, 2, 3, 0]], [[1, 1, 1, 1, 0]])
    grads = [grad(tiny, params, *row, [[1, 1, 1, 1, 0]], remat=remat) for remat in get_args(Remat)]
    for none, *others in zip(*(jax.tree.leaves(grad) for grad in reversed(grads)), strict=True):
        for other in others:
            np.testing.assert_allclose(other, none, rtol=1e-5, atol=1e-5 * float(np.abs(none).max()))


@pytest.mark.slow
def test_remat_computes_again_what_it_does_not_keep(tiny, params):
    """FLOPs of the compiled gradient; down's product is never computed again, as no other needs its result."""

    def flops(remat, tokens=64):
        rows = [jnp.asarray(rows) for rows in ([[3] * tokens], [list(range(tokens))], [[tokens] * tokens])]
        how = {"shards": LOCAL, "remat": remat, "compute_dtype": jnp.float32}
        gradient = jax.jit(jax.grad(lambda params: transformer.hidden(tiny, params, *rows, **how).sum()))
        text = gradient.lower(params).compile().as_text()
        assert text is not None
        return Program(text).costs().flops

    tokens, D, mixer = 64, tiny.width, tiny.layers[0].mixer
    heads, kv = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
    full, attention, qkv, dots, none = (flops(remat) for remat in get_args(Remat))
    assert full == attention  # the gradient of a short row's attention needs all that its result does
    assert attention - qkv == tiny.num_layers * 2 * tokens * D * (heads + 2 * kv)
    assert qkv - dots == tiny.num_layers * 2 * tokens * D * (heads + 2 * tiny.layers[0].feed.width)
    assert dots - none == tiny.num_layers * 2 * 2 * tokens * tokens * heads  # q k and p v
    # Blocks of longer rows are computed again by attention's own backward pass, so that the layer's need not.
    pairs = 128 * 128 + 128 * 256
    assert flops("full", 256) - flops("attention", 256) == tiny.num_layers * 2 * 2 * pairs * heads


@pytest.mark.parametrize("remat", ["full", "attention", "dots", "none"])
def test_the_scan_over_layers_keeps_no_copy_of_the_weights(tiny, params, remat):
    """What its forward pass gives to the backward pass has none of the stacked weights' shapes."""
    rows = [jnp.asarray(rows) for rows in ([[3] * 7], [list(range(7))], [[7] * 7])]
    how = {"shards": LOCAL, "remat": remat, "compute_dtype": jnp.float32}
    program = jax.make_jaxpr(jax.grad(lambda params: transformer.hidden(tiny, params, *rows, **how).sum()))(params)
    forward, backward = (one for one in program.jaxpr.eqns if one.primitive.name == "scan")
    weights = {leaf.shape for leaf in jax.tree.leaves(params["layers"])}
    assert not weights & {out.aval.shape for out in forward.outvars}
    assert weights <= {out.aval.shape for out in backward.outvars}  # their gradients


def test_bfloat16_compute_stays_near_float32(tiny, params):
    row = ([[3, 4, 5, 6, 7]], [[0, 1, 2, 3, 0]], [[1, 1, 1, 1, 0]])
    half = run(tiny, params, *row, dtype=jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    a, b = np.asarray(half, np.float32).ravel(), np.asarray(run(tiny, params, *row)).ravel()
    assert a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) > 0.999


def test_unstacked_layers_are_the_inputs_of_block(tiny, params):
    ids, positions = jnp.array([[3, 4, 5, 6, 7]]), jnp.array([[0, 1, 2, 3, 4]])
    unstacked = transformer.unstack_layers(tiny, params)
    assert len(unstacked["layers"]) == tiny.num_layers

    @jax.jit
    def looped(p):
        mask = visible_mask(jnp.full((1, 5), 5))
        x = transformer.embed(tiny, p, ids, LOCAL)
        for w in p["layers"]:
            x = transformer.block(
                tiny, tiny.layers[0], w, x, positions, lambda q, k, v: attention(q, k, v, mask), LOCAL
            )
        return transformer.final_norm(tiny, p, x)

    np.testing.assert_allclose(looped(unstacked), run(tiny, params, ids, positions, np.ones((1, 5))), atol=2e-6)


@pytest.mark.parametrize("changes", [{"qk_norm": "head"}, {"qk_norm": "width", "norm": "post"}, {"qkv_bias": True}])
def test_wide_norms_change_no_bit(tiny, changes):
    """Only scales of norms become float32: with a bias in it a layer's output would."""
    cfg = like(tiny, **changes)
    params = init_params(transformer.declare(cfg), jax.random.key(0))
    params = jax.tree.map(lambda x: (x + 0.1).astype(jnp.bfloat16), params)
    narrow = transformer.unstack_layers(cfg, params)
    wide = transformer.with_wide_norms(narrow)
    for name, leaf in wide["layers"][0].items():
        assert (leaf.dtype == jnp.float32) == ("norm" in name)

    @jax.jit
    def one(w):
        x = jnp.linspace(-1, 1, 5 * cfg.width).reshape(1, 5, -1).astype(jnp.bfloat16)
        mask = visible_mask(jnp.full((1, 5), 5))
        positions = jnp.arange(5)[None]
        return transformer.block(cfg, cfg.layers[0], w, x, positions, lambda q, k, v: attention(q, k, v, mask), LOCAL)

    ours, expected = one(wide["layers"][0]), one(narrow["layers"][0])
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_array_equal(ours.astype(jnp.float32), expected.astype(jnp.float32))


def test_declaration_holds_each_weight_once(tiny, params):
    declared = abstract_params(transformer.declare(tiny))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), declared) == jax.tree.map(lambda x: (x.shape, x.dtype), params)
    assert transformer.output_table(tiny, params) is not params["embed"]["table_VD"]
    assert np.array_equal(transformer.output_table(tiny, params), params["head"]["table_VD"])


@pytest.mark.parametrize(("tensor", "figure"), [(3, "num_kv_heads=2"), (8, "num_heads=4")])
def test_mesh_that_cuts_a_head_is_refused(tiny, tensor, figure):
    """A query head, or a kv head whose queries are not all on whole devices; devices may share a kv head."""

    def mesh(tensor):
        devices = np.array([jax.devices()[0]] * tensor)
        return jax.sharding.Mesh(devices.reshape(1, 1, tensor), ("data", "fsdp", "tensor"))

    transformer.check_mesh(tiny, mesh(4))
    with pytest.raises(ValueError, match=f"tensor={tensor} does not divide the model's {figure}"):
        transformer.check_mesh(tiny, mesh(tensor))


def test_the_gradient_of_a_frequent_token_is_summed_in_float32(tiny):
    """1,024 tokens with one id: a sum in bfloat16 stops once it is 256 times what is added."""
    tiny = like(tiny, num_layers=1)
    params = init_params(transformer.declare(tiny), jax.random.key(0))
    tokens = jnp.arange(1024)[None]
    arrays = (jnp.full_like(tokens, 3), tokens, jnp.full_like(tokens, 1024))

    def gradient(dtype):
        def loss(p):
            hidden_BTD = transformer.hidden(tiny, p, *arrays, shards=LOCAL, remat="none", compute_dtype=dtype)
            return jnp.sum(hidden_BTD.astype(jnp.float32) * jnp.arange(1, tiny.width + 1))

        return jax.jit(jax.grad(loss))(params)["embed"]["table_VD"]

    exact = gradient(jnp.float32)
    assert float(jnp.linalg.norm(gradient(jnp.bfloat16) - exact) / jnp.linalg.norm(exact)) < 0.03


def test_the_gradient_of_a_bias_is_summed_in_float32():
    """Over 20,000 tokens; the sum itself has the bits of one in bfloat16."""
    rng = np.random.default_rng(0)
    y_BTn, ct_BTn = (jnp.asarray(rng.normal(0.5, 0.5, (1, 20_000, 8)), jnp.bfloat16) for _ in range(2))
    bias_n = jnp.asarray(rng.normal(size=8), jnp.bfloat16)
    out_BTn, pull = jax.jit(partial(jax.vjp, with_bias))(y_BTn, bias_n)
    assert out_BTn.dtype == jnp.bfloat16 and jnp.array_equal(out_BTn, y_BTn + bias_n)
    exact_n = np.asarray(ct_BTn, np.float64).sum((0, 1))
    np.testing.assert_allclose(np.asarray(jax.jit(pull)(ct_BTn)[1], np.float64), exact_n, rtol=4e-3)
