"""How a decoder's keys and values lie in pages, and what attention over them is asked for.

A page holds consecutive tokens of one row (`Paging`), for all heads of the layers of a group. These see one window, and
their heads have one number and size, the pages' shape. All groups of one shape have as many layers, so that a page
takes the same memory whichever of them uses it: layer j of each keeps its keys and values in array j of the shape's. A
model without windows has one group. A row has a page table for each group, with its pages in order: token t of pages of
n tokens is in column t % n of page table[t // n]. Several rows may list the same page, as long as none of them writes
to it. Entries of a table that are unused, or that a window has passed, are 0: that page belongs to no row, unless pages
are by slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.delta import RowBounds, TokenStep
from scope_jax.models.decoder.kinds import Heads, HeadTransform, plain_heads
from scope_jax.models.decoder.moe import picked_dtype
from scope_jax.models.kernels.cascade import Tiles
from scope_jax.models.kernels.writes import put
from scope_jax.sharding.chips import LANES

PAGE = 64  # tokens of a page, where pages are not the slots'

Layer = Any  # one layer's pages in the layout of an implementation
Pages = tuple[Layer, ...]


class Stateful(NamedTuple):
    """The cache of a model some of whose layers have states (or its shardings)."""

    pages: Any
    """Pages of the layers with attention."""
    kept: Any
    """delta.Kept of each of the others, by row."""


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
    table_bytes: the most that page tables and row lengths may take (see `tables_in_smem`), None without a limit.
    by_head: whether they have a row for each kv head of a row.
    token_step(key_dim, value_dim): the kernel for a token of layers with states of this size (`delta.one_each`), None
    if there is none."""

    paging: Paging
    heads_axis: int
    cascade: bool
    heads: Heads
    table_bytes: int | None
    by_head: bool

    def token_step(self, key_dim: int, value_dim: int) -> TokenStep | None: ...

    def empty(self, pages: int, kv_heads: int, head_dim: int, dtype: Any) -> Layer: ...

    def write(self, layer: Layer, k_NKh: Array, v_NKh: Array, page_N: Array, column_N: Array) -> Layer:
        """The pages with N tokens written as `models.kernels.attention.storable` leaves them, no two in one place; a
        page number past the end writes nothing, and all of these are different, too."""
        ...

    def place(
        self,
        layer: Layer,
        page_N: Array,
        column_N: Array,
        how: HeadTransform,
        positions_RQ: Array,
        q_RQn: Array,
        k_RQn: Array,
        v_RQKh: Array,
    ) -> tuple[Array, Layer]:
        """`heads`, and the pages with what it makes of keys and values: (q_RQHh, pages)."""
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


class BaseImplementation:
    """An `Implementation` without kernels, but for layout and attention."""

    table_bytes: int | None = None
    by_head = False
    heads: Heads = staticmethod(plain_heads)
    copy = staticmethod(copy_pages)

    def token_step(self, key_dim: int, value_dim: int) -> TokenStep | None:
        del key_dim, value_dim

    def place(
        self: Any,
        layer: Layer,
        page_N: Array,
        column_N: Array,
        how: HeadTransform,
        positions_RQ: Array,
        q_RQn: Array,
        k_RQn: Array,
        v_RQKh: Array,
    ) -> tuple[Array, Layer]:
        q_RQHh, k_RQKh, v_RQKh = self.heads(how, positions_RQ, q_RQn, k_RQn, v_RQKh)
        k_NKh, v_NKh = (x.reshape(-1, *x.shape[2:]) for x in (k_RQKh, v_RQKh))
        return q_RQHh, self.write(layer, k_NKh, v_NKh, page_N, column_N)


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
