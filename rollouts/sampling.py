"""Samples tokens on the device: temperature, top-k, top-p and a separate key for every slot.

A token is drawn by inverting the cumulative distribution at two levels (first the column of a [rows, columns]
arrangement of the vocabulary, then the row), with one uniform number each: less work than Gumbel noise for every token,
and two uniform numbers resolve probabilities that one float32 cannot. Every sum runs over one slot only, and a slot's
token is computed the same way whether or not another slot uses top-k or top-p.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

ONE_BITS = 0x3F800000  # float32 1.0 as an integer; nonnegative floats sort like their bit patterns
BISECTIONS = 30  # enough bisection steps to separate any two floats in [0, 1]
QUARTERINGS = 15  # the same of steps that leave a quarter
EPSILON = 2.0**-24  # relative error of a float32 sum of two numbers, at most

Measure = Callable[[jax.Array], jax.Array]
Known = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
Part = Callable[[], jax.Array]


class Sampling(NamedTuple):
    """Sampling parameters of each slot. top_k 0 and top_p 1 are off, temperature 0 is greedy.

    The leaves are arrays, on the host or the device, or their shardings.
    """

    keys_S2: Any
    """uint32, raw threefry key data."""
    temperature_S: Any
    """float32"""
    top_k_S: Any
    """int32"""
    top_p_S: Any
    """float32"""
    tempered_S: Any
    """bool: log-probs of the tempered distribution."""


def init_sampling(slots: int) -> Sampling:
    """Greedy sampling in every slot."""
    return Sampling(
        jnp.zeros((slots, 2), jnp.uint32),
        jnp.zeros(slots, jnp.float32),
        jnp.zeros(slots, jnp.int32),
        jnp.ones(slots, jnp.float32),
        jnp.zeros(slots, bool),
    )


def uniforms(keys_S2: Array, index_S: Int[Array, " S"]) -> Float[Array, "S 2"]:
    """Two numbers in [0, 1) for token `index` of each slot: a function of the slot's key and the index alone."""

    def draw(key: jax.Array, index: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), index), (2,))

    return jax.vmap(draw)(keys_S2, index_S)


def sample(
    logits_SV: Float[Array, "S V"], how: Sampling, index_S: Int[Array, " S"], vocab: int | None = None
) -> tuple[Int[Array, " S"], Float[Array, " S"]]:
    """(token, its log-prob) of each slot; logits are float32, index is the token's position in its episode. vocab: the
    logits from here on belong to no token; None: all do.

    The log-prob is log softmax(logits)[token], or log softmax(logits / temperature)[token] where tempered_S (greedy
    slots count as temperature 1); top-k and top-p affect the draw, not the log-prob.
    """
    slots, width = logits_SV.shape
    vocab = width if vocab is None else vocab
    greedy_S = how.temperature_S == 0
    temperature_S = jnp.where(greedy_S, 1.0, how.temperature_S)
    columns = 2 ** round(math.log2(vocab) / 2)
    rows = -(-vocab // columns)
    ids_rc = jnp.arange(rows * columns).reshape(rows, columns)

    def arranged() -> jax.Array:
        """The logits by row and column, of no token -inf."""
        wide_SV = jnp.pad(logits_SV[:, : rows * columns], ((0, 0), (0, max(0, rows * columns - width))))
        return jnp.where(ids_rc < vocab, wide_SV.reshape(slots, rows, columns), -jnp.inf)

    logits_Src = arranged()
    top_S = jnp.max(jnp.max(logits_Src, axis=1), axis=1)

    def masses(logits_Src: jax.Array) -> jax.Array:
        # Divided after the maximum is taken off, which a low temperature then keeps at 0.
        return jnp.exp((logits_Src - top_S[:, None, None]) / temperature_S[:, None, None])

    # Exponentials are computed once; but a GPU computes them again sooner than it writes and reads them.
    mass_Src = lax.platform_dependent(masses(logits_Src), cuda=lambda x: x, default=lax.optimization_barrier)
    # Behind the barrier these sums and those of what is kept are one pass over the logits.
    sums_Sc = lax.platform_dependent(jnp.sum(mass_Src, axis=1), cuda=lax.optimization_barrier, default=lambda x: x)
    log_total_S = jnp.log(jnp.sum(sums_Sc, axis=1))

    other_S = ~how.tempered_S & (temperature_S != 1)
    filters = jnp.where(greedy_S, 0, how.top_k_S), jnp.where(greedy_S, 1, how.top_p_S)

    def again() -> jax.Array:
        """The arranged logits inside a condition: a TPU would move them again."""
        return lax.platform_dependent(logits_Src, tpu=lambda x: x, default=lambda _: arranged())

    def first_best() -> jax.Array:
        """The first of the most likely tokens."""
        return jnp.min(jnp.min(jnp.where(again() == top_S[:, None, None], ids_rc, vocab - 1), axis=1), axis=1)

    def log_plain_total() -> jax.Array:
        return jnp.log(total(jnp.exp(again() - top_S[:, None, None])))

    def floor() -> jax.Array:
        kept_Src = lax.platform_dependent(mass_Src, cuda=lambda _: masses(arranged()), default=lambda x: x)
        return _floor(kept_Src, *filters)

    needs = (filters[0] > 0) | (filters[1] < 1), greedy_S, other_S
    floor_S, best_S, log_plain_S = _where_needed(needs, floor, first_best, log_plain_total)
    kept_Src = jnp.where(mass_Src >= floor_S[:, None, None], mass_Src, 0)
    token_S = jnp.where(greedy_S, best_S, _drawn(kept_Src, uniforms(how.keys_S2, index_S)))
    behind_S = jnp.take_along_axis(logits_SV, token_S[:, None], axis=1)[:, 0] - top_S
    tempered_S = behind_S / temperature_S - log_total_S
    plain_S = behind_S - log_plain_S
    return token_S, jnp.where(other_S, plain_S, tempered_S)


def _drawn(mass_Src: jax.Array, u_S2: jax.Array) -> jax.Array:
    """A token of each slot by its two numbers: the column, then the row in it."""
    column_S = _invert(jnp.sum(mass_Src, axis=1), u_S2[:, 0])
    mass_Sr = lax.platform_dependent(mass_Src, column_S, tpu=_column_by_sum, default=_column)
    return _invert(mass_Sr, u_S2[:, 1]) * mass_Src.shape[2] + column_S


def _where_needed(
    needs: tuple[jax.Array, ...], floor: Part, first_best: Part, log_plain_total: Part
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(floor, most likely token, log of the total at temperature 1) of the slots, zeros where no slot needs one. One
    condition is for all three: on a GPU each is a wait of the host for the device, in every token."""
    filtered_S, greedy_S, other_S = needs
    zeros_S, nobody_S = jnp.zeros(len(greedy_S), jnp.float32), jnp.zeros(len(greedy_S), jnp.int32)

    def each() -> tuple[jax.Array, jax.Array, jax.Array]:
        best_S = lax.cond(jnp.any(greedy_S), first_best, lambda: nobody_S)
        return floor(), best_S, lax.cond(jnp.any(other_S), log_plain_total, lambda: zeros_S)

    return lax.cond(jnp.any(filtered_S | greedy_S | other_S), each, lambda: (zeros_S, nobody_S, zeros_S))


def draw(
    logits_SV: Float[Array, "S V"],
    how: Sampling,
    index_S: Int[Array, " S"],
    vocab: int | None = None,
    *,
    entropies: bool,
) -> tuple[Int[Array, " S"], Float[Array, " S"], Float[Array, " S"] | None]:
    """`sample`, and the `entropy` of each slot, or None if `entropies` is False."""
    return *sample(logits_SV, how, index_S, vocab), entropy(logits_SV[:, :vocab], how) if entropies else None


def _column(x_Src: jax.Array, column_S: jax.Array) -> jax.Array:
    """One column of each slot, [S, r]."""
    return jnp.take_along_axis(x_Src, column_S[:, None, None], axis=2)[:, :, 0]


def _column_by_sum(x_Src: jax.Array, column_S: jax.Array) -> jax.Array:
    """The same: a TPU adds zeros faster than it changes the layout for a gather."""
    return jnp.sum(jnp.where(jnp.arange(x_Src.shape[2]) == column_S[:, None, None], x_Src, 0), axis=2)


def total(x_Src: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sum(x_Src, axis=1), axis=1)


def entropy(logits_SV: Float[Array, "S V"], how: Sampling) -> Float[Array, " S"]:
    """H = −Σ p log p of each slot in nats, of the distribution p that `sample` reports log-probs of."""
    tempered_S = how.tempered_S & (how.temperature_S > 0)
    behind_SV = logits_SV - jnp.max(logits_SV, axis=1, keepdims=True)
    logp_SV = jax.nn.log_softmax(behind_SV / jnp.where(tempered_S, how.temperature_S, 1.0)[:, None])
    return -jnp.sum(jnp.exp(logp_SV) * jnp.maximum(logp_SV, jnp.finfo(jnp.float32).min), axis=1)


def _invert(mass_SN: Float[Array, "S N"], u_S: Float[Array, " S"]) -> Int[Array, " S"]:
    """The first index whose cumulative mass exceeds u · total; never an index with zero mass, however sums round."""
    size = mass_SN.shape[1]
    cumulative_SN = jnp.cumsum(mass_SN, axis=1)
    target_S = u_S * cumulative_SN[:, -1]
    index_N = jnp.arange(size)
    first_S = jnp.min(jnp.where((mass_SN > 0) & (cumulative_SN > target_S[:, None]), index_N, size), axis=1)
    last_S = jnp.max(jnp.where(mass_SN > 0, index_N, 0), axis=1)
    return jnp.minimum(first_S, last_S)


def _floor(mass_Src: jax.Array, top_k_S: jax.Array, top_p_S: jax.Array) -> jax.Array:
    """A floor that keeps the masses that can be drawn, 0 where neither top-k nor top-p is on.

    mass: exp(z − max z), so in [0, 1]. First the k masses that are largest, if a slot has top-k, then the fewest that
    make up a share top_p of these, if one has top-p; both by bisection over bit patterns, without a sort. Equal masses
    are kept or dropped together.
    """

    def above(bits_S: jax.Array) -> jax.Array:
        return mass_Src >= lax.bitcast_convert_type(bits_S, jnp.float32)[:, None, None]

    def count(bits_S: jax.Array) -> jax.Array:
        return total(above(bits_S).astype(jnp.int32))

    def weight(bits_S: jax.Array) -> jax.Array:
        return total(jnp.where(above(bits_S), mass_Src, 0))

    zero_S = jnp.zeros(mass_Src.shape[0], jnp.int32)

    def by_k() -> jax.Array:
        on_S = top_k_S > 0
        all_S = jnp.full_like(zero_S, mass_Src[0].size)
        low_S = _highest(count, top_k_S, zero_S, all_S, known=lambda low_S, at_S, beyond_S: ~on_S | (at_S == top_k_S))
        return jnp.where(on_S, low_S, 0)

    kth_S = lax.cond(jnp.any(top_k_S > 0), by_k, lambda: zero_S)

    def by_p() -> jax.Array:
        on_S, whole_S = top_p_S < 1, weight(kth_S)
        error_S = 2 * sum(mass_Src.shape[1:]) * EPSILON * whole_S  # of a difference of two sums, at most

        def known(low_S: jax.Array, at_S: jax.Array, beyond_S: jax.Array) -> jax.Array:
            """Two masses from low on would add more to the sum."""
            return ~on_S | (at_S - beyond_S + error_S < 2 * lax.bitcast_convert_type(low_S, jnp.float32))

        return jnp.where(on_S, _highest(weight, top_p_S * whole_S, kth_S, whole_S, known=known), kth_S)

    floor_S = lax.cond(jnp.any(top_p_S < 1), by_p, lambda: kth_S)
    return lax.bitcast_convert_type(floor_S, jnp.float32)


def _highest(measure: Measure, wanted_S: jax.Array, low_S: jax.Array, at_S: jax.Array, *, known: Known) -> jax.Array:
    """The highest bit pattern whose measure is `wanted` or more, or a lower one with no other mass in between.

    measure: a sum over the masses above a pattern; at low it is at_S, wanted or more, and above the pattern of 1 it is
    0. known(low, measure at low, measure at high): whether the masses above are those above the highest pattern; once
    this is so for all slots, the bisection ends. On a GPU the host would wait for that in each step.
    """
    return lax.platform_dependent(
        *(wanted_S, low_S, at_S),
        cuda=lambda *given: _by_quarters(measure, *given),
        default=lambda *given: _by_halves(measure, *given, known=known),
    )


def _by_quarters(measure: Measure, wanted_S: jax.Array, low_S: jax.Array, at_S: jax.Array) -> jax.Array:
    """The highest pattern itself, in QUARTERINGS passes over the masses, three sums in each."""
    del at_S

    def quarter(_: Any, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low_S, high_S = bounds
        step_S = (high_S - low_S + 3) // 4
        points = [low_S + n * step_S for n in (1, 2, 3)]
        for point_S, enough_S in [(point_S, measure(point_S) >= wanted_S) for point_S in points]:
            low_S = jnp.where(enough_S, point_S, low_S)
        return low_S, jnp.minimum(low_S + step_S, high_S)

    return lax.fori_loop(0, QUARTERINGS, quarter, (low_S, jnp.full_like(low_S, ONE_BITS + 1)))[0]


def _by_halves(measure: Measure, wanted_S: jax.Array, low_S: jax.Array, at_S: jax.Array, known: Known) -> jax.Array:
    """Bisection that ends early."""

    def undecided(carry: tuple[jax.Array, ...]) -> jax.Array:
        step, low_S, _, at_S, beyond_S = carry
        return (step < BISECTIONS) & ~jnp.all(known(low_S, at_S, beyond_S))

    def halve(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        step, low_S, high_S, at_S, beyond_S = carry
        middle_S = low_S + (high_S - low_S) // 2
        there_S = measure(middle_S)
        enough_S = there_S >= wanted_S
        low_S, high_S = jnp.where(enough_S, middle_S, low_S), jnp.where(enough_S, high_S, middle_S)
        return step + 1, low_S, high_S, jnp.where(enough_S, there_S, at_S), jnp.where(enough_S, beyond_S, there_S)

    begin = jnp.int32(0), low_S, jnp.full_like(low_S, ONE_BITS + 1), at_S, jnp.zeros_like(at_S)
    return lax.while_loop(undecided, halve, begin)[1]
