"""Gated DeltaNet: the chunked rule against the recurrence, texts in a row that do not see each other, and its cache."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scope_jax.errors import UserError
from scope_jax.models.decoder.delta import (
    CHUNK,
    KeptState,
    RowBounds,
    Streams,
    Taps,
    advanced,
    check_context,
    convolved,
    delta_rule,
    in_order,
    inverse,
    nothing_kept,
    one_each,
    over_rows,
    since_of,
)
from scope_jax.models.decoder.paged_gpu import Triton
from scope_jax.models.decoder.pages import Loop, feed, init_pages, init_states
from scope_jax.models.decoder.paging import Stateful, Where
from scope_jax.models.decoder.transformer import declare, unstack_layers
from scope_jax.models.files import weights
from scope_jax.models.files.families import from_hf
from scope_jax.sharding.collectives import LOCAL

HEADS, KEY, VALUE = 2, 4, 6


def recurrence(q, k, v, decay, beta, since, state):
    """Token by token in float64: the equations at the head of models/decoder/delta.py."""

    def unit(x):
        return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)

    q, k, out = unit(q) * q.shape[-1] ** -0.5, unit(k), np.zeros(v.shape)
    for t in range(q.shape[1]):
        state = np.where((since[:, t] == 0)[:, None, None, None], 0, state) * np.exp(decay[:, t])[..., None, None]
        new = beta[:, t][..., None] * (v[:, t] - np.einsum("bhij,bhi->bhj", state, k[:, t]))
        state = state + k[:, t][..., None] * new[..., None, :]
        out[:, t] = np.einsum("bhij,bhi->bhj", state, q[:, t])
    return out, state


def case(length: int, begins: list[int], seed: int = 0):
    """q, k, v, decay, beta (up to 2), since, state of two rows; ten keys are the same, as of a token said again."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, 2, length, HEADS, KEY))
    v = rng.normal(size=(2, length, HEADS, VALUE))
    k[:, 5:15] = k[:, 5:6]
    decay = -np.exp(2 * rng.normal(size=(2, length, HEADS)) - 1)
    beta = 2 / (1 + np.exp(-rng.normal(size=(2, length, HEADS))))
    at = np.arange(length)
    since = at - np.asarray(begins)[np.searchsorted(begins, at, side="right") - 1]
    return q, k, v, decay, beta, np.tile(since, (2, 1)), rng.normal(size=(2, HEADS, KEY, VALUE))


@pytest.mark.parametrize("chunk", [1, 8, CHUNK])
def test_the_rule_is_the_recurrence(chunk):
    """Float64, texts that begin within chunks and at their borders, and one that continues what was kept."""
    arrays = case(90, [-3, 3, 8, 30, 31, 64])
    with jax.enable_x64(True):
        rule = jax.jit(partial(delta_rule, chunk=chunk))
        got = rule(*map(jnp.asarray, arrays))
        for ours, wanted in zip(got, recurrence(*arrays), strict=True):
            np.testing.assert_allclose(ours, wanted, atol=1e-12, rtol=0)


def test_the_rule_in_float32():
    arrays = case(90, [0, 31])
    got = jax.jit(delta_rule)(*(jnp.asarray(x, jnp.float32) for x in arrays[:5]), jnp.asarray(arrays[5], jnp.int32))
    wanted = recurrence(*arrays[:6], np.zeros_like(arrays[6]))
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max(), rtol=0)


def test_inverse_of_alike_keys():
    """All entries 2, where powers of the matrix reach 2⁶³ times a binomial; in float32."""
    low = np.tril(np.full((64, 64), 2.0), -1)
    got = np.asarray(inverse(jnp.asarray(low, jnp.float32)), np.float64)
    np.testing.assert_allclose(got @ (low + np.eye(64)), np.eye(64), atol=1e-6)


def test_convolution_by_hand():
    """Taps 1, 10, 100 of x = 1, 2, 3 | 4, 5: a text sees its own tokens only."""
    x = jnp.asarray([[1.0, 2.0, 3.0, 4.0, 5.0]])[..., None, None]
    taps = jnp.asarray([[[1.0, 10.0, 100.0]]])
    out = convolved(x, taps, jnp.asarray([[0, 1, 2, 0, 1]]))[0, :, 0, 0]
    np.testing.assert_allclose(out, jax.nn.silu(jnp.asarray([100.0, 210.0, 321.0, 400.0, 540.0])), rtol=1e-6)
    before = jnp.asarray([7.0, 8.0])[None, None, :, None]
    out = convolved(x, taps, jnp.asarray([[9, 10, 11, 0, 1]]), before)[0, :, 0, 0]
    np.testing.assert_allclose(out[:3], jax.nn.silu(jnp.asarray([187.0, 218.0, 321.0])), rtol=1e-6)
    assert since_of(jnp.asarray([[3, 3, 3, 5, 5, 6, 7]])).tolist() == [[0, 1, 2, 0, 1, 0, 0]]


def streams_of(length: int, rows: int = 1, seed: int = 0) -> tuple[Streams, Taps]:
    rng = np.random.default_rng(seed)
    f32 = partial(jnp.asarray, dtype=jnp.float32)
    q, k = f32(rng.normal(size=(2, rows, length, 1, KEY)))
    v = f32(rng.normal(size=(rows, length, HEADS, VALUE)))
    decay, beta = f32(-rng.random((rows, length, HEADS))), f32(rng.random((rows, length, HEADS)))
    taps = Taps(*(f32(rng.normal(size=shape)) for shape in ((1, KEY, 4), (1, KEY, 4), (HEADS, VALUE, 4))))
    return Streams(q, k, v, decay, beta), taps


@pytest.mark.slow
def test_texts_in_a_row_are_as_alone():
    """Values and gradients; texts shorter than the convolution, and borders within a chunk and at its end."""
    lengths = [1, 2, 3, 40, 18, 7, 20]
    streams, taps = streams_of(sum(lengths))
    ends = np.repeat(np.cumsum(lengths), lengths)[None]

    def packed(streams, taps):
        return over_rows(jnp.asarray(ends))(streams, taps)

    def alone(streams, taps):
        cuts = np.cumsum([0, *lengths])
        parts = [jax.tree.map(lambda x, a=a, b=b: x[:, a:b], streams) for a, b in itertools.pairwise(cuts)]
        outs = [over_rows(jnp.full((1, n), n))(part, taps) for part, n in zip(parts, lengths, strict=True)]
        return jnp.concatenate(outs, axis=1)

    outs, grads = [], []
    for one in (packed, alone):
        out, grad = jax.jit(jax.value_and_grad(lambda s, t, one=one: jnp.sum(jnp.sin(one(s, t))), (0, 1)))(
            streams, taps
        )
        outs.append(float(out))
        grads.append(grad)
    np.testing.assert_allclose(packed(streams, taps), alone(streams, taps), atol=1e-5)
    assert outs[0] == pytest.approx(outs[1], abs=1e-4)
    for a, b in zip(jax.tree.leaves(grads[0]), jax.tree.leaves(grads[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


SHAPES = {"state_BHhe": (HEADS, KEY, VALUE), "q_BKah": (1, 3, KEY), "k_BKah": (1, 3, KEY), "v_BHae": (HEADS, 3, VALUE)}


@pytest.mark.slow
def test_pieces_and_tokens_give_the_whole():
    """A text in pieces of other lengths, then token by token; a row that adds nothing keeps every bit."""
    streams, taps = streams_of(30, rows=2)
    whole = over_rows(jnp.full((2, 30), 30))(streams, taps)
    kept = nothing_kept(SHAPES, 2, jnp.float32)
    kept = KeptState(kept.state_BHhe + 7, *(x + 7 for x in kept[1:]))  # of a row before: a text at position 0 sees none
    outs, start = [], jnp.zeros(2, jnp.int32)
    for length in (5, 1, 11, *[1] * 13):
        at = int(start[0])
        part = jax.tree.map(lambda x, at=at, n=length: x[:, at : at + n], streams)
        out, after = advanced(part, taps, start, jnp.asarray([length, 0 if at else length]), kept, chunk=8)
        if at:
            jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[1], y[1]), after, kept)
        outs, kept, start = [*outs, out[:1]], after, start + length
    np.testing.assert_allclose(jnp.concatenate(outs, axis=1), whole[:1], atol=1e-5)


def test_rows_in_order():
    """Two pieces of one text and one of another in one call; the first piece's state is also copied."""
    streams, taps = streams_of(16, rows=3)
    kept = nothing_kept(SHAPES, 5, jnp.float32)
    rows = RowBounds(*(jnp.asarray(x) for x in ([0, 0, 1], [0, 0, 1], [3, 0, 1])))
    starts, counts = jnp.asarray([0, 16, 0]), jnp.asarray([16, 10, 16])
    run = jax.jit(in_order)
    out, after = run(streams, taps, starts, counts, kept, rows)
    first, alone = run(
        *(jax.tree.map(lambda x: x[:1], streams), taps, starts[:1], counts[:1], kept), RowBounds(*(r[:1] for r in rows))
    )
    np.testing.assert_array_equal(out[0], first[0])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[3], y[0]), after, alone)
    both = jax.tree.map(lambda x: jnp.concatenate([x[0], x[1]])[None, :26], streams)
    np.testing.assert_allclose(
        jnp.concatenate([out[0], out[1][:10]]), jax.jit(over_rows(jnp.full((1, 26), 26)))(both, taps)[0], atol=1e-5
    )
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[4], y[4]), after, kept)
    token = jax.tree.map(lambda x: x[:2, :1], streams)
    _, decoded = jax.jit(one_each)(token, taps, jnp.asarray([26, 16]), jnp.asarray([1, 0]), after)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[1:], y[1:]), decoded, after)
    assert float(jnp.abs(decoded.state_BHhe[0] - after.state_BHhe[0]).max()) > 0


def test_the_kernel_for_a_token_gives_what_products_give():
    """Rows at the beginning of a text, within one, and one that adds nothing, whose bits stay, as those of rows that do
    not step; states of 16 by 32, two value heads to a key head."""
    rng, rows, heads, key, value = np.random.default_rng(0), 5, 4, 16, 32

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    streams = Streams(
        *(normal(rows, 1, 2, key), normal(rows, 1, 2, key), normal(rows, 1, heads, value)),
        *(-jnp.exp(normal(rows, 1, heads)), 2 * jax.nn.sigmoid(normal(rows, 1, heads))),
    )
    taps = Taps(normal(2, key, 4), normal(2, key, 4), normal(heads, value, 4))
    kept = KeptState(
        normal(8, heads, key, value), normal(8, 2, 3, key), normal(8, 2, 3, key), normal(8, heads, 3, value)
    )
    starts, counts = jnp.asarray([0, 1, 2, 70, 9]), jnp.asarray([1, 1, 1, 1, 0])
    out, after = jax.jit(one_each)(streams, taps, starts, counts, kept)
    kernel = Triton(interpret=True).token_step(key, value)
    assert kernel is not None
    ours, own = jax.jit(partial(one_each, step=kernel))(streams, taps, starts, counts, kept)
    np.testing.assert_allclose(ours[:4], out[:4], atol=1e-6)
    np.testing.assert_allclose(own.state_BHhe, after.state_BHhe, atol=1e-6)
    np.testing.assert_array_equal(own.state_BHhe[4:], kept.state_BHhe[4:])
    jax.tree.map(np.testing.assert_array_equal, own[1:], after[1:])
    assert float(jnp.abs(own.state_BHhe[3] - kept.state_BHhe[3]).max()) > 0.1


@pytest.mark.slow
def test_tokens_of_a_model_by_the_kernels_of_a_gpu():
    """A prompt of 32 tokens and three more in two rows: hidden states and states as by products."""
    cfg = from_hf(
        TINY
        | {"model_type": "qwen3_5_text", "num_hidden_layers": 4, "head_dim": 16, "num_attention_heads": 4}
        | {"linear_key_head_dim": 16, "linear_value_head_dim": 32}
    )
    rng, rows = np.random.default_rng(0), jnp.arange(2)
    params = jax.tree.map(lambda param: jnp.asarray(0.3 * rng.normal(size=param.shape), jnp.float32), declare(cfg))
    params, ids_RT = unstack_layers(cfg, params), jnp.asarray(rng.integers(0, cfg.vocab_size, (2, 35)))

    def run(how):
        step = jax.jit(partial(feed, cfg, how, shards=LOCAL))
        cache = Stateful(init_pages(cfg, how, 3, jnp.float32), init_states(cfg, 4, jnp.float32))
        table, outs = 1 + rows.reshape(2, 1, 1), []
        for first, count in ((0, 32), (32, 1), (33, 1), (34, 1)):
            bounds = RowBounds(rows, rows, rows) if count > 1 else None
            where = Where(table, jnp.full(2, first), jnp.full(2, count), rows=bounds)
            out, cache = step(params, cache, ids_RT[:, first : first + count], where)
            outs.append(out)
        return jnp.concatenate(outs, axis=1), [kept.state_BHhe for kept in cache.kept]

    jax.tree.map(
        lambda ours, plain: np.testing.assert_allclose(ours, plain, atol=1e-5), run(Triton(interpret=True)), run(Loop())
    )


def test_states_that_the_kernel_does_not_take():
    assert Triton().token_step(128, 128) is not None
    assert all(Triton().token_step(*sides) is None for sides in ((4, 6), (96, 128), (128, 512)))
    assert Loop().token_step(128, 128) is None


def test_key_heads_that_a_context_axis_does_not_divide():
    check_context(16, 2, 8)
    with pytest.raises(UserError, match="8 key heads"):
        check_context(16, 2, 16)


TINY = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 12}
EXPERTS |= {"num_experts": 3, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"model_type": "qwen3_5_text"}, marks=pytest.mark.slow),
        {"model_type": "qwen3_5_moe_text", **EXPERTS},
    ],
)
def test_files_in_both_layouts(tmp_path, more):
    """Bit for bit, and matrices that are one tensor in files; experts also as tensors of their own."""
    cfg = from_hf(TINY | more)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda param: jnp.asarray(rng.normal(size=param.shape), jnp.float32), declare(cfg))

    def same(other):
        return jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), params, other))

    weights.save_hf(tmp_path / "hf", cfg, params, jnp.float32, None)
    loaded, again = weights.load_hf(tmp_path / "hf")
    assert loaded == cfg and same(again)
    weights.save_orbax(tmp_path / "orbax", cfg, params, jnp.float32, None)
    loaded, again = weights.load_orbax(tmp_path / "orbax")
    assert loaded == cfg and same(again)
    weights.recast_hf(tmp_path / "hf", tmp_path / "copy", jnp.float32)
    stored, copied = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "copy"))
    assert stored.keys() == copied.keys() and all(np.array_equal(stored[name], copied[name]) for name in stored)
    layers, at = params["layers"]["0"], "model.layers.4.linear_attn."  # the fourth of its kind
    wanted = np.concatenate([layers[name][3] for name in ("q_D_Kh", "k_D_Kh", "v_D_He")], axis=1).T
    assert np.array_equal(stored[at + "in_proj_qkv.weight"], wanted)
    wanted = np.concatenate([layers[f"{name}_a"][3] for name in ("q_taps_Kh", "k_taps_Kh", "v_taps_He")])
    assert np.array_equal(stored[at + "conv1d.weight"], wanted[:, None])
    if cfg.num_experts:
        fused = stored["model.layers.4.mlp.experts.gate_up_proj"]
        assert fused.shape == (3, 16, 16) and np.array_equal(fused[2, 8:], layers["up_XDF"][3, 2].T)
        apart = {}
        for name, tensor in stored.items():
            if ".mlp.experts." not in name:
                apart[name] = tensor
                continue
            parts = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
            for expert, whole in enumerate(tensor):
                for part, own in zip(parts, np.split(whole, len(parts)), strict=True):
                    apart[f"{name.rpartition('.')[0]}.{expert}.{part}.weight"] = np.ascontiguousarray(own)
        save_file(apart, tmp_path / "hf/model.safetensors", {"format": "pt"})
        assert same(weights.load_hf(tmp_path / "hf")[1])
