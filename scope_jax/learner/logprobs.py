"""Log-probs of given tokens, and entropies, from hidden states, without materialising the logits of all positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from scope_jax.models.decoder.transformer import logits_of
from scope_jax.sharding.chips import LANES
from scope_jax.sharding.collectives import Shards

LOWEST = -1e30  # below any logit, and finite


def _sums(table_VD: jax.Array) -> Any:
    """Accumulation dtype: float32, or float64 for float64 weights."""
    return jnp.promote_types(table_VD.dtype, jnp.float32)


def vocabulary_block(vocab: int, positions: int, width: int, chunk: int) -> int:
    """Vocabulary entries per block, such that a block's logits and table rows together, [positions + width, block], are
    no larger than logits [chunk, vocab].

    A multiple of LANES and at least LANES, unless it is the whole vocabulary.
    """
    if chunk >= positions:
        return vocab
    largest = max(LANES, chunk * vocab // (positions + width) // LANES * LANES)
    even = math.ceil(vocab / math.ceil(vocab / largest) / LANES) * LANES  # same number of blocks, of nearly equal size
    return min(vocab, even)


def _over_blocks(table_VD: jax.Array, block: int, one: Callable[..., Any], carry: Any) -> Any:
    """The carry after one(start, words_cD, new_c, carry) for each block of vocabulary entries.

    All blocks have the same size, so the last one may overlap the previous one; new_c is 0 for entries that were
    already processed and 1 for all others. (A smaller last block would need a second program with its own temporaries.)
    """
    vocab = table_VD.shape[0]
    last = vocab - block

    def step(number: Any, carry: Any) -> Any:
        start = jnp.minimum(number * block, last)
        new_c = (jnp.arange(block) >= number * block - start).astype(_sums(table_VD))
        return one(start, lax.dynamic_slice_in_dim(table_VD, start, block), new_c, carry)

    return lax.fori_loop(0, math.ceil(vocab / block), step, carry)


def _logits(
    hidden_ND: jax.Array, words_cD: jax.Array, temperature: jax.Array, real: Any, softcap: float | None
) -> jax.Array:
    """Logits of one block of vocabulary entries, of which the first `real` are no padding (None: all)."""
    sums = _sums(words_cD)
    logits_Nc = logits_of(hidden_ND, words_cD, softcap, sums)
    logits_Nc /= temperature.astype(sums)[..., None]
    return logits_Nc if real is None else jnp.where(jnp.arange(words_cD.shape[0]) < real, logits_Nc, LOWEST)


def _real(vocab: int | None, table_VD: jax.Array, start: Any, shards: Shards) -> Any:
    """Entries of this device's rows of a padded table, from `start` on, that are no padding; None if there is none."""
    return None if vocab is None else vocab - shards.index * table_VD.shape[0] - start


def _forward(
    hidden_ND: jax.Array,
    table_VD: jax.Array,
    targets_N: jax.Array,
    temperature: jax.Array,
    chunk: int,
    shards: Shards,
    vocab: int | None,
    softcap: float | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(logp_N, entropy_N, log Σ_v exp logits); sums are relative to the largest logit so far."""
    local_N = targets_N - shards.index * table_VD.shape[0]

    def one(start: Any, words_cD: jax.Array, new_c: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top_N, total_N, moment_N, target_N = carry
        logits_Nc = _logits(hidden_ND, words_cD, temperature, _real(vocab, table_VD, start, shards), softcap)
        higher_N = jnp.maximum(top_N, jnp.max(logits_Nc, axis=-1))
        below_Nc = logits_Nc - higher_N[:, None]
        weight_Nc = new_c * jnp.exp(below_Nc)
        total_N, moment_N = _raised(top_N, total_N, moment_N, higher_N)
        place_N = local_N - start
        mine_N = (place_N >= 0) & (place_N < block)
        picked_N = jnp.take_along_axis(logits_Nc, jnp.where(mine_N, place_N, 0)[:, None], axis=-1)[:, 0]
        total_N += jnp.sum(weight_Nc, axis=-1)
        moment_N += jnp.sum(weight_Nc * below_Nc, axis=-1)
        return higher_N, total_N, moment_N, jnp.where(mine_N, picked_N, target_N)

    zeros_N = jnp.zeros(hidden_ND.shape[0], _sums(table_VD))
    block = vocabulary_block(table_VD.shape[0], hidden_ND.shape[0], hidden_ND.shape[1], chunk)
    found = _over_blocks(table_VD, block, one, (zeros_N + LOWEST, zeros_N, zeros_N, zeros_N))
    top_N, total_N, moment_N, target_N = found
    highest_N = shards.pmax(top_N)
    total_N, moment_N = (shards.psum(x_N) for x_N in _raised(top_N, total_N, moment_N, highest_N))
    normaliser_N = highest_N + jnp.log(total_N)
    return shards.psum(target_N) - normaliser_N, jnp.log(total_N) - moment_N / total_N, normaliser_N


def _raised(top_N: jax.Array, total_N: jax.Array, moment_N: jax.Array, higher_N: jax.Array) -> tuple[jax.Array, ...]:
    """Σ exp(l − top) and Σ (l − top) exp(l − top), rescaled to a higher top."""
    factor_N = jnp.exp(top_N - higher_N)
    return total_N * factor_N, (moment_N + (top_N - higher_N) * total_N) * factor_N


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7, 8))
def _logprobs(
    hidden_ND: jax.Array,
    table_VD: jax.Array,
    targets_N: jax.Array,
    temperature: jax.Array,
    chunk: int,
    shards: Shards,
    vocab: int | None,
    softcap: float | None,
    entropy_slope: bool,
) -> tuple[jax.Array, jax.Array]:
    return _forward(hidden_ND, table_VD, targets_N, temperature, chunk, shards, vocab, softcap)[:2]


def _save(hidden_ND, table_VD, targets_N, temperature, chunk, shards, vocab, softcap, entropy_slope):
    found = _forward(hidden_ND, table_VD, targets_N, temperature, chunk, shards, vocab, softcap)
    logp_N, entropy_N, normaliser_N = found
    return (logp_N, entropy_N), (hidden_ND, table_VD, targets_N, temperature, normaliser_N, entropy_N)


def _backward(chunk: int, shards: Shards, vocab, softcap, entropy_slope: bool, saved, cotangents):
    hidden_ND, table_VD, targets_N, temperature, normaliser_N, entropy_N = saved
    sums, local_N = _sums(table_VD), targets_N - shards.index * table_VD.shape[0]
    logp_slope_N, entropy_slope_N = ((cotangent_N / temperature).astype(sums) for cotangent_N in cotangents)

    def one(start: Any, words_cD: jax.Array, new_c: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        grad_ND, grad_VD = carry
        logits_Nc = _logits(hidden_ND, words_cD, temperature, _real(vocab, table_VD, start, shards), softcap)
        logp_Nc = logits_Nc - normaliser_N[:, None]
        probs_Nc = jnp.exp(logp_Nc)
        hit_Nc = jnp.arange(block)[None, :] == (local_N - start)[:, None]
        slope_Nc = jnp.where(hit_Nc, 1.0 - probs_Nc, -probs_Nc) * logp_slope_N[:, None]
        if entropy_slope:
            slope_Nc -= probs_Nc * (logp_Nc + entropy_N[:, None]) * entropy_slope_N[:, None]
        if softcap is not None:  # c tanh(x / c) has the slope 1 − tanh²(x / c); a padded logit has none of its own
            slope_Nc *= 1 - jnp.square(jnp.maximum(logits_Nc * temperature.astype(sums)[..., None], -softcap) / softcap)
        slope_Nc = (slope_Nc * new_c).astype(table_VD.dtype)
        grad_ND += lax.dot_general(slope_Nc, words_cD, (((1,), (0,)), ((), ())), preferred_element_type=sums)
        grad_cD = lax.dot_general(slope_Nc, hidden_ND, (((0,), (0,)), ((), ())), preferred_element_type=sums)
        # An entry that was already processed adds zero.
        grad_cD = lax.dynamic_slice_in_dim(grad_VD, start, block) + grad_cD.astype(table_VD.dtype)
        return grad_ND, lax.dynamic_update_slice_in_dim(grad_VD, grad_cD, start, 0)

    block = vocabulary_block(table_VD.shape[0], hidden_ND.shape[0], hidden_ND.shape[1], chunk)
    grad_ND, grad_VD = _over_blocks(table_VD, block, one, (jnp.zeros(hidden_ND.shape, sums), jnp.zeros_like(table_VD)))
    # Each device of a tensor group has the contribution of its part of the vocabulary; hidden states need the sum.
    grad_ND = grad_ND if shards.sequence else shards.psum(grad_ND)
    return grad_ND.astype(hidden_ND.dtype), grad_VD, None, jnp.zeros_like(temperature)


_logprobs.defvjp(_save, _backward)


def token_logprobs(
    hidden_ND: Float[Array, "N D"],
    table_VD: Float[Array, "V D"],
    targets_N: Int[Array, " N"],
    temperature: Float[Array, ""] | Float[Array, " N"],
    chunk: int,
    shards: Shards,
    vocab: int | None = None,
    softcap: float | None = None,
) -> Float[Array, " N"]:
    """log softmax(logits / temperature) at the targets, float32 (float64 for weights in float64), with the logits of
    `transformer.logits_of`.

    temperature: one for all positions, or one per position. vocab: the rows of the whole table from this one on are
    padding and get probability 0; None if there is no padding. softcap: `ModelConfig.final_softcap`.

    Processes the vocabulary in blocks in the forward and the backward pass, all positions at a time, so that at most as
    many logits exist as `chunk` positions have over the whole vocabulary (`vocabulary_block`; at least a block of
    LANES entries). Sums are float32 for inputs of lower precision, and relative to the largest logit so far (Milakov &
    Gimelshein 2018). A block's gradient of the table is one product, written once in the table's dtype, without a
    float32 copy of the table. With a tensor group, table_VD is this device's rows of the vocabulary and hidden_ND is
    equal on the whole group; the normaliser and the gradient of hidden_ND are summed over it, once for all blocks (no
    `shards.enter` around the call). With sequence parallelism that gradient is left to `transformer.hidden` to sum.
    Gradient, with p the softmax: ∂logp/∂logits = (onehot(target) − p) / temperature; none with respect to the
    temperature.
    """
    both: Any = _logprobs(hidden_ND, table_VD, targets_N, temperature, chunk, shards, vocab, softcap, False)
    return both[0]


def token_logprobs_and_entropy(
    hidden_ND: Float[Array, "N D"],
    table_VD: Float[Array, "V D"],
    targets_N: Int[Array, " N"],
    temperature: Float[Array, ""] | Float[Array, " N"],
    chunk: int,
    shards: Shards,
    vocab: int | None = None,
    softcap: float | None = None,
    *,
    entropy_slope: bool,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """`token_logprobs`, and the entropy −Σ_v p_v log p_v of each position's whole distribution, in nats.

    entropy_slope: whether the entropy is differentiable, ∂H/∂logits_v = −p_v (log p_v + H) / temperature; if not, it is
    only a metric and costs nothing in the backward pass.
    """
    both: Any = _logprobs(hidden_ND, table_VD, targets_N, temperature, chunk, shards, vocab, softcap, entropy_slope)
    logp_N, entropy_N = both
    return logp_N, entropy_N if entropy_slope else lax.stop_gradient(entropy_N)
