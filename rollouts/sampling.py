"""Samples tokens on the device: temperature, top-k, top-p and a separate key for every slot.

A token is drawn by inverting the cumulative distribution at two levels (first the column of a [rows, columns]
arrangement of the vocabulary, then the row), with one uniform number each: less work than Gumbel noise for every token,
and two uniform numbers resolve probabilities that one float32 cannot. Every sum runs over one slot only, and a slot's
token is computed the same way whether or not another slot uses top-k or top-p.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

ONE_BITS = 0x3F800000  # float32 1.0 as an integer; nonnegative floats sort like their bit patterns
BISECTIONS = 31  # enough bisection steps to separate any two floats in [0, 1]


class Sampling(NamedTuple):
    """Sampling parameters of each slot. top_k 0 and top_p 1 are off, temperature 0 is greedy.

    The leaves are arrays, on the host or the device, or their shardings.
    """

    keys_S2: Any  # uint32, raw threefry key data
    temperature_S: Any  # float32
    top_k_S: Any  # int32
    top_p_S: Any  # float32
    tempered_S: Any  # bool: log-probs of the tempered distribution


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
    wide_SV = jnp.pad(logits_SV[:, : rows * columns], ((0, 0), (0, max(0, rows * columns - width))))
    logits_Src = jnp.where(ids_rc < vocab, wide_SV.reshape(slots, rows, columns), -jnp.inf)
    top_S = jnp.max(jnp.max(logits_Src, axis=1), axis=1)
    # Divided after the maximum is taken off, which a low temperature then keeps at 0. The barrier keeps XLA from
    # computing the exponentials again for each of the sums over them.
    z_Src = (logits_Src - top_S[:, None, None]) / temperature_S[:, None, None]
    mass_Src = lax.optimization_barrier(jnp.exp(z_Src))
    log_total_S = jnp.log(_total(mass_Src))

    cut = ((how.top_k_S > 0) | (how.top_p_S < 1)) & ~greedy_S
    floor_S = lax.cond(
        jnp.any(cut), lambda: _floor(mass_Src, how.top_k_S, how.top_p_S), lambda: jnp.zeros(slots, jnp.float32)
    )
    kept_Src = jnp.where(mass_Src >= floor_S[:, None, None], mass_Src, 0)
    u_S2 = uniforms(how.keys_S2, index_S)
    column_S = _invert(jnp.sum(kept_Src, axis=1), u_S2[:, 0])
    kept_Sr = lax.platform_dependent(kept_Src, column_S, tpu=_column_by_sum, default=_column)
    drawn_S = _invert(kept_Sr, u_S2[:, 1]) * columns + column_S

    def best() -> jax.Array:
        """The first of the most likely tokens."""
        return jnp.min(jnp.min(jnp.where(logits_Src == top_S[:, None, None], ids_rc, vocab - 1), axis=1), axis=1)

    best_S = lax.cond(jnp.any(greedy_S), best, lambda: jnp.zeros_like(drawn_S))
    token_S = jnp.where(greedy_S, best_S, drawn_S)

    def log_plain_total() -> jax.Array:
        return jnp.log(_total(jnp.exp(logits_Src - top_S[:, None, None])))

    behind_S = jnp.take_along_axis(logits_SV, token_S[:, None], axis=1)[:, 0] - top_S
    tempered_S = behind_S / temperature_S - log_total_S
    other_S = ~how.tempered_S & (temperature_S != 1)
    plain_S = behind_S - lax.cond(jnp.any(other_S), log_plain_total, lambda: jnp.zeros(slots, jnp.float32))
    return token_S, jnp.where(other_S, plain_S, tempered_S)


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


def _total(x_Src: jax.Array) -> jax.Array:
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
    """The smallest mass that can be drawn, 0 where neither top-k nor top-p is on.

    mass: exp(z − max z), so in [0, 1]. First the k-th largest mass, then the largest floor that keeps a share top_p of
    the remaining mass; both by bisection over bit patterns, without a sort. Equal masses are kept or dropped together.
    """

    def above(bits_S: jax.Array) -> jax.Array:
        return mass_Src >= lax.bitcast_convert_type(bits_S, jnp.float32)[:, None, None]

    def highest(holds, low_S: jax.Array) -> jax.Array:
        """The largest bit pattern for which `holds` is true; it is true at low_S, and false above the pattern of 1."""

        def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low_S, high_S = bounds
            middle_S = low_S + (high_S - low_S) // 2
            true_S = holds(middle_S)
            return jnp.where(true_S, middle_S, low_S), jnp.where(true_S, high_S, middle_S)

        return lax.fori_loop(0, BISECTIONS, halve, (low_S, jnp.full_like(low_S, ONE_BITS + 1)))[0]

    zero_S = jnp.zeros(mass_Src.shape[0], jnp.int32)
    kth_S = highest(lambda bits: _total(above(bits).astype(jnp.int32)) >= top_k_S, zero_S)
    kth_S = jnp.where(top_k_S > 0, kth_S, 0)
    share_S = top_p_S * _total(jnp.where(above(kth_S), mass_Src, 0))
    nucleus_S = highest(lambda bits: _total(jnp.where(above(bits), mass_Src, 0)) >= share_S, kth_S)
    floor_S = jnp.where(top_p_S < 1, nucleus_S, kth_S)
    return lax.bitcast_convert_type(floor_S, jnp.float32)
