"""Draws against numpy: the distribution, its truncation by top-k and top-p, and the reported log-prob."""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.truncation import passes
from scope_jax.rollouts import sampling
from scope_jax.rollouts.sampling import Sampling, sample

draw = jax.jit(sample, static_argnames="vocab")


def how(slots, temperature: Any = 1.0, top_k: Any = 0, top_p: Any = 1.0, tempered: Any = False, seed=0):
    def full(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype), (slots,)).copy()

    keys = np.random.default_rng(seed).integers(0, 2**32, (slots, 2), dtype=np.uint32)
    return Sampling(
        keys, full(temperature, np.float32), full(top_k, np.int32), full(top_p, np.float32), full(tempered, bool)
    )


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def kept(z, top_k, top_p):
    """The tokens that may be drawn, by sorting: the top_k most probable, then the fewest whose share reaches top_p."""
    order = np.argsort(-z)
    order = order[:top_k] if top_k else order
    p = softmax(z[order].astype(np.float64))
    before = np.cumsum(p) - p
    return set(order[before < top_p].tolist())


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 4, 1.0), (1.0, 0, 0.7)]
)
def test_frequencies(temperature, top_k, top_p):
    slots, vocab = 20_000, 11
    z = np.random.default_rng(3).normal(size=vocab).astype(np.float32) * 1.5
    tokens, _ = draw(np.tile(z, (slots, 1)), how(slots, temperature, top_k, top_p), np.arange(slots, dtype=np.int32))
    may = np.isin(np.arange(vocab), list(kept(z / temperature, top_k, top_p)))
    expected = np.where(may, softmax(z / temperature), 0)
    expected /= expected.sum()
    counts = np.bincount(np.asarray(tokens), minlength=vocab)
    assert not counts[~may].any()
    chi2 = np.sum((counts - slots * expected)[may] ** 2 / (slots * expected[may]))
    assert chi2 < 30  # at most 10 degrees of freedom: one in a thousand


@pytest.mark.parametrize("extra", [3, 4, 40], ids=["less", "a whole column", "more"])
def test_logits_of_no_token_are_never_drawn(extra):
    """Padding of the vocabulary, as sharded tables have it, changes no bit; 60 tokens lie in columns of 8."""
    z = np.random.default_rng(1).normal(size=(50, 60)).astype(np.float32)
    padded = np.concatenate([z, np.full((50, extra), 1e3, np.float32)], axis=1)
    settings = how(50, np.tile([1.0, 0.7, 0.0], 17)[:50], tempered=np.arange(50) % 2)
    index = np.arange(50, dtype=np.int32)
    for one, other in zip(draw(padded, settings, index, vocab=60), draw(z, settings, index), strict=True):
        np.testing.assert_array_equal(one, other)


def test_both_ways_to_take_a_column():
    x = jnp.asarray(np.random.default_rng(2).uniform(size=(6, 5, 8)), jnp.float32)
    column = jnp.asarray([0, 7, 3, 3, 1, 6])
    for take in (sampling._column, sampling._column_by_sum):
        np.testing.assert_array_equal(take(x, column), x[jnp.arange(6), :, column])


def test_truncation_is_exact():
    slots, vocab = 64, 300
    rng = np.random.default_rng(5)
    z = (rng.normal(size=(slots, vocab)) * 2).astype(np.float32)
    top_k = rng.integers(0, 12, slots)
    top_p = rng.choice([1.0, 0.9, 0.5, 0.1], slots)
    drawn = [set() for _ in range(slots)]
    for n in range(60):
        tokens, _ = draw(z, how(slots, 1.0, top_k, top_p), np.full(slots, n, np.int32))
        for slot, token in enumerate(np.asarray(tokens)):
            drawn[slot].add(int(token))
    for slot in range(slots):
        assert drawn[slot] <= kept(z[slot], top_k[slot], top_p[slot])
    assert any(drawn[slot] == kept(z[slot], top_k[slot], top_p[slot]) and len(drawn[slot]) > 1 for slot in range(slots))
    only = [slot for slot in range(slots) if top_k[slot] == 1]
    assert only and all(drawn[slot] == {int(z[slot].argmax())} for slot in only)


def test_equal_logits_are_kept_or_dropped_together():
    z = np.zeros((400, 5), np.float32)
    z[:, 4] = -20
    tokens, _ = draw(z, how(400, top_k=2), np.zeros(400, np.int32))
    assert set(np.asarray(tokens).tolist()) == {0, 1, 2, 3}


def test_a_slot_does_not_depend_on_its_neighbours():
    slots, vocab = 32, 1000
    z = (np.random.default_rng(7).normal(size=(slots, vocab)) * 3).astype(np.float32)
    plain, cut = how(slots), how(slots)
    cut.top_k_S[::2], cut.top_p_S[1::4], cut.temperature_S[3] = 3, 0.5, 0.0
    index = np.arange(slots, dtype=np.int32)
    one, other = draw(z, plain, index), draw(z, cut, index)
    same = (cut.top_k_S == 0) & (cut.top_p_S == 1) & (cut.temperature_S > 0)
    assert same.sum() > 5
    np.testing.assert_array_equal(np.asarray(one[0])[same], np.asarray(other[0])[same])
    assert np.asarray(one[1])[same].tobytes() == np.asarray(other[1])[same].tobytes()
    assert (np.asarray(one[0]) != np.asarray(other[0])).any()


@pytest.mark.parametrize("vocab", [7, 64, 4096, 5001])
def test_greedy_and_logprobs(vocab):
    slots = 12
    z = (np.random.default_rng(vocab).normal(size=(slots, vocab)) * 3).astype(np.float32)
    temperature = np.asarray([0.0, 0.5, 1.0, 2.0] * 3, np.float32)
    tempered = np.arange(slots) < 6
    tokens, logprobs = map(np.asarray, draw(z, how(slots, temperature, tempered=tempered), np.zeros(slots, np.int32)))
    greedy = temperature == 0
    np.testing.assert_array_equal(tokens[greedy], z[greedy].argmax(-1))
    by = np.where(tempered & ~greedy, temperature, 1.0)
    expected = np.log(softmax(z.astype(np.float64) / by[:, None]))[np.arange(slots), tokens]
    np.testing.assert_allclose(logprobs, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("temperature", [1e-5, 1e-8, 1e-20])
def test_a_low_temperature_is_nearly_greedy(temperature):
    """Logits divided by it are far apart, or overflow."""
    z = (np.random.default_rng(0).normal(size=(64, 300)) * 9).astype(np.float32)
    tokens, logprobs = map(np.asarray, draw(z, how(64, temperature, tempered=True), np.zeros(64, np.int32)))
    np.testing.assert_array_equal(tokens, z.argmax(-1))
    assert not logprobs.any()


def test_a_draw_is_a_function_of_key_and_index():
    z = np.zeros((3, 500), np.float32)
    setting = how(3)
    setting.keys_S2[:] = setting.keys_S2[0]
    first = np.asarray(draw(z, setting, np.asarray([4, 4, 5], np.int32))[0])
    assert first[0] == first[1] != first[2]


def plain_floor(mass_Src: jax.Array, top_k_S: jax.Array, top_p_S: jax.Array) -> jax.Array:
    """The highest floors themselves, by bisection to the end."""

    def highest(holds: Any, low_S: jax.Array) -> jax.Array:
        high_S = jnp.full_like(low_S, 0x3F800001)
        for _ in range(31):
            middle_S = low_S + (high_S - low_S) // 2
            true_S = holds(jax.lax.bitcast_convert_type(middle_S, jnp.float32)[:, None, None])
            low_S, high_S = jnp.where(true_S, middle_S, low_S), jnp.where(true_S, high_S, middle_S)
        return low_S

    def total(x_Src: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sum(x_Src, axis=1), axis=1)

    zero_S = jnp.zeros(len(mass_Src), jnp.int32)
    kth_S = highest(lambda floor: total((mass_Src >= floor).astype(jnp.int32)) >= top_k_S, zero_S)
    kth_S = jnp.where(top_k_S > 0, kth_S, 0)
    least = jax.lax.bitcast_convert_type(kth_S, jnp.float32)[:, None, None]
    share_S = top_p_S * total(jnp.where(mass_Src >= least, mass_Src, 0))
    low_S = highest(lambda floor: total(jnp.where(mass_Src >= floor, mass_Src, 0)) >= share_S, kth_S)
    return jax.lax.bitcast_convert_type(jnp.where(top_p_S < 1, low_S, kth_S), jnp.float32)


@pytest.mark.parametrize(
    "kind",
    ["broad", "peaked", "ties", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("flat", "one", "zeros"))],
)
def test_the_masses_kept_are_those_of_the_whole_bisection(kind):
    """It ends as soon as they are known, in whichever way the slots truncate; on a GPU after as many passes as find the
    floor itself."""
    slots, shape = 32, (50, 41)
    rng = np.random.default_rng(len(kind))
    z = rng.normal(size=(slots, *shape)) * {"broad": 3, "peaked": 9, "flat": 1e-4}.get(kind, 2)
    if kind == "ties":
        z = np.round(2 * z) / 2
    if kind == "one":
        z[:, 7, 5] += 60
    mass = np.exp(z - z.max((1, 2), keepdims=True)).astype(np.float32)
    if kind == "zeros":
        mass[rng.random(mass.shape) < 0.99] = 0
        mass[:, 0, 0] = 1

    def by_quarters(*given: Any) -> jax.Array:
        with mock.patch.object(sampling, "_highest", lambda *of, known: sampling._by_quarters(*of)):
            return sampling._floor(*given)

    floors = jax.jit(sampling._floor), jax.jit(plain_floor), jax.jit(by_quarters)
    for draws in range(20):
        top_k = rng.choice([0, 0, 1, 2, 20, 700, 2050, 10**6], size=slots).astype(np.int32)
        top_p = rng.choice([1, 1, 1e-6, 0.3, 0.9, 0.95, 0.999999], size=slots).astype(np.float32)
        top_k, top_p = (top_k * 0, top_p) if draws == 0 else (top_k, top_p * 0 + 1) if draws == 1 else (top_k, top_p)
        ours, plain, gpus = (np.asarray(floor(mass, top_k, top_p))[:, None, None] for floor in floors)
        assert np.array_equal((mass >= ours) & (mass > 0), (mass >= plain) & (mass > 0))
        assert np.array_equal((mass >= gpus) & (mass > 0), (mass >= plain) & (mass > 0))


@pytest.mark.slow
def test_passes_over_the_logits_are_few_and_only_for_what_a_slot_uses():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 20_000)).astype(np.float32) * 4
    greedy = np.asarray([0.0] * 7 + [1.0])
    assert passes(logits, how(8)) == 0
    assert passes(logits, how(8, temperature=0.0, top_k=5, top_p=0.5)) == 0
    assert passes(logits, how(8, temperature=greedy, top_k=[5] * 7 + [0], top_p=[0.5] * 7 + [1.0])) == 0
    k, p = passes(logits, how(8, top_k=20)), passes(logits, how(8, top_p=0.9))
    both = passes(logits, how(8, top_k=20, top_p=0.9))
    assert 0 < k < 25 and 0 < p <= 31 and k < both < 45
    assert passes(logits, how(8, top_k=[20, *[0] * 7], top_p=[1.0, *[1.0] * 7])) < 25
