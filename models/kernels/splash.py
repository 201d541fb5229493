"""Splash attention (sparse flash attention) as Pallas kernels for TPU: scores stay on chip; blocks of tokens that do
not see each other are neither read nor computed.

A block of queries sees few blocks of keys: those of its own texts, and of the beginning that they share with others.
Lists of them, made from `masks.live_blocks` on the device, tell the kernels what to fetch; within a block the mask
comes from the ends of its keys. The softmax is computed block by block, as in FlashAttention-2 (Dao 2023). Memory grows
with T, not T²: Qwen3-8B's heads at T = 10,240 need 0.18 GiB of temporaries for forward and backward pass, versus 18.9
with materialised score matrices. The backward pass has two kernels: one kernel would have to keep a partial dq for
every block of keys.

A sink z of a head (`models.kernels.attention`) is where the sum of its softmax begins. All that the backward pass needs
of it is in the normaliser n: dz = Σ over queries of −exp(z − n) · Σ ct · o, as its value is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from scope_jax.models.kernels.masks import KEPT, MASKED, live_blocks, visible
from scope_jax.sharding.chips import LANES

BLOCK = 512  # queries and keys of one tile; 1,024 is no faster, 2,048 exceeds the vector memory of v5e and v5p
MOST_BLOCKS = 64  # of a row with this size, as scalar memory holds the lists of all pairs
WIDE_BLOCK = 1024  # of longer rows


class Lists(NamedTuple):
    """Which blocks are computed together, for one row after another. Flat: scalar memory pads axes."""

    keys: Int[Array, " BIJ"]
    """For each block of queries the blocks of keys that it sees, in order; then the others."""
    keys_count: Int[Array, " BI"]
    """How many it sees."""
    queries: Int[Array, " BJI"]
    """For each block of keys the blocks of queries that see it; then the others."""
    queries_count: Int[Array, " BJ"]


class Tokens(NamedTuple):
    """What the mask needs of each token of a row."""

    ends: Int[Array, "B 1 T"]
    positions: Int[Array, "B 1 T"] | None
    """None without a window."""


class Shape(NamedTuple):
    """Size and number of the blocks of a row; the window; whether Pallas's interpreter runs the kernels."""

    block: int
    blocks: int
    window: int | None
    interpret: bool


def blocks_of(length: int) -> tuple[int, int]:
    """(block size, padded length): the fewest equal blocks of at most BLOCK tokens that hold `length`; of at most
    WIDE_BLOCK where more than MOST_BLOCKS would be needed."""
    largest = BLOCK if length <= BLOCK * MOST_BLOCKS else WIDE_BLOCK
    count = math.ceil(length / largest)
    block = math.ceil(length / count / LANES) * LANES
    return block, count * block


def make_attend(
    ends_BT: Int[Array, "B T"], positions_BT: Int[Array, "B T"] | None, window: int | None, interpret: bool = False
) -> Callable[..., jax.Array]:
    """attend(q_BTHh, k_BTKh, v_BTKh, sinks_H=None) -> o_BTHh, softmax(q kᵀ / √h) v over the tokens that
    `masks.visible` allows; query head i uses kv head i // (H/K).

    Works for any T: rows are padded to whole blocks. Keys and values are not repeated for the heads that share them.
    The queries are divided by √h in float32 before the kernels, which do not scale. interpret: run the kernels as
    ordinary XLA operations, slowly and on any platform, for tests.
    """
    length = ends_BT.shape[1]
    block, padded = blocks_of(length)
    tail_BT = jnp.broadcast_to(jnp.arange(length + 1, padded + 1, dtype=jnp.int32), (len(ends_BT), padded - length))
    ends_BT = jnp.concatenate([ends_BT.astype(jnp.int32), tail_BT], axis=1)
    if window is None:
        positions_BT = positions_B1T = None
    else:
        assert positions_BT is not None
        positions_BT = jnp.pad(positions_BT.astype(jnp.int32), ((0, 0), (0, padded - length)))
        positions_B1T = positions_BT[:, None]
    live_BIJ = live_blocks(ends_BT, positions_BT, window, block, block)
    lists = Lists(*_listed(live_BIJ), *_listed(live_BIJ.swapaxes(1, 2)))
    tokens, shape = Tokens(ends_BT[:, None], positions_B1T), Shape(block, padded // block, window, interpret)

    def attend(q_BTHh: jax.Array, k_BTKh: jax.Array, v_BTKh: jax.Array, sinks_H: jax.Array | None = None) -> jax.Array:
        def heads_first(x_BTHh: jax.Array) -> jax.Array:
            return jnp.pad(x_BTHh.transpose(0, 2, 1, 3), ((0, 0), (0, 0), (0, padded - length), (0, 0)))

        scaled_BTHh = (q_BTHh.astype(jnp.float32) / math.sqrt(q_BTHh.shape[-1])).astype(q_BTHh.dtype)
        sinks_H = None if sinks_H is None else sinks_H.astype(jnp.float32)
        o_BHTh: Any = _attend(*map(heads_first, (scaled_BTHh, k_BTKh, v_BTKh)), sinks_H, lists, tokens, shape)
        return o_BHTh[:, :, :length].transpose(0, 2, 1, 3)

    return attend


def _listed(live_BIJ: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For each I the indices J, the live ones first, and their number; flat."""
    order_BIJ = jnp.argsort(~live_BIJ, axis=-1, stable=True)
    return order_BIJ.astype(jnp.int32).ravel(), live_BIJ.sum(-1, dtype=jnp.int32).ravel()


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attend(
    q_BHTh: Float[Array, "B H T h"],
    k_BKTh: Float[Array, "B K T h"],
    v_BKTh: Float[Array, "B K T h"],
    sinks_H: Float[Array, " H"] | None,
    lists: Lists,
    tokens: Tokens,
    shape: Shape,
) -> Float[Array, "B H T h"]:
    return _forward(q_BHTh, k_BKTh, v_BKTh, sinks_H, lists, tokens, shape)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks_H: jax.Array | None, lists: Lists, tokens: Tokens, shape: Shape
) -> tuple[jax.Array, tuple[Any, ...]]:
    rows, heads, length, head_dim = q.shape
    grid = _Grid(shape, heads, heads // k.shape[1], by_keys=False)
    normaliser = jax.ShapeDtypeStruct((rows, heads, 1, length), jnp.float32)
    sinks = [] if sinks_H is None else [(jnp.broadcast_to(sinks_H[:, None, None], (heads, 1, LANES)), "sink")]
    out_BHTh, normaliser_BH1T = grid.call(
        _forward_kernel,
        (lists.keys, lists.keys_count),
        tokens,
        [(q, "query"), (k, "key"), (v, "key"), *sinks],
        [(q, "query"), (normaliser, "number")],
        [LANES, LANES, head_dim],
        products=2,
    )
    out_BHTh, normaliser_BH1T = (checkpoint_name(x, KEPT) for x in (out_BHTh, normaliser_BH1T))
    return out_BHTh, (q, k, v, sinks_H, lists, tokens, out_BHTh, normaliser_BH1T)


def _backward(shape: Shape, saved: tuple[Any, ...], ct: jax.Array) -> tuple[Any, ...]:
    q, k, v, sinks_H, lists, tokens, out, normaliser_BH1T = saved
    mean_BH1T = jnp.sum(ct.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)[:, :, None]
    heads, kv_heads, head_dim = q.shape[1], k.shape[1], q.shape[3]
    arrays = [(q, "query"), (k, "key"), (v, "key"), (ct, "query"), (normaliser_BH1T, "number"), (mean_BH1T, "number")]
    grid = _Grid(shape, heads, heads // kv_heads, by_keys=False)
    (dq,) = grid.call(
        _dq_kernel, (lists.keys, lists.keys_count), tokens, arrays, [(q, "query")], [head_dim], products=3
    )
    grid = _Grid(shape, kv_heads, heads // kv_heads, by_keys=True)
    dk, dv = grid.call(
        _dkv_kernel,
        (lists.queries, lists.queries_count),
        tokens,
        arrays,
        [(k, "key"), (v, "key")],
        [head_dim, head_dim],
        products=4,
    )
    dsinks_H = None
    if sinks_H is not None:
        dsinks_H = -jnp.sum(jnp.exp(sinks_H[:, None, None] - normaliser_BH1T) * mean_BH1T, axis=(0, 2, 3))
    return dq, dk, dv, dsinks_H, None, None


_attend.defvjp(_forward, _backward)


# -------------------------------------------------------------------------------------------------------------- blocks
class _Grid:
    """The grid of a kernel, and the block of each array that its indices name.

    By queries: rows, heads, blocks of queries, blocks of keys in their lists. By keys: rows, kv heads, blocks of keys,
    the query heads of a kv head × blocks of queries in their lists. An index behind the end of a list names its last
    block, which is not fetched again, and computes nothing.
    """

    def __init__(self, shape: Shape, heads: int, group: int, by_keys: bool) -> None:
        self.shape, self.heads, self.group, self.by_keys = shape, heads, group, by_keys

    def others(self, n: Any) -> tuple[Any, Any]:
        """(query head of the kv head, place in the list) of the last index."""
        blocks = self.shape.blocks
        return (lax.div(n, blocks), lax.rem(n, blocks)) if self.by_keys else (0, n)

    def other(self, b: Any, here: Any, place: Any, list_ref: Any, count_ref: Any) -> Any:
        """The block at a place in the list of block `here` of row b."""
        at = b * self.shape.blocks + here
        return list_ref[at * self.shape.blocks + jnp.minimum(place, count_ref[at] - 1)]

    def spec(self, kind: str, head_dim: int) -> pl.BlockSpec:
        """Blocks of an array by kind: "query" [B, H, T, h], "key" [B, K, T, h], "number" [B, H, 1, T] of each query and
        head, "as query" and "as key" [B, 1, T] of each token, "sink" [H, 1, LANES]."""
        if kind == "sink":
            return pl.BlockSpec((None, 1, LANES), lambda b, h, *_: (h, 0, 0))
        size, of_query = self.shape.block, kind in ("query", "number", "as query")

        def where(b: Any, h: Any, here: Any, n: Any, list_ref: Any, count_ref: Any) -> tuple[Any, ...]:
            member, place = self.others(n)
            block = here if of_query != self.by_keys else self.other(b, here, place, list_ref, count_ref)
            if self.by_keys:
                head = h * self.group + member if of_query else h
            else:
                head = h if of_query else lax.div(h, self.group)
            if kind.startswith("as"):
                return b, 0, block
            return (b, head, 0, block) if kind == "number" else (b, head, block, 0)

        if kind.startswith("as"):
            return pl.BlockSpec((None, 1, size), where)
        return pl.BlockSpec((None, None, 1, size) if kind == "number" else (None, None, size, head_dim), where)

    def call(
        self,
        kernel: Any,
        lists: tuple[jax.Array, jax.Array],
        tokens: Tokens,
        arrays: list[tuple[jax.Array, str]],
        outputs: list[tuple[Any, str]],
        scratch: list[int],
        products: int,
    ) -> Any:
        """The kernel's outputs, which have the shapes and dtypes of `outputs`. scratch: columns of float32 arrays with
        a row for each token of the block. products: of matrices in a pair of blocks, for the estimate of its cost."""
        shape, rows, head_dim = self.shape, len(tokens.ends), arrays[0][0].shape[3]
        masking = [(tokens.ends, "as key")]
        if tokens.positions is not None:
            masking += [(tokens.positions, "as query"), (tokens.positions, "as key")]
        inputs = [*masking, *arrays]
        last = shape.blocks * (self.group if self.by_keys else 1)
        pairs = rows * self.heads * (self.group if self.by_keys else 1) * shape.blocks * (shape.blocks + 1) // 2
        return pl.pallas_call(
            partial(kernel, grid=self, windowed=len(masking) > 1),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=(rows, self.heads, shape.blocks, last),
                in_specs=[self.spec(kind, head_dim) for _, kind in inputs],
                out_specs=[self.spec(kind, head_dim) for _, kind in outputs],
                scratch_shapes=[pltpu.VMEM((shape.block, columns), jnp.float32) for columns in scratch],
            ),
            out_shape=[jax.ShapeDtypeStruct(like.shape, like.dtype) for like, _ in outputs],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            ),
            cost_estimate=pl.CostEstimate(
                flops=2 * products * pairs * shape.block**2 * head_dim,
                bytes_accessed=sum(x.nbytes for x, _ in arrays),
                transcendentals=pairs * shape.block**2,
            ),
            interpret=shape.interpret,
            name=f"splash{kernel.__name__.removesuffix('_kernel')}",
        )(*lists, *(x for x, _ in inputs))


class _Step:
    """One step of a kernel's grid: the blocks that meet in it, whether they do, and which of their tokens."""

    def __init__(self, grid: _Grid, list_ref: Any, count_ref: Any, masking: tuple[Any, ...]) -> None:
        self.grid, self.masking = grid, masking
        b, here, n = (pl.program_id(axis) for axis in (0, 2, 3))
        _, place = grid.others(n)
        other = grid.other(b, here, place, list_ref, count_ref)
        self.query, self.key = (other, here) if grid.by_keys else (here, other)
        self.first, self.last = n == 0, n == pl.num_programs(3) - 1
        self.live = place < count_ref[b * grid.shape.blocks + here]

    def masked(self, scores: jax.Array) -> jax.Array:
        """MASKED where a query does not see a key: [queries, keys], by keys [keys, queries]."""
        of_query, of_key = (0, 1) if not self.grid.by_keys else (1, 0)
        size, window = self.grid.shape.block, self.grid.shape.window
        t = self.query * size + lax.broadcasted_iota(jnp.int32, scores.shape, of_query)
        u = self.key * size + lax.broadcasted_iota(jnp.int32, scores.shape, of_key)
        ends, *positions = (ref[...] for ref in self.masking)
        if self.grid.by_keys:
            ends, positions = _column(ends), [positions[0], _column(positions[1])] if positions else []
        elif positions:
            positions = [_column(positions[0]), positions[1]]
        return jnp.where(visible(t, u, ends, window, *positions), scores, MASKED)


def _column(row: jax.Array) -> jax.Array:
    """[n, 1] from [1, n], n being a multiple of LANES."""
    return jnp.broadcast_to(row, (LANES, row.shape[1])).T[:, :1]


def _row(columns: jax.Array) -> jax.Array:
    """[1, n] from [n, LANES] of equal columns."""
    return columns.T[:1]


def _product(a: jax.Array, b: jax.Array, of_a: int, of_b: int) -> jax.Array:
    """Σ over these axes, in float32."""
    return lax.dot_general(a, b, (((of_a,), (of_b,)), ((), ())), preferred_element_type=jnp.float32)


# ------------------------------------------------------------------------------------------------------------- kernels
def _forward_kernel(list_ref: Any, count_ref: Any, *refs: Any, grid: _Grid, windowed: bool) -> None:
    masking, others = _split(refs, windowed)
    q_ref, k_ref, v_ref, *sink_ref, out_ref, normaliser_ref, top_ref, total_ref, sum_ref = others
    step = _Step(grid, list_ref, count_ref, masking)

    @pl.when(step.first)
    def _() -> None:
        top_ref[...] = jnp.full_like(top_ref, MASKED)
        total_ref[...] = jnp.zeros_like(total_ref)
        if sink_ref:
            top_ref[...] = jnp.broadcast_to(sink_ref[0][...], top_ref.shape)
            total_ref[...] = jnp.ones_like(total_ref)
        sum_ref[...] = jnp.zeros_like(sum_ref)

    @pl.when(step.live)
    def _() -> None:
        scores = step.masked(_product(q_ref[...], k_ref[...], 1, 1))
        top = top_ref[...]
        higher = jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
        # Where nothing was visible yet, all of it is multiplied by exp(MASKED − a score) = 0 later.
        weights, kept = jnp.exp(scores - higher[:, :1]), jnp.exp(top - higher)
        top_ref[...] = higher
        total_ref[...] = total_ref[...] * kept + jnp.sum(weights, axis=1, keepdims=True)
        sum_ref[...] = sum_ref[...] * kept[:, :1] + _product(weights.astype(v_ref.dtype), v_ref[...], 1, 0)

    @pl.when(step.last)
    def _() -> None:
        out_ref[...] = (sum_ref[...] / total_ref[:, :1]).astype(out_ref.dtype)
        normaliser_ref[...] = _row(top_ref[...] + jnp.log(total_ref[...]))


def _dq_kernel(list_ref: Any, count_ref: Any, *refs: Any, grid: _Grid, windowed: bool) -> None:
    masking, (q_ref, k_ref, v_ref, ct_ref, normaliser_ref, mean_ref, dq_ref, sum_ref) = _split(refs, windowed)
    step = _Step(grid, list_ref, count_ref, masking)

    @pl.when(step.first)
    def _() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)

    @pl.when(step.live)
    def _() -> None:
        scores = step.masked(_product(q_ref[...], k_ref[...], 1, 1))
        weights = jnp.exp(scores - _column(normaliser_ref[...]))
        slopes = weights * (_product(ct_ref[...], v_ref[...], 1, 1) - _column(mean_ref[...]))
        sum_ref[...] += _product(slopes.astype(k_ref.dtype), k_ref[...], 1, 0)

    @pl.when(step.last)
    def _() -> None:
        dq_ref[...] = sum_ref[...].astype(dq_ref.dtype)


def _dkv_kernel(list_ref: Any, count_ref: Any, *refs: Any, grid: _Grid, windowed: bool) -> None:
    masking, others = _split(refs, windowed)
    q_ref, k_ref, v_ref, ct_ref, normaliser_ref, mean_ref, dk_ref, dv_ref, dk_sum_ref, dv_sum_ref = others
    step = _Step(grid, list_ref, count_ref, masking)

    @pl.when(step.first)
    def _() -> None:
        dk_sum_ref[...] = jnp.zeros_like(dk_sum_ref)
        dv_sum_ref[...] = jnp.zeros_like(dv_sum_ref)

    @pl.when(step.live)
    def _() -> None:
        scores = step.masked(_product(k_ref[...], q_ref[...], 1, 1))
        weights = jnp.exp(scores - normaliser_ref[...])
        slopes = weights * (_product(v_ref[...], ct_ref[...], 1, 1) - mean_ref[...])
        dv_sum_ref[...] += _product(weights.astype(ct_ref.dtype), ct_ref[...], 1, 0)
        dk_sum_ref[...] += _product(slopes.astype(q_ref.dtype), q_ref[...], 1, 0)

    @pl.when(step.last)
    def _() -> None:
        dk_ref[...] = dk_sum_ref[...].astype(dk_ref.dtype)
        dv_ref[...] = dv_sum_ref[...].astype(dv_ref.dtype)


def _split(refs: tuple[Any, ...], windowed: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(ends, and with a window the positions of queries and keys; the kernel's own arrays)."""
    count = 3 if windowed else 1
    return refs[:count], refs[count:]
