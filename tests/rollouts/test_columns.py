"""A page for each slot against the training forward pass, and results independent of the rest of the batch, for a plain
decoder and for one with every optional part of a layer: sliding windows with their own RoPE, post-layer norms, experts.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.columns import BLOCK, ColumnPages, Columns, widths
from scope_jax.models.decoder.pages import feed, init_pages
from scope_jax.models.decoder.paging import Where
from scope_jax.models.kernels.rope import Rope
from scope_jax.sharding.collectives import LOCAL
from tests.rollouts.world import CFG, make_params
from tests.shapes import like

ROWS, CAPACITY = 4, 320


MIXED = like(
    CFG,
    architecture="olmo3",
    norm="post",
    qk_norm="width",
    layer_windows=(20, None),
    rope=Rope(10000.0, "yarn", 4.0, 64, attention_factor=1.1),
    sliding_rope=Rope(10000.0),
    num_experts=5,
    experts_per_token=2,
    norm_topk_prob=True,
)


@pytest.fixture(
    scope="module", params=[pytest.param(CFG, id="plain", marks=pytest.mark.slow), pytest.param(MIXED, id="mixed")]
)
def cfg(request):
    return request.param


@pytest.fixture(scope="module")
def decode_params(cfg):
    return transformer.unstack_layers(cfg, make_params(cfg))


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(2).integers(0, 256, (ROWS, 200)).astype(np.int32)


@partial(jax.jit, static_argnums=0)
def append(cfg, params, cache, ids_ST, starts_S, counts_S):
    """The cache with so many tokens of each row added from there on."""
    where = Where(jnp.arange(len(ids_ST))[:, None, None], starts_S, counts_S)
    return feed(cfg, Columns(CAPACITY), params, cache, ids_ST, where, LOCAL)[1]


@partial(jax.jit, static_argnums=0)
def step(cfg, params, cache, ids_S, lengths_S):
    """(hidden states after one more token of each row, the cache with it)."""
    where = Where(jnp.arange(len(ids_S))[:, None, None], lengths_S, jnp.ones_like(lengths_S))
    hidden_S1D, cache = feed(cfg, Columns(CAPACITY), params, cache, ids_S[:, None], where, LOCAL)
    return hidden_S1D[:, 0], cache


def empty(cfg, rows=ROWS):
    return init_pages(cfg, Columns(CAPACITY), rows, jnp.float32)


def changed(cache, change):
    """The cache with change(k, v, column_bt) -> (k, v) applied to every segment; column_bt: its columns' numbers."""
    layers = []
    for layer in cache:
        start, pairs = 0, []
        for k, v in zip(*layer, strict=True):
            pairs.append(change(k, v, start + jnp.arange(k.shape[2] * BLOCK).reshape(-1, BLOCK)))
            start += k.shape[2] * BLOCK
        layers.append(ColumnPages(*zip(*pairs, strict=True)))
    return tuple(layers)


def test_prefill_extension_and_steps_equal_the_training_forward(cfg, decode_params, ids):
    lengths = np.asarray([3, 64, 65, 150])
    forward = partial(transformer.hidden, cfg, shards=LOCAL, remat="none", compute_dtype=jnp.float32)
    hidden = jax.jit(forward)(
        make_params(cfg), ids, np.broadcast_to(np.arange(200), ids.shape), np.full(ids.shape, 200)
    )
    first = lengths // 2
    cache = append(cfg, decode_params, empty(cfg), ids[:, :96], np.zeros(ROWS, np.int32), first)
    rest = np.zeros((ROWS, 96), np.int32)
    for row in range(ROWS):
        rest[row, : lengths[row] - first[row]] = ids[row, first[row] : lengths[row]]
    cache = append(cfg, decode_params, cache, rest, first, lengths - first)
    for n in range(3):
        at = lengths + n
        out, cache = step(cfg, decode_params, cache, ids[np.arange(ROWS), at], at)
        np.testing.assert_allclose(out, np.asarray(hidden)[np.arange(ROWS), at], atol=2e-5, rtol=0)


def test_columns_beyond_a_row_are_exact_zeros(cfg, decode_params, ids):
    """Attending to more columns, which hold stale values, changes no bit: the last row is there to make it so."""
    lengths = np.asarray([5, 60, 64, 100], np.int32)
    filled = append(cfg, decode_params, empty(cfg), ids[:, :128], np.zeros(ROWS, np.int32), lengths)

    def stale(k, v, column_bt):
        own_Sbt = column_bt < lengths[:, None, None]
        noise_k, noise_v = (jax.random.normal(jax.random.key(1), x.shape) for x in (k, v))
        return jnp.where(own_Sbt[:, None, :, None, :], k, noise_k), jnp.where(own_Sbt[:, None, :, :, None], v, noise_v)

    dirty, outs = changed(filled, stale), []
    for cache, longest in [(filled, 100), (dirty, 100), (dirty, 200), (dirty, CAPACITY - 1)]:
        out, _ = step(cfg, decode_params, cache, ids[:, 0], np.asarray([*lengths[:3], longest], np.int32))
        outs.append(np.asarray(out)[:3].tobytes())
    assert all(out == outs[0] for out in outs[1:])


def test_columns_before_a_window_are_exact_zeros(ids):
    """Values there change no bit, in a step and in an extension, wherever the window begins within its block."""
    cfg = like(MIXED, layer_windows=(20, 20))
    params = transformer.unstack_layers(cfg, make_params(cfg))
    lengths, counts = np.asarray([21, 84, 90, 150], np.int32), np.asarray([1, 5, 30, 40], np.int32)
    zeros = np.zeros(ROWS, np.int32)
    filled = append(cfg, params, empty(cfg), ids[:, :160], zeros, lengths)

    def stale(k, v, column_bt):
        unseen_Sbt = column_bt <= (lengths - 20)[:, None, None]
        return jnp.where(unseen_Sbt[:, None, :, None, :], 7.0, k), jnp.where(unseen_Sbt[:, None, :, :, None], -3.0, v)

    dirty = changed(filled, stale)
    assert any(not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(filled), jax.tree.leaves(dirty), strict=True))
    outs = []
    for cache in (filled, dirty):
        one, _ = step(cfg, params, cache, ids[:, 0], lengths)
        longer = append(cfg, params, cache, ids[:, :160], lengths, counts)
        two, _ = step(cfg, params, longer, ids[:, 1], lengths + counts)
        outs.append(np.asarray(one).tobytes() + np.asarray(two).tobytes())
    assert outs[0] == outs[1]


def test_blocks_before_every_window_are_not_read(ids):
    """If all rows begin past a block and a window, an extension skips that block (NaNs in it have no effect),
    and gives the same bits as beside a row that begins at 0, for which no block can be skipped.
    """
    cfg = like(MIXED, layer_windows=(20, 20))
    params = transformer.unstack_layers(cfg, make_params(cfg))
    starts, counts = np.asarray([100, 120, 130, 150], np.int32), np.asarray([40, 30, 64, 1], np.int32)
    filled = append(cfg, params, empty(cfg), ids[:, :160], np.zeros(ROWS, np.int32), starts)
    unread = changed(
        filled, lambda k, v, column_bt: tuple(x.at[:, :, 0].set(jnp.nan) if column_bt[0, 0] == 0 else x for x in (k, v))
    )
    beside_early = np.where(np.arange(ROWS) == 0, 0, starts).astype(np.int32)
    whole, skipping, beside = (
        jax.tree.map(np.asarray, append(cfg, params, cache, ids[:, :160], begin, counts))
        for cache, begin in ((filled, starts), (unread, starts), (filled, beside_early))
    )
    for layers in zip(filled, whole, skipping, beside, strict=True):
        for parts in zip(*layers, strict=True):  # keys, then values, by segment
            before, a, b, c = (np.concatenate(segments, axis=2) for segments in parts)
            assert not np.array_equal(before, a) and np.isfinite(a).all()
            assert a[:, :, 1:].tobytes() == b[:, :, 1:].tobytes()
            assert a[1:].tobytes() == c[1:].tobytes()


def test_rows_do_not_see_each_other(cfg, decode_params, ids):
    """The same row in every slot, beside short and long neighbours: the same keys and values, the same output."""
    count, start = 40, 30
    results = []
    for place in range(ROWS):
        for others in (0, 150):
            batch, counts = np.zeros((ROWS, 160), np.int32), np.full(ROWS, others, np.int32)
            batch[:, :others] = ids[:, 200 - others :][:, :others]
            batch[place, :], counts[place] = 0, start
            batch[place, :start] = ids[0, :start]
            cache = append(cfg, decode_params, empty(cfg), batch, np.zeros(ROWS, np.int32), counts)
            more = np.roll(ids[:, :64], place, axis=0)
            lengths = counts.copy()
            added = np.minimum(np.full(ROWS, count, np.int32), CAPACITY - lengths)
            more[place] = ids[1, :64]
            cache = append(cfg, decode_params, cache, more, lengths, added)
            out, _ = step(cfg, decode_params, cache, ids[:, 9] * 0 + 17, lengths + added)
            own = (np.arange(CAPACITY) < start + count).reshape(-1, BLOCK)
            k, v = (np.concatenate(segments, axis=2)[place] for segments in cache[1])
            results.append(
                (
                    np.asarray(out)[place].tobytes(),
                    np.where(own[:, None, :], k, 0).tobytes(),
                    np.where(own[:, :, None], v, 0).tobytes(),
                )
            )
    assert len(set(results)) == 1


def test_a_row_without_tokens_writes_nothing(cfg, decode_params, ids):
    cache = append(cfg, decode_params, empty(cfg), ids[:, :96], np.zeros(ROWS, np.int32), np.full(ROWS, 96, np.int32))
    before = jax.tree.map(np.asarray, cache)
    after = append(cfg, decode_params, cache, ids[:, :1], np.full(ROWS, 96, np.int32), np.zeros(ROWS, np.int32))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))


@pytest.mark.parametrize("capacity", [64, 128, 192, 320, 512, 576])
def test_a_page_holds_whole_blocks_in_segments(capacity):
    how = Columns(capacity - 7)
    page = how.empty(2, 1, 8, jnp.float32)
    counts = [keys.shape[2] for keys in page.k_PKbht]
    assert how.paging.length == capacity == sum(counts) * BLOCK and how.paging.by_slot
    assert [values.shape[2] for values in page.v_PKbth] == counts
    assert np.cumsum(counts).tolist() == list(widths(capacity // BLOCK))
    assert widths(8) == (2, 4, 8) and widths(9) == (8, 9) and widths(128) == (8, 32, 128)


def test_copies_of_a_pages_first_tokens():
    """One after another, of segments that hold some of the tokens; past the end nothing is copied."""
    how = Columns(512)
    pages = jax.tree.map(lambda x: jax.random.normal(jax.random.key(0), x.shape), how.empty(4, 2, 8, jnp.float32))
    copied = jax.jit(how.copy)(pages, *(jnp.asarray(x) for x in ([0, 1, 0, 0], [2, 3, 4, 4], [130, 40, 500, 0])))
    for before, after in zip(jax.tree.leaves(pages), jax.tree.leaves(copied), strict=True):
        np.testing.assert_array_equal(after[:2], before[:2])
    keys, new = (np.concatenate(one.k_PKbht, axis=2) for one in (pages, copied))
    np.testing.assert_array_equal(new[2, :, :3], keys[0, :, :3])
    np.testing.assert_array_equal(new[3, :, :1], keys[1, :, :1])
    np.testing.assert_array_equal(new[2:, :, 4:], keys[2:, :, 4:])
