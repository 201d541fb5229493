"""Keys and values of a decoder between calls, and the two ways to add to them: one token per row, or many.

A cache is a tuple of one layer each; K lies [S, K, h, C] and V [S, K, C, h], so that both products of attention run
along contiguous memory. Everything here gives a row the same bits whatever stands in the other rows and however many
columns beyond the row's own length are attended: attention sums over blocks of BLOCK columns, each with the same
shapes, and adds the blocks one after the other; a block without tokens of the row adds exact zeros.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from models.config import ModelConfig
from models.transformer import Params, block, embed, final_norm
from sharding.collectives import LOCAL

BLOCK = 64  # columns of one partial sum; a capacity is a multiple of it
MASKED = -1e30  # finite, so that a row of masked scores stays free of NaN


class LayerCache(NamedTuple):
    """Keys and values of one layer, after key norm and rotation."""

    k_SKhC: Any
    v_SKCh: Any


Cache = tuple[LayerCache, ...]


def round_up(tokens: int) -> int:
    """The smallest capacity that holds so many tokens."""
    return -(-tokens // BLOCK) * BLOCK


def init_cache(cfg: ModelConfig, slots: int, capacity: int, dtype: Any) -> Cache:
    """An empty cache. Raises ValueError if the capacity is no multiple of BLOCK."""
    if capacity % BLOCK:
        raise ValueError(f"A cache of {capacity} columns is no multiple of {BLOCK}; take {round_up(capacity)}.")
    k_shape = (slots, cfg.num_kv_heads, cfg.head_dim, capacity)
    v_shape = (slots, cfg.num_kv_heads, capacity, cfg.head_dim)
    return tuple(LayerCache(jnp.zeros(k_shape, dtype), jnp.zeros(v_shape, dtype)) for _ in range(cfg.num_layers))


def view(cache: Cache, columns: int) -> Cache:
    """The first `columns` columns of every row."""
    return tuple(LayerCache(k[..., :columns], v[:, :, :columns]) for k, v in cache)


def put_back(cache: Cache, part: Cache) -> Cache:
    """The cache with its first columns replaced by `part`, a view that went on."""
    return tuple(
        LayerCache(lax.dynamic_update_slice(k, pk, (0, 0, 0, 0)), lax.dynamic_update_slice(v, pv, (0, 0, 0, 0)))
        for (k, v), (pk, pv) in zip(cache, part, strict=True)
    )


def take_rows(cache: Cache, rows_N: Int[Array, " N"]) -> Cache:
    """Copies of some rows; a row number beyond the last gives the last one."""
    return tuple(LayerCache(k.at[rows_N].get(mode="clip"), v.at[rows_N].get(mode="clip")) for k, v in cache)


def put_rows(cache: Cache, part: Cache, rows_N: Int[Array, " N"]) -> Cache:
    """The cache with rows (their first columns, if part has fewer) written; row numbers beyond the last are dropped."""
    return tuple(
        LayerCache(
            k.at[rows_N, :, :, : pk.shape[3]].set(pk, mode="drop"),
            v.at[rows_N, :, : pv.shape[2]].set(pv, mode="drop"),
        )
        for (k, v), (pk, pv) in zip(cache, part, strict=True)
    )


def copy_row(cache: Cache, source: Cache, row: jax.Array, slot: jax.Array) -> Cache:
    """The cache with one row of a shorter cache copied to the first columns of `slot`."""
    one = tuple(LayerCache(lax.dynamic_slice_in_dim(k, row, 1), lax.dynamic_slice_in_dim(v, row, 1)) for k, v in source)
    return put_rows(cache, one, slot[None])


def step(
    cfg: ModelConfig, params: Params, cache: Cache, ids_S: Int[Array, " S"], lengths_S: Int[Array, " S"]
) -> tuple[Float[Array, "S D"], Cache]:
    """One token per row, at position `lengths_S`: (hidden states after the final norm, the cache with the token).

    params: "layers" a tuple of one tree per layer (`transformer.unstack_layers`), all in the dtype to compute in.
    A row whose length is at or beyond the columns of the cache writes nothing and its output means nothing.
    """
    rows_S = jnp.arange(ids_S.shape[0])
    columns = cache[0].k_SKhC.shape[3]
    seen_SC = jnp.arange(columns) <= lengths_S[:, None]
    x_S1D = embed(cfg, params, ids_S[:, None], LOCAL)
    layers: list[LayerCache] = []
    for w, (k_SKhC, v_SKCh) in zip(params["layers"], cache, strict=True):

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, k_SKhC=k_SKhC, v_SKCh=v_SKCh) -> jax.Array:
            k_SKhC = k_SKhC.at[rows_S, :, :, lengths_S].set(k[:, 0].astype(k_SKhC.dtype), mode="drop")
            v_SKCh = v_SKCh.at[rows_S, :, lengths_S].set(v[:, 0].astype(v_SKCh.dtype), mode="drop")
            layers.append(LayerCache(k_SKhC, v_SKCh))
            return _attend_one(q[:, 0], k_SKhC, v_SKCh, seen_SC)[:, None]

        x_S1D = block(cfg, w, x_S1D, lengths_S[:, None], attend, LOCAL)
    return final_norm(cfg, params, x_S1D)[:, 0], tuple(layers)


def _attend_one(q_SHh: jax.Array, k_SKhC: jax.Array, v_SKCh: jax.Array, seen_SC: jax.Array) -> jax.Array:
    """softmax(q K / √h) V for one query per row: the maximum over all columns, then sums block by block.

    The exponentials are taken in a loop over the blocks: as one operation over all columns, their last bit would depend
    on how many columns there are (XLA emits other code for other sizes).
    """
    rows, num_heads, head_dim = q_SHh.shape
    num_kv, columns = k_SKhC.shape[1], k_SKhC.shape[3]
    blocks = columns // BLOCK
    q_SKqh = q_SHh.reshape(rows, num_kv, num_heads // num_kv, head_dim)
    scores = jnp.einsum("SKqh,SKhC->SKqC", q_SKqh, k_SKhC, preferred_element_type=jnp.float32) / math.sqrt(head_dim)
    scores = jnp.where(seen_SC[:, None, None], scores, MASKED)
    top = jnp.max(scores, axis=-1, keepdims=True)

    def weigh(scores_SKqc: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = jnp.exp(scores_SKqc - top)
        return weights.astype(v_SKCh.dtype), jnp.sum(weights, axis=-1)

    by_block = jnp.moveaxis(scores.reshape(*scores.shape[:3], blocks, BLOCK), 3, 0)
    weights_nSKqc, masses_nSKq = lax.map(weigh, by_block)
    weights_SKnqc = jnp.moveaxis(weights_nSKqc, 0, 2)
    v = v_SKCh.reshape(rows, num_kv, blocks, BLOCK, head_dim)
    parts = jnp.einsum("SKnqc,SKnch->SKnqh", weights_SKnqc, v, preferred_element_type=jnp.float32)
    total, mass = parts[:, :, 0], masses_nSKq[0]
    for n in range(1, blocks):
        total, mass = total + parts[:, :, n], mass + masses_nSKq[n]
    return (total / mass[..., None]).reshape(q_SHh.shape).astype(q_SHh.dtype)


def append(
    cfg: ModelConfig,
    params: Params,
    cache: Cache,
    ids_ST: Int[Array, "S T"],
    starts_S: Int[Array, " S"],
    counts_S: Int[Array, " S"],
) -> Cache:
    """The cache with `counts_S` tokens of each row added from position `starts_S` on; the rest of T is padding.

    Prefill is this with an empty cache and starts of 0. Nothing is computed after the last layer's keys and values
    would be known: who wants the next token's distribution feeds the last token to `step`.
    """
    length = ids_ST.shape[1]
    offsets_T = jnp.arange(length)
    positions_ST = starts_S[:, None] + offsets_T
    columns = cache[0].k_SKhC.shape[3]
    write_ST = jnp.where(offsets_T < counts_S[:, None], positions_ST, columns)  # padding is dropped
    blocks = (jnp.max(starts_S + counts_S) + BLOCK - 1) // BLOCK
    rows_S1 = jnp.arange(ids_ST.shape[0])[:, None]
    x_STD = embed(cfg, params, ids_ST, LOCAL)
    layers: list[LayerCache] = []
    for w, (k_SKhC, v_SKCh) in zip(params["layers"], cache, strict=True):

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, k_SKhC=k_SKhC, v_SKCh=v_SKCh) -> jax.Array:
            k_SKhC = k_SKhC.at[rows_S1, :, :, write_ST].set(k.astype(k_SKhC.dtype), mode="drop")
            v_SKCh = v_SKCh.at[rows_S1, :, write_ST].set(v.astype(v_SKCh.dtype), mode="drop")
            layers.append(LayerCache(k_SKhC, v_SKCh))
            return _attend_many(q, k_SKhC, v_SKCh, positions_ST, blocks)

        x_STD = block(cfg, w, x_STD, positions_ST, attend, LOCAL)
    return tuple(layers)


def _attend_many(
    q_STHh: jax.Array, k_SKhC: jax.Array, v_SKCh: jax.Array, positions_ST: jax.Array, blocks: jax.Array
) -> jax.Array:
    """Causal attention over the first `blocks` blocks with a running maximum (Milakov & Gimelshein 2018)."""
    rows, length, _, head_dim = q_STHh.shape
    num_kv = k_SKhC.shape[1]
    q_SKqTh = q_STHh.reshape(rows, length, num_kv, -1, head_dim).transpose(0, 2, 3, 1, 4)
    scale = 1 / math.sqrt(head_dim)

    def add(n: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        top, mass, total = carry
        k = lax.dynamic_slice_in_dim(k_SKhC, n * BLOCK, BLOCK, 3)
        v = lax.dynamic_slice_in_dim(v_SKCh, n * BLOCK, BLOCK, 2)
        scores = jnp.einsum("SKqTh,SKhc->SKqTc", q_SKqTh, k, preferred_element_type=jnp.float32) * scale
        seen = (n * BLOCK + jnp.arange(BLOCK)) <= positions_ST[:, None, None, :, None]
        scores = jnp.where(seen, scores, MASKED)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1))
        shrink = jnp.exp(top - new_top)
        weights = jnp.exp(scores - new_top[..., None])
        part = jnp.einsum("SKqTc,SKch->SKqTh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return new_top, mass * shrink + jnp.sum(weights, axis=-1), total * shrink[..., None] + part

    shape = q_SKqTh.shape[:-1]
    start = (jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros(q_SKqTh.shape, jnp.float32))
    _, mass, total = lax.fori_loop(0, blocks, add, start)
    # Without a block (all rows empty) the mass is 0; such outputs mean nothing but must not be NaN.
    out_SKqTh = total / jnp.maximum(mass, 1e-30)[..., None]
    return out_SKqTh.transpose(0, 3, 1, 2, 4).reshape(q_STHh.shape).astype(q_STHh.dtype)
