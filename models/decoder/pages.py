"""A decoder over pages (`paging`): `feed`, which adds tokens to rows, one each (decoding) or many (prefill), and two
implementations of the attention.

Implementations differ in layout and rounding only: `Loop`, XLA operations on any platform, `columns.Columns`, the same
over a long page for each slot, `Ragged` and `RaggedByHead`, JAX's Pallas kernel for TPU, and `paged_gpu.Triton`. In
all, the values of a row depend on its own tokens alone, whatever the other rows hold, whichever pages it has, and
however long the others are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from scope_jax.models.decoder.config import Attention, ModelConfig
from scope_jax.models.decoder.delta import KeptState, Streams, Taps, in_order, nothing_kept, one_each
from scope_jax.models.decoder.kinds import HeadTransform, Params, mixer_of, plain_heads
from scope_jax.models.decoder.moe import keeping, picked_dtype, route
from scope_jax.models.decoder.paging import (
    PAGE,
    SHARED,
    BaseImplementation,
    Implementation,
    Layer,
    Pages,
    Stateful,
    Where,
    arrays,
    by_kv_head,
    by_query,
    layer_groups,
    page_shapes,
    picks_group,
)
from scope_jax.models.decoder.quantized import round_vectors
from scope_jax.models.decoder.transformer import block, embed, final_norm, layer_inputs
from scope_jax.models.kernels.attention import storable
from scope_jax.models.kernels.cascade import Carry, begin
from scope_jax.models.kernels.writes import apart
from scope_jax.sharding.chips import LANES
from scope_jax.sharding.collectives import Shards

KERNEL_BYTES = 2**20  # keys and values that the TPU kernel reads at a time, twice: while it computes, the next arrive
KERNEL_QUERIES = 32
SMEM = 2**20  # bytes of scalar memory of a TPU core (v5e, v5p, v6e)

Before = tuple[Carry, Array] | None  # attention over a row's first pages, and their number; None: over none


# ------------------------------------------------------------------------------------------------------------ XLA loop
class LoopPages(NamedTuple):
    """Both products of attention read contiguous memory in this layout.

    Keys and values in 8 bits have a scale for each token and head (`quantized.round_vectors`); otherwise there is none.
    """

    k_PKht: Any
    v_PKth: Any
    k_PKt: Any = None
    v_PKt: Any = None


class Loop(BaseImplementation):
    """Goes through the pages of all rows together with a running maximum (Milakov & Gimelshein 2018).

    A page that is masked for a query adds exact zeros; before the first visible page its masked scores count as ones,
    which the rescaling by exp(MASKED - maximum) = 0 removes exactly.
    """

    paging = SHARED
    heads_axis = 1
    cascade = True

    def empty(self, pages: int, kv_heads: int, head_dim: int, dtype: Any) -> LoopPages:
        shape = (pages, kv_heads)
        k_PKht, v_PKth = jnp.zeros((*shape, head_dim, PAGE), dtype), jnp.zeros((*shape, PAGE, head_dim), dtype)
        if dtype != jnp.int8:
            return LoopPages(k_PKht, v_PKth)
        return LoopPages(k_PKht, v_PKth, *(jnp.ones((*shape, PAGE), jnp.float32) for _ in range(2)))

    def write(self, layer: LoopPages, k_NKh: Array, v_NKh: Array, page_N: Array, column_N: Array) -> LoopPages:
        scales: list[Array] = []
        k_NKh, v_NKh = storable(k_NKh, v_NKh)
        if layer.k_PKt is not None:
            (k_NKh, k_NK), (v_NKh, v_NK) = round_vectors(k_NKh), round_vectors(v_NKh)
            for scale_PKt, scale_NK in ((layer.k_PKt, k_NK), (layer.v_PKt, v_NK)):
                at = scale_PKt.at[page_N, :, column_N]
                scales.append(at.set(scale_NK, mode="drop", unique_indices=True))
        k_NKh, v_NKh = k_NKh.astype(layer.k_PKht.dtype), v_NKh.astype(layer.v_PKth.dtype)
        k_PKht = layer.k_PKht.at[page_N, :, :, column_N].set(k_NKh, mode="drop", unique_indices=True)
        v_PKth = layer.v_PKth.at[page_N, :, column_N].set(v_NKh, mode="drop", unique_indices=True)
        return LoopPages(k_PKht, v_PKth, *scales)

    def attend(
        self, layer: LoopPages, q_RQHh: Array, where: Where, window: int | None, sinks_H: Array | None = None
    ) -> Array:
        rows, queries = q_RQHh.shape[:2]
        q_RKmh, before = by_kv_head(q_RQHh, layer.k_PKht.shape[1]), None
        if where.tiles is not None:
            before = begin(partial(self._together, layer), q_RKmh, where.table, where.tiles), where.tiles.pages_R
        if sinks_H is not None:
            carry, first_R = (Carry.empty(q_RKmh), jnp.zeros(rows, jnp.int32)) if before is None else before
            before = carry.with_sinks(sinks_H), first_R
        return by_query(self._attention(layer, q_RKmh, where, queries, window, before), q_RQHh)

    def _together(self, layer: LoopPages, q_BKMh: Array, table_Bb: Array, pages_B: Array) -> Carry:
        """Attention of tiles over their first pages."""
        return self._sums(layer, q_BKMh, Where(table_Bb, pages_B * PAGE - 1, (pages_B > 0).astype(jnp.int32)))

    def _attention(
        self, layer: LoopPages, q_RKmh: Array, where: Where, queries: int, window: int | None, before: Before
    ) -> Array:
        """The result for the rows' queries, which are ordered by head, then by position."""
        return self._walk(layer, q_RKmh, where, queries, window, before).output()

    def _sums(self, layer: LoopPages, q_BKMh: Array, where: Where) -> Carry:
        """The same for queries that see all positions up to the row's start, as sums."""
        return self._walk(layer, q_BKMh, where, 1, None, None)

    def _walk(
        self, layer: LoopPages, q_RKmh: Array, where: Where, queries: int, window: int | None, before: Before
    ) -> Carry:
        carry, first_R = (Carry.empty(q_RKmh), jnp.zeros(len(q_RKmh), jnp.int32)) if before is None else before
        position_RQ = where.starts_R[:, None] + jnp.arange(queries)
        ends_R = jnp.where(where.counts_R > 0, where.starts_R + where.counts_R, 0)

        def add(b: Array, carry: Carry) -> Carry:
            page_R = lax.dynamic_index_in_dim(where.table, b, 1, keepdims=False)
            behind_RQt = position_RQ[..., None] - (b * PAGE + jnp.arange(PAGE))
            seen_RQt = behind_RQt >= 0 if window is None else (behind_RQt >= 0) & (behind_RQt < window)
            seen_RQt &= (b >= first_R)[:, None, None]
            return carry.with_tokens(q_RKmh, seen_RQt, *jax.tree.map(lambda x: x[page_R], layer))

        columns = where.table.shape[1]
        lowest = jnp.min(jnp.where(ends_R > 0, first_R, columns))
        return lax.fori_loop(lowest, (jnp.max(ends_R) + PAGE - 1) // PAGE, add, carry)


# ---------------------------------------------------------------------------------------------------------- TPU kernel
class Ragged(BaseImplementation):
    """`jax.experimental.pallas.ops.tpu.ragged_paged_attention`; keys and values of a head lie next to each other,
    [P, PAGE, 2K, h]. The kernel has no sinks, nor does it give the sums to which they could be added."""

    paging = SHARED
    heads_axis = 2
    cascade = False  # the kernel does not give the sums that a row's own pages would begin with
    table_bytes: int | None = SMEM - 2**12  # the rest is for scalars of the kernel

    @staticmethod
    def heads(
        how: HeadTransform, positions_BT: Array, q_BTn: Array, k_BTn: Array | None, v_BTKh: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """`plain_heads`, while rows decode by a kernel."""
        from scope_jax.models.kernels.heads_tpu import norm_and_rotate

        mixer, rope = how.mixer, how.mixer.rope
        whole = rope is not None and (rope.share == 1 or rope.kind == "proportional")
        if q_BTn.shape[1] > 1 or mixer.head_dim % LANES or rope is None or not whole or k_BTn is None:
            return plain_heads(how, positions_BT, q_BTn, k_BTn, v_BTKh)
        flat = q_BTn[:, 0], k_BTn[:, 0], how.scales, positions_BT[:, 0], rope, mixer.head_dim, how.eps
        q_BHh, k_BKh = norm_and_rotate(*flat)
        return q_BHh[:, None], k_BKh[:, None], v_BTKh

    def empty(self, pages: int, kv_heads: int, head_dim: int, dtype: Any) -> Array:
        return jnp.zeros((pages, PAGE, 2 * kv_heads, head_dim), dtype)

    def write(self, layer: Array, k_NKh: Array, v_NKh: Array, page_N: Array, column_N: Array) -> Array:
        both_NCh = jnp.stack(storable(k_NKh, v_NKh), axis=2).reshape(k_NKh.shape[0], -1, k_NKh.shape[2])
        return layer.at[page_N, column_N].set(both_NCh.astype(layer.dtype), mode="drop", unique_indices=True)

    def attend(
        self, layer: Array, q_RQHh: Array, where: Where, window: int | None, sinks_H: Array | None = None
    ) -> Array:
        if sinks_H is not None:
            raise ValueError("the kernel for pages on TPUs has no sinks; `kernels.attention_over_pages` knows it.")
        # Pallas takes a second to import and is needed on TPUs only.
        from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

        rows, queries, num_heads, head_dim = q_RQHh.shape
        # Every query of a row takes part, also those beyond its count, whose output nobody reads.
        lengths_R = jnp.where(where.counts_R > 0, where.starts_R, 0) + queries
        page_bytes = PAGE * layer.shape[2] * head_dim * layer.dtype.itemsize
        out = ragged_paged_attention(
            q_RQHh.reshape(-1, num_heads, head_dim),
            layer,
            lengths_R.astype(jnp.int32),
            where.table,
            jnp.arange(rows + 1, dtype=jnp.int32) * queries,
            jnp.asarray([rows], jnp.int32),
            sm_scale=1 / math.sqrt(head_dim),
            sliding_window=window,
            num_kv_pages_per_block=max(1, min(where.table.shape[1], KERNEL_BYTES // page_bytes)),
            num_queries_per_block=min(KERNEL_QUERIES, rows * queries),
        )
        return out.reshape(q_RQHh.shape).astype(q_RQHh.dtype)


class RaggedByHead(Ragged):
    """The same for wider heads, which the kernel only takes one at a time: [P, K, PAGE, 2, h], and each kv head of a
    row is a row of the kernel, with pages of its own."""

    heads_axis = 1
    by_head = True

    def empty(self, pages: int, kv_heads: int, head_dim: int, dtype: Any) -> Array:
        return jnp.zeros((pages, kv_heads, PAGE, 2, head_dim), dtype)

    def write(self, layer: Array, k_NKh: Array, v_NKh: Array, page_N: Array, column_N: Array) -> Array:
        both_NK2h = jnp.stack(storable(k_NKh, v_NKh), axis=2).astype(layer.dtype)
        return layer.at[page_N, :, column_N].set(both_NK2h, mode="drop", unique_indices=True)

    def attend(
        self, layer: Array, q_RQHh: Array, where: Where, window: int | None, sinks_H: Array | None = None
    ) -> Array:
        rows, queries, _, head_dim = q_RQHh.shape
        heads = layer.shape[1]
        q_RQKgh = q_RQHh.reshape(rows, queries, heads, -1, head_dim)
        q_rQgh = q_RQKgh.swapaxes(1, 2).reshape(rows * heads, queries, -1, head_dim)
        table_RKb = where.table[:, None] * heads + jnp.arange(heads)[:, None]
        each = where._replace(
            table=table_RKb.reshape(rows * heads, -1),
            starts_R=jnp.repeat(where.starts_R, heads),
            counts_R=jnp.repeat(where.counts_R, heads),
        )
        out_rQgh = super().attend(layer.reshape(-1, *layer.shape[2:]), q_rQgh, each, window, sinks_H)
        return out_rQgh.reshape(rows, heads, queries, -1, head_dim).swapaxes(1, 2).reshape(q_RQHh.shape)


# --------------------------------------------------------------------------------------------------------------- model
def init_pages(
    cfg: ModelConfig,
    how: Implementation,
    pages: int | Sequence[int],
    dtype: Any,
    tensor: int = 1,
    picks: bool = False,
) -> Pages:
    """Empty pages, with the kv heads of all devices of a tensor group, which may share one, one array for each of
    `arrays`. pages: of each shape. picks: the last array is [pages, tokens, L, k], the experts that the routers of
    `expert_layers` have picked of each token, in `picked_dtype`; its pages are those of `picks_group`."""
    shapes = [(tensor * max(1, heads // tensor), dim) for heads, dim in page_shapes(cfg)]
    counts = [pages] * len(shapes) if isinstance(pages, int) else pages
    found = tuple(how.empty(counts[shape], *shapes[shape], dtype) for shape in arrays(cfg, how.paging))
    if not picks:
        return found
    shape = arrays(cfg, how.paging, picks)[-1]
    return *found, jnp.zeros((counts[shape], how.paging.length, *cfg.picks), picked_dtype(cfg.num_experts))


def init_states(cfg: ModelConfig, rows: int, dtype: Any) -> tuple[KeptState, ...]:
    """What layers with states keep of so many rows without tokens, with all heads."""
    mixers = ((mixer_of(layer), layer.mixer) for layer in cfg.layers)
    return tuple(nothing_kept(kind.kept(mixer), rows, dtype) for kind, mixer in mixers if kind.kept is not None)


def feed(
    cfg: ModelConfig,
    how: Implementation,
    params: Params,
    cache: Pages | Stateful,
    ids_RQ: Int[Array, "R Q"],
    where: Where,
    shards: Shards,
) -> tuple[Float[Array, "R Q D"], Pages | Stateful]:
    """Adds tokens to rows: (hidden states after the final norm, the cache with the tokens and, if it has an array for
    them, the picked experts).

    params: "layers" is a tuple of one tree per layer, in the compute dtype; with a tensor group, this device's shards,
    as pages hold this device's heads. Tokens beyond a row's count are not written; their output is meaningless. Rows of
    the same call may share pages that one of them writes: all writes of a layer come before its attention.
    """
    queries = ids_RQ.shape[1]
    offset_Q = jnp.arange(queries)
    position_RQ = where.starts_R[:, None] + offset_Q
    added_RQ: Bool[Array, "R Q"] = offset_Q < where.counts_R[:, None]
    paging = how.paging
    page_RQ = jnp.minimum(position_RQ // paging.length, where.table.shape[2] - 1)
    column_N = (position_RQ % paging.length).reshape(-1)
    pages, kept = cache if isinstance(cache, Stateful) else (cache, ())
    of_shape, layers = arrays(cfg, paging), list[Layer](pages)
    states, picked = list[KeptState](), list[Array]()
    router = keeping(picked) if len(layers) > len(of_shape) else route
    homes: dict[int, tuple[int, Array, Where]] = {}  # by layer: its array, pages of the new tokens, what they see
    for number, group in enumerate(layer_groups(cfg, paging)):
        first = of_shape.index(group.shape)
        nowhere = jax.tree.leaves(pages[first])[0].shape[0]
        own_RQ = jnp.take_along_axis(where.table[:, number], page_RQ, axis=1)
        page_N = apart(jnp.where(added_RQ, own_RQ, nowhere).reshape(-1), nowhere)
        seen = where.seen(number, group.window, queries, paging)
        homes |= {layer: (first + place, page_N, seen) for place, layer in enumerate(group.layers)}
    x_RQD = embed(cfg, params, ids_RQ, shards)
    inputs = layer_inputs(cfg, params, ids_RQ, x_RQD, shards)
    for number, (w, layer, own) in enumerate(zip(params["layers"], cfg.layers, inputs, strict=True)):
        if not isinstance(layer.mixer, Attention):

            def recur(streams: Streams, taps: Taps, held: KeptState = kept[len(states)]) -> Array:
                given = streams, taps, where.starts_R, where.counts_R, held
                if where.rows is None:
                    dims = held.state_BHhe.shape[2:]
                    out, new = one_each(*given, how.token_step(*dims))
                else:
                    out, new = in_order(*given, where.rows)
                states.append(new)
                return out

            x_RQD = block(cfg, layer, w, x_RQD, position_RQ, recur, shards, router=router)
            continue

        source = layer.mixer.source
        home = homes[number if source is None else source]

        def heads(
            transform: HeadTransform, positions: Array, q: Array, k: Array | None, v: Array | None, home=home
        ) -> tuple[Array, None, None]:
            place, page_N, _ = home
            if k is None or v is None:
                return how.heads(transform, positions, q, None, None)[0], None, None
            q, layers[place] = how.place(layers[place], page_N, column_N, transform, positions, q, k, v)
            return q, None, None

        def attend(
            q: Array, k: None, v: None, sinks_H: Array | None = None, window=layer.mixer.window, home=home
        ) -> Array:
            del k, v  # they are in the pages
            place, _, seen = home
            return how.attend(layers[place], q, seen, window, sinks_H)

        x_RQD = block(cfg, layer, w, x_RQD, position_RQ, attend, shards, heads=heads, router=router, input_BTp=own)
    if picked:
        _, page_N, _ = homes[layer_groups(cfg, paging)[picks_group(cfg, paging)].layers[0]]
        layers[-1] = layers[-1].at[page_N, column_N].set(jnp.stack(picked, axis=1), mode="drop", unique_indices=True)
    after: Pages | Stateful = tuple(layers)
    return final_norm(cfg, params, x_RQD), Stateful(after, tuple(states)) if kept else after
