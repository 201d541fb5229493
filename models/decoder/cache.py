"""The KV cache of a decoder, and the two ways to extend it: by one token per row, or by many.

A cache is a tuple with one entry per layer: of a layer with attention its keys and values, nothing where it reads those
of an earlier one, of a layer with a state what it keeps of each row (`delta.Kept`). One more, if there is one, has the
experts that were picked (`Picked`).

The columns of a row are split into blocks of BLOCK: K is [S, K, b, h, t] and V [S, K, b, t, h], with b blocks of t
columns, so that both matmuls of attention read contiguous memory. Both are tuples of such arrays, segments of 2, 2, 4,
8, … blocks, so that the first columns can be used alone without a copy (`view`). All functions here compute a row
bit-identically whatever the other rows contain and however many columns beyond its own length are attended to: every
product, sum and exponential covers one block, in operations whose shape per block is fixed, and the blocks are added in
order; a block without visible tokens adds exact zeros. Layers with a sliding window keep all columns of a row and
attend to the last ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from scope_jax.models.decoder.config import Layer, ModelConfig
from scope_jax.models.decoder.delta import KeptState, Recur, Streams, Taps, advanced, nothing_kept
from scope_jax.models.decoder.kinds import mixer_of
from scope_jax.models.decoder.moe import Route, block_matmul, keeping, picked_dtype, route
from scope_jax.models.decoder.transformer import Params, block, embed, final_norm, layer_inputs
from scope_jax.models.kernels.attention import storable
from scope_jax.models.kernels.writes import apart
from scope_jax.sharding.collectives import LOCAL

BLOCK = 64  # columns of one block; capacities are multiples of it
BEYOND = 2**24  # more blocks than any cache has
MASKED = -1e30  # finite, so that a row of masked scores stays free of NaN


class LayerCache(NamedTuple):
    """Keys and values of one layer, after key norm and rotation (or their shardings), by segment."""

    k_SKbht: tuple[Any, ...]
    v_SKbth: tuple[Any, ...]


class Picked(NamedTuple):
    """The experts that the routers of `expert_layers` have picked of the tokens in a cache, in `picked_dtype`."""

    picked_SLCk: Any


Cache = tuple[LayerCache | KeptState | Picked, ...]


def round_up(tokens: int) -> int:
    """The smallest capacity that holds `tokens` tokens."""
    return -(-tokens // BLOCK) * BLOCK


def widths(capacity: int) -> tuple[int, ...]:
    """The numbers of columns that `view` can give, in order: 128, 256, 512, …, and the capacity.

    At least two blocks: XLA unrolls a loop over a single block, then fuses and rounds differently.
    """
    found, columns = [], 2 * BLOCK
    while columns < capacity:
        found.append(columns)
        columns *= 2
    return (*found, capacity)


def init_cache(cfg: ModelConfig, slots: int, capacity: int, dtype: Any, picks: bool = False) -> Cache:
    """An empty cache, with `picks` for the picked experts, too. Raises ValueError if the capacity is not a multiple of
    BLOCK."""
    if capacity % BLOCK:
        raise ValueError(f"A cache of {capacity} columns is not a multiple of {BLOCK}; use {round_up(capacity)}.")
    ends = widths(capacity)
    blocks = [(end - start) // BLOCK for start, end in zip((0, *ends), ends, strict=False)]

    def empty(heads: int, *block: int) -> tuple[jax.Array, ...]:
        return tuple(jnp.zeros((slots, heads, count, *block), dtype) for count in blocks)

    def of(layer: Layer) -> LayerCache | KeptState:
        mixer = mixer_of(layer)
        if mixer.kept is not None:
            return nothing_kept(mixer.kept(layer.mixer), slots, dtype)
        assert mixer.page is not None
        if (shape := mixer.page(layer.mixer)) is None:
            return LayerCache((), ())
        heads, dim = shape
        return LayerCache(empty(heads, dim, BLOCK), empty(heads, BLOCK, dim))

    layers = tuple(map(of, cfg.layers))
    if not picks:
        return layers
    count, picked = cfg.picks
    return *layers, Picked(jnp.zeros((slots, count, capacity, picked), picked_dtype(cfg.num_experts)))


def columns_of(cache: Cache) -> int:
    """The cache's capacity: the number of tokens a row has room for."""
    return sum(_blocks(next(layer for layer in cache if isinstance(layer, LayerCache)))) * BLOCK


def _blocks(layer: LayerCache) -> list[int]:
    """Number of blocks of each segment."""
    return [part.shape[2] for part in layer.k_SKbht]


def view(cache: Cache, columns: int) -> Cache:
    """The first `columns` columns of every row, one of `widths`; the same arrays, not copies."""
    count = widths(columns_of(cache)).index(columns) + 1
    return tuple(
        LayerCache(layer.k_SKbht[:count], layer.v_SKbth[:count]) if isinstance(layer, LayerCache) else layer
        for layer in cache
    )


def put_back(cache: Cache, part: Cache) -> Cache:
    """The cache with its first columns replaced by `part`, a `view` that has been extended."""
    return _joined(cache, part, lambda _, new: new)


def take_rows(cache: Cache, rows_N: Int[Array, " N"]) -> Cache:
    """Copies of some rows; an index past the end gives the last row."""
    return jax.tree.map(lambda x: x.at[rows_N].get(mode="clip"), cache)


def put_rows(cache: Cache, part: Cache, rows_N: Int[Array, " N"]) -> Cache:
    """The cache with rows (their first columns, if part has fewer) overwritten; indices past the end are dropped."""

    def put(x: jax.Array, new: jax.Array) -> jax.Array:
        return x.at[apart(rows_N, x.shape[0]), :, : new.shape[2]].set(new, mode="drop", unique_indices=True)

    return _joined(cache, part, put)


def _joined(cache: Cache, part: Cache, put: Callable[[jax.Array, jax.Array], jax.Array]) -> Cache:
    """put(segment, new segment) for every segment that `part` has, and all that has none; the others stay."""

    def one(layer: Any, other: Any) -> LayerCache | KeptState | Picked:
        if not isinstance(layer, LayerCache):
            return type(layer)(*map(put, layer, other))
        return LayerCache(
            *(
                (*map(put, segments[: len(new)], new), *segments[len(new) :])
                for segments, new in zip(layer, other, strict=True)
            )
        )

    return tuple(map(one, cache, part))


def copy_row(cache: Cache, source: Cache, row: jax.Array, slot: jax.Array) -> Cache:
    """The cache with one row of a shorter cache copied to the first columns of `slot`."""
    return put_rows(cache, jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, row, 1), source), slot[None])


def _written(layer: LayerCache, rows: jax.Array, column: jax.Array, k: jax.Array, v: jax.Array) -> LayerCache:
    """The layer with keys and values [..., K, h] written at rows and columns, integers of the same leading shape.

    Columns past the end are dropped; like all others, they differ within a row.
    """
    k, v = storable(k, v)
    k_SKbht, v_SKbth, start = [], [], 0
    block, offset = column // BLOCK, column % BLOCK
    for keys, values in zip(*layer, strict=True):
        count = keys.shape[2]
        here = jnp.where(block < start, BEYOND + block, block - start)  # from `count` on: not in this segment
        how = {"mode": "drop", "unique_indices": True}
        k_SKbht.append(keys.at[rows, :, here, :, offset].set(k.astype(keys.dtype), **how))
        v_SKbth.append(values.at[rows, :, here, offset].set(v.astype(values.dtype), **how))
        start += count
    return LayerCache(tuple(k_SKbht), tuple(v_SKbth))


def step(
    cfg: ModelConfig,
    params: Params,
    cache: Cache,
    ids_S: Int[Array, " S"],
    lengths_S: Int[Array, " S"],
    live_S: Bool[Array, " S"] | None = None,
) -> tuple[Float[Array, "S D"], Cache]:
    """Feeds one token per row, at position `lengths_S`: (hidden states after the final norm, cache with the token).

    params: "layers" is a tuple of one tree per layer (`transformer.unstack_layers`), all in the compute dtype. A row
    whose length is at or beyond the columns of the cache writes nothing, and its output is meaningless. Rows that are
    not live keep their states (None: all are); of their keys and values the columns beyond their length are written.
    """
    rows_S = jnp.arange(ids_S.shape[0])
    behind_SC = lengths_S[:, None] - jnp.arange(columns_of(cache))
    x_S1D = embed(cfg, params, ids_S[:, None], LOCAL)
    inputs = layer_inputs(cfg, params, ids_S[:, None], x_S1D, LOCAL)
    counts_S = jnp.ones_like(lengths_S) if live_S is None else live_S.astype(lengths_S.dtype)
    caches: list[Any] = []
    layers, picks, kept, router = _apart(cfg, cache)
    for w, layer, held, own in zip(params["layers"], cfg.layers, layers, inputs, strict=True):
        if isinstance(held, KeptState):
            recur = _recurrence(caches, held, lengths_S, counts_S)
            x_S1D = block(cfg, layer, w, x_S1D, lengths_S[:, None], recur, LOCAL, block_matmul, router=router)
            continue
        seen_SC = _seen(behind_SC, layer.attention.window)

        def attend(
            q: jax.Array,
            k: jax.Array | None,
            v: jax.Array | None,
            sinks_H: jax.Array | None = None,
            held=held,
            seen_SC=seen_SC,
            source=layer.attention.source,
        ) -> jax.Array:
            caches.append(held if k is None or v is None else _written(held, rows_S, lengths_S, k[:, 0], v[:, 0]))
            return _attend_one(q[:, 0], caches[-1 if source is None else source], seen_SC, sinks_H)[:, None]

        at = lengths_S[:, None]
        x_S1D = block(cfg, layer, w, x_S1D, at, attend, LOCAL, block_matmul, router=router, input_BTp=own)
    return final_norm(cfg, params, x_S1D)[:, 0], (*caches, *_with_picks(picks, kept, rows_S, lengths_S))


def _apart(cfg: ModelConfig, cache: Cache) -> tuple[tuple[Any, ...], list[Any], list[jax.Array], Route]:
    """(the entries of the layers, that of picked experts or none, what a router picks, that router)."""
    picks, kept = [*cache[cfg.num_layers :]], list[jax.Array]()
    return cache[: cfg.num_layers], picks, kept, keeping(kept) if picks else route


def _with_picks(picks: list[Any], kept: list[jax.Array], rows: jax.Array, column: jax.Array) -> list[Picked]:
    """The entry, if there is one, with what was picked of the tokens at rows and columns."""
    if not picks:
        return []
    new = jnp.stack(kept, axis=1)
    new = new.reshape(*column.shape, *new.shape[1:])
    return [Picked(picks[0].picked_SLCk.at[rows, :, column].set(new, mode="drop", unique_indices=True))]


def _recurrence(caches: list[Any], held: KeptState, starts_S: jax.Array, counts_S: jax.Array) -> Recur:
    """Of rows that add tokens; what is kept then is added to the caches."""

    def recur(streams: Streams, taps: Taps) -> jax.Array:
        out, kept = advanced(streams, taps, starts_S, counts_S, held)
        caches.append(kept)
        return out

    return recur


def _seen(behind: jax.Array, window: int | None) -> jax.Array:
    """True for the columns a token attends to; `behind` is each column's distance back from the token's own column."""
    return (behind >= 0) if window is None else (behind >= 0) & (behind < window)


def _attend_one(q_SHh: jax.Array, layer: LayerCache, seen_SC: jax.Array, sinks_H: jax.Array | None = None) -> jax.Array:
    """softmax(q K / √h) V for one query per row: the maximum over all columns, then sums block by block.

    The exponentials are computed in a loop over the blocks: in one operation over all columns, their last bit would
    depend on the number of columns (XLA emits different code for different sizes).
    """
    rows, _, head_dim = q_SHh.shape
    counts, num_kv = _blocks(layer), layer.k_SKbht[0].shape[1]
    ends, blocks = np.cumsum(counts), sum(counts)
    q_SK1qh = q_SHh.reshape(rows, num_kv, 1, -1, head_dim)

    def products(k_SKbht: jax.Array) -> jax.Array:
        q_SKbqh = jnp.broadcast_to(q_SK1qh, (*k_SKbht.shape[:3], *q_SK1qh.shape[3:]))
        return jnp.einsum("SKbqh,SKbht->SKbqt", q_SKbqh, k_SKbht, preferred_element_type=jnp.float32)

    scores = jnp.concatenate([products(k_SKbht) for k_SKbht in layer.k_SKbht], axis=2)
    seen_SKbqt = seen_SC.reshape(rows, 1, blocks, 1, BLOCK)
    scores = jnp.where(seen_SKbqt, scores / math.sqrt(head_dim), MASKED)
    top_SKq = jnp.max(scores, axis=(2, 4))
    sinks_Kq = None if sinks_H is None else sinks_H.astype(jnp.float32).reshape(num_kv, -1)
    top_SKq = top_SKq if sinks_Kq is None else jnp.maximum(top_SKq, sinks_Kq)
    dtype = layer.v_SKbth[0].dtype

    def weigh(scores_SKqt: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = jnp.exp(scores_SKqt - top_SKq[..., None])
        return weights.astype(dtype), jnp.sum(weights, axis=-1)

    weights_bSKqt, masses_bSKq = lax.map(weigh, jnp.moveaxis(scores, 2, 0))
    total, mass = jnp.float32(0), jnp.float32(0) if sinks_Kq is None else jnp.exp(sinks_Kq - top_SKq)
    for weights, v_SKbth in zip(jnp.split(weights_bSKqt, ends[:-1]), layer.v_SKbth, strict=True):
        parts = jnp.einsum("bSKqt,SKbth->SKbqh", weights, v_SKbth, preferred_element_type=jnp.float32)
        for b in range(v_SKbth.shape[2]):
            total = total + parts[:, :, b]
    for b in range(blocks):
        mass = mass + masses_bSKq[b]
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

    Prefill is this with an empty cache and starts of 0. Nothing is computed beyond the last layer's keys and values:
    for the next token's distribution, feed the last token to `step`.
    """
    length = ids_ST.shape[1]
    offsets_T = jnp.arange(length)
    positions_ST = starts_S[:, None] + offsets_T
    beyond_T = columns_of(cache) + offsets_T  # padding is dropped
    write_ST = jnp.where(offsets_T < counts_S[:, None], positions_ST, beyond_T)
    blocks = (jnp.max(starts_S + counts_S) + BLOCK - 1) // BLOCK
    earliest = jnp.min(starts_S)
    rows_S1 = jnp.arange(ids_ST.shape[0])[:, None]
    x_STD = embed(cfg, params, ids_ST, LOCAL)
    inputs = layer_inputs(cfg, params, ids_ST, x_STD, LOCAL)
    caches: list[Any] = []
    layers, picks, kept, router = _apart(cfg, cache)
    for w, layer, held, own in zip(params["layers"], cfg.layers, layers, inputs, strict=True):
        if isinstance(held, KeptState):
            recur = _recurrence(caches, held, starts_S, counts_S)
            x_STD = block(cfg, layer, w, x_STD, positions_ST, recur, LOCAL, block_matmul, router=router)
            continue
        window = layer.attention.window
        first = 0 if window is None else jnp.maximum(earliest - window + 1, 0) // BLOCK

        def attend(
            q: jax.Array,
            k: jax.Array | None,
            v: jax.Array | None,
            sinks_H: jax.Array | None = None,
            held=held,
            first=first,
            window=window,
            source=layer.attention.source,
        ) -> jax.Array:
            caches.append(held if k is None or v is None else _written(held, rows_S1, write_ST, k, v))
            seen = caches[-1 if source is None else source]
            return _attend_many(q, seen, positions_ST, first, blocks, window, sinks_H)

        x_STD = block(cfg, layer, w, x_STD, positions_ST, attend, LOCAL, block_matmul, router=router, input_BTp=own)
    return *caches, *_with_picks(picks, kept, rows_S1, write_ST)


def _attend_many(
    q_STHh: jax.Array,
    layer: LayerCache,
    positions_ST: jax.Array,
    first: jax.Array | int,
    blocks: jax.Array,
    window: int | None,
    sinks_H: jax.Array | None = None,
) -> jax.Array:
    """Causal attention over the blocks `first` to `blocks` - 1 with a running maximum (Milakov & Gimelshein 2018).

    A block that is masked for a query adds nothing: before the first visible block its masked scores count as ones,
    which the rescaling by exp(MASKED - maximum) = 0 removes exactly; after it their exponentials are 0.
    """
    rows, length, _, head_dim = q_STHh.shape
    num_kv = layer.k_SKbht[0].shape[1]
    q_SKqTh = q_STHh.reshape(rows, length, num_kv, -1, head_dim).transpose(0, 2, 3, 1, 4)
    scale = 1 / math.sqrt(head_dim)

    def add(
        k_SKbht: jax.Array, v_SKbth: jax.Array, start: int, b: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        top, mass, total = carry
        k = lax.dynamic_index_in_dim(k_SKbht, b, 2, keepdims=False)
        v = lax.dynamic_index_in_dim(v_SKbth, b, 2, keepdims=False)
        scores = jnp.einsum("SKqTh,SKht->SKqTt", q_SKqTh, k, preferred_element_type=jnp.float32) * scale
        behind = positions_ST[:, None, None, :, None] - ((start + b) * BLOCK + jnp.arange(BLOCK))
        scores = jnp.where(_seen(behind, window), scores, MASKED)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1))
        shrink = jnp.exp(top - new_top)
        weights = jnp.exp(scores - new_top[..., None])
        part = jnp.einsum("SKqTt,SKth->SKqTh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return new_top, mass * shrink + jnp.sum(weights, axis=-1), total * shrink[..., None] + part

    shape = q_SKqTh.shape[:-1]
    carry = (jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros(q_SKqTh.shape, jnp.float32))
    if sinks_H is not None:
        sinks_Kq1 = sinks_H.astype(jnp.float32).reshape(num_kv, -1, 1)
        carry = (jnp.broadcast_to(sinks_Kq1, shape), jnp.ones(shape, jnp.float32), carry[2])
    start = 0
    for k_SKbht, v_SKbth in zip(*layer, strict=True):
        count = k_SKbht.shape[2]
        low, high = (jnp.clip(bound - start, 0, count) for bound in (first, blocks))
        carry = lax.fori_loop(low, high, partial(add, k_SKbht, v_SKbth, start), carry)
        start += count
    _, mass, total = carry
    # With no blocks (all rows empty) the sum is 0; such outputs are meaningless but must not be NaN.
    out_SKqTh = total / jnp.maximum(mass, 1e-30)[..., None]
    return out_SKqTh.transpose(0, 3, 1, 2, 4).reshape(q_STHh.shape).astype(q_STHh.dtype)
