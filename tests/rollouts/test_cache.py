"""The cache against the training forward, and the exactness that batching rests on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import cache as kv
from models import transformer
from sharding.collectives import LOCAL
from tests.rollouts.world import CFG, make_params

ROWS, CAPACITY = 4, 256


@pytest.fixture(scope="module")
def decode_params():
    return transformer.unstack_layers(make_params())


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(2).integers(0, 256, (ROWS, 200)).astype(np.int32)


append = jax.jit(lambda params, cache, ids, starts, counts: kv.append(CFG, params, cache, ids, starts, counts))


@jax.jit
def step(params, cache, ids, lengths):
    return kv.step(CFG, params, cache, ids, lengths)


def empty(rows=ROWS):
    return kv.init_cache(CFG, rows, CAPACITY, jnp.float32)


def test_prefill_extension_and_steps_equal_the_training_forward(decode_params, ids):
    lengths = np.asarray([3, 64, 65, 150])
    hidden = transformer.hidden(
        CFG,
        make_params(),
        jnp.asarray(ids),
        jnp.broadcast_to(jnp.arange(200), ids.shape),
        jnp.ones_like(ids),
        shards=LOCAL,
        remat="none",
        compute_dtype=jnp.float32,
    )
    first = lengths // 2
    cache = append(decode_params, empty(), ids[:, :96], np.zeros(ROWS, np.int32), first)
    rest = np.zeros((ROWS, 96), np.int32)
    for row in range(ROWS):
        rest[row, : lengths[row] - first[row]] = ids[row, first[row] : lengths[row]]
    cache = append(decode_params, cache, rest, first, lengths - first)
    for n in range(3):
        at = lengths + n
        out, cache = step(decode_params, cache, ids[np.arange(ROWS), at], at)
        np.testing.assert_allclose(out, np.asarray(hidden)[np.arange(ROWS), at], atol=2e-5, rtol=0)


def test_columns_beyond_a_row_are_exact_zeros(decode_params, ids):
    """More columns to attend, with whatever was left in them, change no bit."""
    lengths = np.asarray([5, 60, 64, 100], np.int32)
    filled = append(decode_params, empty(), ids[:, :128], np.zeros(ROWS, np.int32), lengths)
    noise = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape), empty())
    column_bt = jnp.arange(CAPACITY).reshape(-1, kv.BLOCK)
    own_Sbt = column_bt < lengths[:, None, None]
    dirty = tuple(
        kv.LayerCache(jnp.where(own_Sbt[:, None, :, None, :], k, nk), jnp.where(own_Sbt[:, None, :, :, None], v, nv))
        for (k, v), (nk, nv) in zip(filled, noise, strict=True)
    )
    outs = [
        np.asarray(step(decode_params, kv.view(cache, columns), ids[:, 0], lengths)[0])
        for cache, columns in [(filled, 128), (dirty, 128), (dirty, 192), (dirty, 256)]
    ]
    assert all(out.tobytes() == outs[0].tobytes() for out in outs[1:])


def test_rows_do_not_see_each_other(decode_params, ids):
    """The same row in every place, beside short and long neighbours: the same keys and values, the same output."""
    count, start = 40, 30
    results = []
    for place in range(ROWS):
        for others in (0, 150):
            batch, counts = np.zeros((ROWS, 160), np.int32), np.full(ROWS, others, np.int32)
            batch[:, :others] = ids[:, 200 - others :][:, :others]
            batch[place, :], counts[place] = 0, start
            batch[place, :start] = ids[0, :start]
            cache = append(decode_params, empty(), batch, np.zeros(ROWS, np.int32), counts)
            more = np.roll(ids[:, :64], place, axis=0)
            lengths = counts.copy()
            added = np.minimum(np.full(ROWS, count, np.int32), CAPACITY - lengths)
            more[place] = ids[1, :64]
            cache = append(decode_params, cache, more, lengths, added)
            out, _ = step(decode_params, cache, ids[:, 9] * 0 + 17, lengths + added)
            own = (np.arange(CAPACITY) < start + count).reshape(-1, kv.BLOCK)
            k, v = (np.asarray(x)[place] for x in cache[1])
            results.append(
                (
                    np.asarray(out)[place].tobytes(),
                    np.where(own[:, None, :], k, 0).tobytes(),
                    np.where(own[:, :, None], v, 0).tobytes(),
                )
            )
    assert len(set(results)) == 1


def test_a_full_row_writes_nothing(decode_params, ids):
    cache = append(decode_params, empty(), ids[:, :96], np.zeros(ROWS, np.int32), np.full(ROWS, 96, np.int32))
    before = jax.tree.map(np.asarray, cache)
    _, after = step(decode_params, cache, ids[:, 0], np.full(ROWS, CAPACITY, np.int32))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))


def test_an_odd_capacity_is_refused():
    with pytest.raises(ValueError, match="take 128"):
        kv.init_cache(CFG, 2, 100, jnp.float32)
