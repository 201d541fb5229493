"""Log-probs of given tokens from hidden states, without ever holding the logits of all positions."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sharding.collectives import Shards


def _logits(hidden_cD: jax.Array, table_VD: jax.Array, temperature: jax.Array) -> jax.Array:
    """float32 logits of one chunk, of this device's part of the vocabulary."""
    logits_cV = lax.dot_general(hidden_cD, table_VD, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return logits_cV / temperature


def _chunks(x_N: jax.Array, chunk: int) -> jax.Array:
    """[N, …] as [chunks, chunk, …], the last one filled up with zeros."""
    missing = -x_N.shape[0] % chunk
    padded = jnp.pad(x_N, ((0, missing),) + ((0, 0),) * (x_N.ndim - 1))
    return padded.reshape(-1, chunk, *x_N.shape[1:])


def _forward(
    hidden_ND: jax.Array, table_VD: jax.Array, targets_N: jax.Array, temperature: jax.Array, chunk: int, shards: Shards
) -> tuple[jax.Array, jax.Array]:
    """(logp_N, log Σ_v exp logits)."""
    chunk = min(chunk, hidden_ND.shape[0])

    def one(inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        hidden_cD, targets_c = inputs
        logits_cV = _logits(hidden_cD, table_VD, temperature)
        top_c = shards.pmax(jnp.max(logits_cV, axis=-1))
        total_c = shards.psum(jnp.sum(jnp.exp(logits_cV - top_c[:, None]), axis=-1))
        local_c = targets_c - shards.index * table_VD.shape[0]
        mine_c = (local_c >= 0) & (local_c < table_VD.shape[0])
        picked_c = jnp.take_along_axis(logits_cV, jnp.where(mine_c, local_c, 0)[:, None], axis=-1)[:, 0]
        target_c = shards.psum(jnp.where(mine_c, picked_c, 0.0))
        normaliser_c = top_c + jnp.log(total_c)
        return target_c - normaliser_c, normaliser_c

    logp, normaliser = lax.map(one, (_chunks(hidden_ND, chunk), _chunks(targets_N, chunk)))
    count = hidden_ND.shape[0]
    return logp.reshape(-1)[:count], normaliser.reshape(-1)[:count]


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _logprobs(
    hidden_ND: jax.Array, table_VD: jax.Array, targets_N: jax.Array, temperature: jax.Array, chunk: int, shards: Shards
) -> jax.Array:
    return _forward(hidden_ND, table_VD, targets_N, temperature, chunk, shards)[0]


def _save(hidden_ND, table_VD, targets_N, temperature, chunk: int, shards: Shards):
    logp_N, normaliser_N = _forward(hidden_ND, table_VD, targets_N, temperature, chunk, shards)
    return logp_N, (hidden_ND, table_VD, targets_N, temperature, normaliser_N)


def _backward(chunk: int, shards: Shards, saved, cotangent_N: jax.Array):
    hidden_ND, table_VD, targets_N, temperature, normaliser_N = saved
    count = hidden_ND.shape[0]
    chunk = min(chunk, count)
    ids_V = jnp.arange(table_VD.shape[0]) + shards.index * table_VD.shape[0]

    def one(grad_VD: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        hidden_cD, targets_c, normaliser_c, cotangent_c = inputs
        probs_cV = jnp.exp(_logits(hidden_cD, table_VD, temperature) - normaliser_c[:, None])
        scale_c = cotangent_c / temperature
        slope_cV = jnp.where(ids_V[None, :] == targets_c[:, None], 1.0 - probs_cV, -probs_cV) * scale_c[:, None]
        slope_cV = slope_cV.astype(table_VD.dtype)
        grad_cD = lax.dot_general(slope_cV, table_VD, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        grad_VD += lax.dot_general(slope_cV, hidden_cD, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        return grad_VD, grad_cD

    chunked = tuple(_chunks(x, chunk) for x in (hidden_ND, targets_N, normaliser_N, cotangent_N))
    grad_VD, grad = lax.scan(one, jnp.zeros(table_VD.shape, jnp.float32), chunked)
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
    """log softmax(hidden · tableᵀ / temperature) at the targets, float32.

    Works through `chunk` positions at a time in both directions, so that at most [chunk, V] logits exist; sums are
    float32 whatever the inputs are. With a tensor group, table_VD is this device's rows of the vocabulary and hidden_ND
    is equal on the whole group; the normaliser and the gradient of hidden_ND are summed over it (no `shards.enter`
    around the call). Gradient, with p the softmax: ∂logp/∂logits = (onehot(target) − p) / temperature; none to the
    temperature.
    """
    logp_N: Any = _logprobs(hidden_ND, table_VD, targets_N, temperature, chunk, shards)
    return logp_N
