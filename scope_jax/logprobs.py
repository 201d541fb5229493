"""Log-probs of given tokens from hidden states, without ever holding the logits of all positions."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sharding.collectives import Shards


def _logits(hidden_CD: jax.Array, table_VD: jax.Array, temperature: jax.Array) -> jax.Array:
    """float32 logits of one chunk, of this device's part of the vocabulary."""
    logits_CV = lax.dot_general(hidden_CD, table_VD, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return logits_CV / temperature


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
        hidden_CD, targets_C = inputs
        logits_CV = _logits(hidden_CD, table_VD, temperature)
        top_C = shards.pmax(jnp.max(logits_CV, axis=-1))
        total_C = shards.psum(jnp.sum(jnp.exp(logits_CV - top_C[:, None]), axis=-1))
        local_C = targets_C - shards.index * table_VD.shape[0]
        mine_C = (local_C >= 0) & (local_C < table_VD.shape[0])
        picked_C = jnp.take_along_axis(logits_CV, jnp.where(mine_C, local_C, 0)[:, None], axis=-1)[:, 0]
        target_C = shards.psum(jnp.where(mine_C, picked_C, 0.0))
        normaliser_C = top_C + jnp.log(total_C)
        return target_C - normaliser_C, normaliser_C

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
        hidden_CD, targets_C, normaliser_C, cotangent_C = inputs
        probs_CV = jnp.exp(_logits(hidden_CD, table_VD, temperature) - normaliser_C[:, None])
        scale_C = cotangent_C / temperature
        slope_CV = jnp.where(ids_V[None, :] == targets_C[:, None], 1.0 - probs_CV, -probs_CV) * scale_C[:, None]
        slope_CV = slope_CV.astype(table_VD.dtype)
        grad_CD = lax.dot_general(slope_CV, table_VD, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        grad_VD += lax.dot_general(slope_CV, hidden_CD, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        return grad_VD, grad_CD

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
