"""A decoder's keys and values in pages, and `feed`, which adds tokens to rows: one each (decoding) or many (prefill).

A page holds consecutive tokens of one row (`Paging`), for all heads of the layers of a group. These see one window, and
their heads have one number and size, the pages' shape. All groups of one shape have as many layers, so that a page
takes the same memory whichever of them uses it: layer j of each keeps its keys and values in array j of the shape's. A
model without windows has one group. A row has a page table for each group, with its pages in order: token t of pages of
n tokens is in column t % n of page table[t // n]. Several rows may list the same page, as long as none of them writes
to it. Entries of a table that are unused, or that a window has passed, are 0: that page belongs to no row, unless pages
are by slot.

Implementations differ in layout and rounding only: `Loop`, XLA operations on any platform, `columns.Columns`, the same
over a long page for each slot, `Ragged`, JAX's Pallas kernel for TPU, and `paged_gpu.Triton`. In all, the values of a
row depend on its own tokens alone, whatever the other rows hold, whichever pages it has, and however long the others
are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from scope_jax.models.decoder.config import Attention, ModelConfig
from scope_jax.models.decoder.delta import KeptState, RowBounds, Streams, Taps, in_order, nothing_kept, one_each
from scope_jax.models.decoder.kinds import Heads, Params, mixer_of, plain_heads
from scope_jax.models.decoder.moe import keeping, picked_dtype, route
from scope_jax.models.decoder.transformer import block, embed, final_norm, layer_inputs
from scope_jax.models.kernels.attention import storable
from scope_jax.models.kernels.cascade import Carry, Tiles, begin
from scope_jax.models.kernels.writes import apart, put
from scope_jax.sharding.chips import LANES
from scope_jax.sharding.collectives import Shards

PAGE = 64  # tokens of a page, where pages are not the slots'
KERNEL_BYTES = 2**20  # keys and values that the TPU kernel reads at a time, twice: while it computes, the next arrive
KERNEL_QUERIES = 32
SMEM = 2**20  # bytes of scalar memory of a TPU core (v5e, v5p, v6e)

Layer = Any  # one layer's pages in the layout of an implementation
Pages = tuple[Layer, ...]


class Stateful(NamedTuple):
    """The cache of a model some of whose layers have states (or its shardings)."""

    pages: Any
    """Pages of the layers with attention."""
    kept: Any
    """delta.Kept of each of the others, by row."""


Before = tuple[Carry, Array] | None  # attention over a row's first pages, and their number; None: over none


@dataclass(frozen=True)
class Paging:
    """How the tokens of a row are divided into pages."""

    length: int = PAGE
    """Tokens of a page."""
    by_slot: bool = False
    """Every slot has one page of its own, which holds its longest row, windows or not; the rows that add one token each
    are the slots in order, and so are the pages."""

    def count(self, tokens: int) -> int:
        """Number of pages that hold `tokens` tokens."""
        return -(-tokens // self.length)

    def touched(self, tokens: int) -> int:
        """Most pages that `tokens` consecutive tokens of a row lie in, wherever they begin."""
        return self.count(tokens - 1) + 1

    def first_seen(self, position: int, window: int | None) -> int:
        """The column of a page table with the first token that a query at `position` sees."""
        return 0 if window is None else max(0, position - window + 1) // self.length

    def parts(self, ids: np.ndarray) -> list[bytes]:
        """A prompt's tokens by page."""
        return [ids[first : first + self.length].tobytes() for first in range(0, len(ids), self.length)]


SHARED = Paging()  # pages that any row may have


def tables_in_smem(rows: int, columns: int) -> int:
    """Bytes of scalar memory that the TPU kernel's page tables [rows, columns] and row lengths take, in tiles."""

    def up(count: int, size: int) -> int:
        return -(-count // size) * size

    tiled = up(rows, 8) if rows > 4 else 1 << (rows - 1).bit_length()
    return 4 * (tiled * up(columns, LANES) + up(rows, LANES) + up(rows + 1, LANES))


class PageGroup(NamedTuple):
    """Layers that share page numbers. window: the last positions that their queries see, None for all. shape: the place
    of their pages' shape among `page_shapes`."""

    window: int | None
    layers: tuple[int, ...]
    shape: int = 0


def page_shapes(cfg: ModelConfig) -> tuple[tuple[int, int], ...]:
    """(kv heads, head dim) of the keys, and of the values, that pages hold of a token, in the order of the layers."""
    mixers = (cfg.layers[number].attention for number in cfg.cache_layers)
    return tuple(dict.fromkeys((mixer.num_kv_heads, mixer.head_dim) for mixer in mixers))


def layer_groups(cfg: ModelConfig, paging: Paging = SHARED) -> tuple[PageGroup, ...]:
    """The model's layers that keep keys and values in groups of one window and one shape; those of a shape are of one
    size, the largest that divides its layers of every window. Pages of slots keep what windows have passed."""
    shapes = page_shapes(cfg)
    alike: dict[tuple[int, int | None], list[int]] = {}
    for number in cfg.cache_layers:
        mixer = cfg.layers[number].attention
        window = None if paging.by_slot else mixer.window
        alike.setdefault((shapes.index((mixer.num_kv_heads, mixer.head_dim)), window), []).append(number)
    sizes = [math.gcd(*(len(own) for (one, _), own in alike.items() if one == shape)) for shape in range(len(shapes))]
    return tuple(
        PageGroup(window, tuple(layers[first : first + sizes[shape]]), shape)
        for (shape, window), layers in alike.items()
        for first in range(0, len(layers), sizes[shape])
    )


def arrays(cfg: ModelConfig, paging: Paging = SHARED, picks: bool = False) -> tuple[int, ...]:
    """The shape of each of the `Pages`: for every shape as many as a group has layers. picks: of that with picked
    experts, too."""
    groups = layer_groups(cfg, paging)
    sizes = {group.shape: len(group.layers) for group in groups}
    found = tuple(shape for shape in range(len(sizes)) for _ in range(sizes[shape]))
    return (*found, groups[picks_group(cfg, paging)].shape) if picks else found


def picks_group(cfg: ModelConfig, paging: Paging = SHARED) -> int:
    """The number of the group whose pages hold the picked experts: one that gives no page of a row back."""
    return [group.window for group in layer_groups(cfg, paging)].index(None)


def picks_bytes(cfg: ModelConfig) -> int:
    """Bytes of the picked experts of a token."""
    return math.prod(cfg.picks) * picked_dtype(cfg.num_experts).itemsize


class Tables(NamedTuple):
    """Pages of the slots that decode: [S, g, b], one table for each group of layers, and `Where.tiles`."""

    table: Any
    tiles: Tiles | None


class Where(NamedTuple):
    """The tokens of a `feed`: row r adds counts_R[r] of at most Q tokens, from position starts_R[r] on.

    Leaves are int32 arrays, or their shardings. tiles: rows that add one token each and begin with the same pages, for
    implementations that can use it; None: every row goes through its pages alone. rows: of a model with states, where
    the rows begin and end; None: row r is the r-th of those that are kept.
    """

    table: Any  # page tables: [R, b], in a `feed` [R, g, b], one for each group of layers
    starts_R: Any
    counts_R: Any
    tiles: Tiles | None = None
    rows: RowBounds | None = None

    def seen(self, group: int, window: int | None, queries: int, paging: Paging = SHARED) -> Where:
        """One group's tables [R, b], from the first page on that a query sees; positions count from that page. With a
        window there are no tiles."""
        table_Rb = self.table[:, group]
        if window is None:
            return self._replace(table=table_Rb)
        first_R = jnp.maximum(self.starts_R - window + 1, 0) // paging.length
        columns = jnp.arange(min(table_Rb.shape[1], paging.touched(window + queries - 1)))
        at_Rc = jnp.minimum(first_R[:, None] + columns, table_Rb.shape[1] - 1)
        return self._replace(
            table=jnp.take_along_axis(table_Rb, at_Rc, axis=1),
            starts_R=self.starts_R - first_R * paging.length,
            tiles=None,
        )


@runtime_checkable
class Implementation(Protocol):
    """Layout of a layer's pages, and attention over them. paging: what a page holds. heads_axis: the arrays' dimension
    of the kv heads. cascade: whether it can use `Where.tiles`. heads: norm and rotation of queries and keys.
    table_bytes: the most that page tables and row lengths may take (see `tables_in_smem`), None without a limit."""

    paging: Paging
    heads_axis: int
    cascade: bool
    heads: Heads
    table_bytes: int | None

    def empty(self, pages: int, kv_heads: int, head_dim: int, dtype: Any) -> Layer: ...

    def write(self, layer: Layer, k_NKh: Array, v_NKh: Array, page_N: Array, column_N: Array) -> Layer:
        """The pages with N tokens written, no two in one place; a page number past the end writes nothing, and all of
        these are different, too."""
        ...

    def copy(self, layer: Layer, source_N: Array, target_N: Array, tokens_N: Array) -> Layer:
        """The pages after copies of whole pages, or of at least their first tokens_N tokens; a target past the end
        writes nothing, and these come last."""
        ...

    def attend(
        self, layer: Layer, q_RQHh: Array, where: Where, window: int | None, sinks_H: Array | None = None
    ) -> Array:
        """softmax(q kᵀ / √h) v, [R, Q, H, h]: query i of row r is at position starts_R[r] + i and sees the positions up
        to its own, with a window the last `window` of them. sinks_H: see `models.kernels.attention`."""
        ...


def copy_pages(layer: Layer, source_N: Array, target_N: Array, tokens_N: Array) -> Layer:
    """`Implementation.copy` of whole pages, of arrays whose first dimension is theirs."""
    return jax.tree.map(lambda x: put(x, target_N, x[source_N]), layer)


def by_kv_head(q_RQHh: Array, num_kv: int) -> Array:
    """[R, K, m, h]: the queries of the heads of each kv head, by head, then by query."""
    rows, queries, num_heads, head_dim = q_RQHh.shape
    grouped = (rows, queries, num_kv, num_heads // num_kv, head_dim)
    return q_RQHh.reshape(grouped).transpose(0, 2, 3, 1, 4).reshape(rows, num_kv, -1, head_dim)


def by_query(out_RKmh: Array, q_RQHh: Array) -> Array:
    """The opposite, in shape and dtype of the queries."""
    rows, num_kv, _, head_dim = out_RKmh.shape
    out = out_RKmh.reshape(rows, num_kv, -1, q_RQHh.shape[1], head_dim).transpose(0, 3, 1, 2, 4)
    return out.reshape(q_RQHh.shape).astype(q_RQHh.dtype)


# ------------------------------------------------------------------------------------------------------------ XLA loop
class LoopPages(NamedTuple):
    """Both products of attention read contiguous memory in this layout."""

    k_PKht: Any
    v_PKth: Any


class Loop:
    """Goes through the pages of all rows together with a running maximum (Milakov & Gimelshein 2018).

    A page that is masked for a query adds exact zeros; before the first visible page its masked scores count as ones,
    which the rescaling by exp(MASKED - maximum) = 0 removes exactly.
    """

    paging = SHARED
    heads_axis = 1
    cascade = True
    heads = staticmethod(plain_heads)
    table_bytes: int | None = None

    def empty(self, pages: int, kv_heads: int, head_dim: int, dtype: Any) -> LoopPages:
        shape = (pages, kv_heads)
        return LoopPages(jnp.zeros((*shape, head_dim, PAGE), dtype), jnp.zeros((*shape, PAGE, head_dim), dtype))

    def write(self, layer: LoopPages, k_NKh: Array, v_NKh: Array, page_N: Array, column_N: Array) -> LoopPages:
        k_NKh, v_NKh = k_NKh.astype(layer.k_PKht.dtype), v_NKh.astype(layer.v_PKth.dtype)
        k_PKht = layer.k_PKht.at[page_N, :, :, column_N].set(k_NKh, mode="drop", unique_indices=True)
        v_PKth = layer.v_PKth.at[page_N, :, column_N].set(v_NKh, mode="drop", unique_indices=True)
        return LoopPages(k_PKht, v_PKth)

    copy = staticmethod(copy_pages)

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
            return carry.with_tokens(q_RKmh, layer.k_PKht[page_R], layer.v_PKth[page_R], seen_RQt)

        columns = where.table.shape[1]
        lowest = jnp.min(jnp.where(ends_R > 0, first_R, columns))
        return lax.fori_loop(lowest, (jnp.max(ends_R) + PAGE - 1) // PAGE, add, carry)


# ---------------------------------------------------------------------------------------------------------- TPU kernel
class Ragged:
    """`jax.experimental.pallas.ops.tpu.ragged_paged_attention`; keys and values of a head lie next to each other,
    [P, PAGE, 2K, h]. The kernel has no sinks, nor does it give the sums to which they could be added."""

    paging = SHARED
    heads_axis = 2
    cascade = False  # the kernel does not give the sums that a row's own pages would begin with
    table_bytes: int | None = SMEM - 2**12  # the rest is for scalars of the kernel

    @staticmethod
    def heads(
        mixer: Attention,
        eps: float,
        scales: tuple[Array, ...] | None,
        q_BTn: Array,
        k_BTn: Array | None,
        positions_BT: Array,
    ) -> tuple[Array, Array | None]:
        """`plain_heads`, while rows decode by a kernel."""
        from scope_jax.models.kernels.heads_tpu import norm_and_rotate

        rope = mixer.rope
        whole = rope is not None and (rope.share == 1 or rope.kind == "proportional")
        if q_BTn.shape[1] > 1 or mixer.head_dim % LANES or rope is None or not whole or k_BTn is None:
            return plain_heads(mixer, eps, scales, q_BTn, k_BTn, positions_BT)
        flat = q_BTn[:, 0], k_BTn[:, 0], scales, positions_BT[:, 0], rope, mixer.head_dim, eps
        q_BHh, k_BKh = norm_and_rotate(*flat)
        return q_BHh[:, None], k_BKh[:, None]

    def empty(self, pages: int, kv_heads: int, head_dim: int, dtype: Any) -> Array:
        return jnp.zeros((pages, PAGE, 2 * kv_heads, head_dim), dtype)

    def write(self, layer: Array, k_NKh: Array, v_NKh: Array, page_N: Array, column_N: Array) -> Array:
        both_NCh = jnp.stack([k_NKh, v_NKh], axis=2).reshape(k_NKh.shape[0], -1, k_NKh.shape[2])
        return layer.at[page_N, column_N].set(both_NCh.astype(layer.dtype), mode="drop", unique_indices=True)

    copy = staticmethod(copy_pages)

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
    rows, queries = ids_RQ.shape
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
                out, new = one_each(*given) if where.rows is None else in_order(*given, where.rows)
                states.append(new)
                return out

            x_RQD = block(cfg, layer, w, x_RQD, position_RQ, recur, shards, router=router)
            continue

        source = layer.mixer.source
        home = homes[number if source is None else source]

        def attend(
            q: Array,
            k: Array | None,
            v: Array | None,
            sinks_H: Array | None = None,
            window=layer.mixer.window,
            home=home,
        ) -> Array:
            place, page_N, seen = home
            if k is not None and v is not None:
                flat = (rows * queries, *k.shape[2:])
                new = storable(k.reshape(flat), v.reshape(flat))
                layers[place] = how.write(layers[place], *new, page_N, column_N)
            return how.attend(layers[place], q, seen, window, sinks_H)

        x_RQD = block(cfg, layer, w, x_RQD, position_RQ, attend, shards, heads=how.heads, router=router, input_BTp=own)
    if picked:
        _, page_N, _ = homes[layer_groups(cfg, paging)[picks_group(cfg, paging)].layers[0]]
        layers[-1] = layers[-1].at[page_N, column_N].set(jnp.stack(picked, axis=1), mode="drop", unique_indices=True)
    after: Pages | Stateful = tuple(layers)
    return final_norm(cfg, params, x_RQD), Stateful(after, tuple(states)) if kept else after
