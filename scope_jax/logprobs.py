"""Log-probs of given tokens, and entropies, from hidden states, without ever holding the logits of all positions."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sharding.collectives import Shards


def _logits(hidden_cD: jax.Array, table_VD: jax.Array, temperature: jax.Array) -> jax.Array:
    """Logits of one chunk, of this device's part of the vocabulary."""
    sums = _sums(table_VD)
    logits_cV = lax.dot_general(hidden_cD, table_VD, (((1,), (1,)), ((), ())), preferred_element_type=sums)
    return logits_cV / temperature.astype(sums)


def _sums(table_VD: jax.Array) -> Any:
    """What is summed in: float32, or float64 where the weights are."""
    return jnp.promote_types(table_VD.dtype, jnp.float32)


def _chunks(x_N: jax.Array, chunk: int) -> jax.Array:
    """[N, …] as [chunks, chunk, …], the last one filled up with zeros."""
    missing = -x_N.shape[0] % chunk
    padded = jnp.pad(x_N, ((0, missing),) + ((0, 0),) * (x_N.ndim - 1))
    return padded.reshape(-1, chunk, *x_N.shape[1:])


def _forward(
    hidden_ND: jax.Array, table_VD: jax.Array, targets_N: jax.Array, temperature: jax.Array, chunk: int, shards: Shards
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(logp_N, entropy_N, log Σ_v exp logits)."""
    chunk = min(chunk, hidden_ND.shape[0])

    def one(inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        hidden_cD, targets_c = inputs
        logits_cV = _logits(hidden_cD, table_VD, temperature)
        top_c = shards.pmax(jnp.max(logits_cV, axis=-1))
        below_cV = logits_cV - top_c[:, None]
        weight_cV = jnp.exp(below_cV)
        total_c = shards.psum(jnp.sum(weight_cV, axis=-1))
        mean_c = shards.psum(jnp.sum(weight_cV * below_cV, axis=-1)) / total_c
        local_c = targets_c - shards.index * table_VD.shape[0]
        mine_c = (local_c >= 0) & (local_c < table_VD.shape[0])
        picked_c = jnp.take_along_axis(logits_cV, jnp.where(mine_c, local_c, 0)[:, None], axis=-1)[:, 0]
        target_c = shards.psum(jnp.where(mine_c, picked_c, 0.0))
        normaliser_c = top_c + jnp.log(total_c)
        return target_c - normaliser_c, jnp.log(total_c) - mean_c, normaliser_c

    found = lax.map(one, (_chunks(hidden_ND, chunk), _chunks(targets_N, chunk)))
    logp_N, entropy_N, normaliser_N = (x.reshape(-1)[: hidden_ND.shape[0]] for x in found)
    return logp_N, entropy_N, normaliser_N


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _logprobs(
    hidden_ND: jax.Array,
    table_VD: jax.Array,
    targets_N: jax.Array,
    temperature: jax.Array,
    chunk: int,
    shards: Shards,
    entropy_slope: bool,
) -> tuple[jax.Array, jax.Array]:
    return _forward(hidden_ND, table_VD, targets_N, temperature, chunk, shards)[:2]


def _save(hidden_ND, table_VD, targets_N, temperature, chunk: int, shards: Shards, entropy_slope: bool):
    logp_N, entropy_N, normaliser_N = _forward(hidden_ND, table_VD, targets_N, temperature, chunk, shards)
    return (logp_N, entropy_N), (hidden_ND, table_VD, targets_N, temperature, normaliser_N, entropy_N)


def _backward(chunk: int, shards: Shards, entropy_slope: bool, saved, cotangents: tuple[jax.Array, jax.Array]):
    hidden_ND, table_VD, targets_N, temperature, normaliser_N, entropy_N = saved
    count, sums = hidden_ND.shape[0], _sums(table_VD)
    chunk = min(chunk, count)
    ids_V = jnp.arange(table_VD.shape[0]) + shards.index * table_VD.shape[0]

    def one(grad_VD: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        hidden_cD, targets_c, normaliser_c, entropy_c, logp_slope_c, entropy_slope_c = inputs
        logp_cV = _logits(hidden_cD, table_VD, temperature) - normaliser_c[:, None]
        probs_cV = jnp.exp(logp_cV)
        slope_cV = jnp.where(ids_V[None, :] == targets_c[:, None], 1.0 - probs_cV, -probs_cV) * logp_slope_c[:, None]
        if entropy_slope:
            slope_cV -= probs_cV * (logp_cV + entropy_c[:, None]) * entropy_slope_c[:, None]
        slope_cV = slope_cV.astype(table_VD.dtype)
        grad_cD = lax.dot_general(slope_cV, table_VD, (((1,), (0,)), ((), ())), preferred_element_type=sums)
        grad_VD += lax.dot_general(slope_cV, hidden_cD, (((0,), (0,)), ((), ())), preferred_element_type=sums)
        return grad_VD, grad_cD

    slopes = tuple((cotangent_N / temperature).astype(sums) for cotangent_N in cotangents)
    chunked = tuple(_chunks(x, chunk) for x in (hidden_ND, targets_N, normaliser_N, entropy_N, *slopes))
    grad_VD, grad = lax.scan(one, jnp.zeros(table_VD.shape, sums), chunked)
    # Each device of a tensor group knows the part of its own vocabulary; the hidden states need the sum.
    grad_ND = shards.psum(grad.reshape(-1, hidden_ND.shape[1])[:count])
    return grad_ND.astype(hidden_ND.dtype), grad_VD.astype(table_VD.dtype), None, jnp.zeros_like(temperature)


_logprobs.defvjp(_save, _backward)


def token_logprobs(
    hidden_ND: Float[Array, "N D"],
    table_VD: Float[Array, "V D"],
    targets_N: Int[Array, " N"],
    temperature: Float[Array, ""],
    chunk: int,
    shards: Shards,
) -> Float[Array, " N"]:
    """log softmax(hidden · tableᵀ / temperature) at the targets, float32 (float64 for weights in float64).

    Works through `chunk` positions at a time in both directions, so that at most [chunk, V] logits exist; sums are
    float32 for inputs of less. With a tensor group, table_VD is this device's rows of the vocabulary and hidden_ND
    is equal on the whole group; the normaliser and the gradient of hidden_ND are summed over it (no `shards.enter`
    around the call). Gradient, with p the softmax: ∂logp/∂logits = (onehot(target) − p) / temperature; none to the
    temperature.
    """
    return _logprobs(hidden_ND, table_VD, targets_N, temperature, chunk, shards, False)[0]


def token_logprobs_and_entropy(
    hidden_ND: Float[Array, "N D"],
    table_VD: Float[Array, "V D"],
    targets_N: Int[Array, " N"],
    temperature: Float[Array, ""],
    chunk: int,
    shards: Shards,
    *,
    entropy_slope: bool,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """`token_logprobs`, and the entropy −Σ_v p_v log p_v of each position's whole distribution, in nats.

    entropy_slope: whether the entropy is differentiated, ∂H/∂logits_v = −p_v (log p_v + H) / temperature; without it
    the entropy is a measurement, and the backward pass does no work for it.
    """
    logp_N, entropy_N = _logprobs(hidden_ND, table_VD, targets_N, temperature, chunk, shards, entropy_slope)
    return logp_N, entropy_N if entropy_slope else lax.stop_gradient(entropy_N)
