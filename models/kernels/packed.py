"""Attention over rows of texts in kernels that know no mask, only parts of rows: the texts, or where they share
beginnings (`models.kernels.masks`) the nodes of their trees.

One causal call computes what the tokens of a node see of it. With shared beginnings, one more for each level of them
computes what all tokens behind a node see of it, which is all of it: its keys with the queries behind it. The results
are merged by the logs of their sums, as in FlashAttention-2 (Dao 2023); the backward pass gives each call the
normaliser and the result of the whole softmax. A sink (`models.kernels.attention`) is one more such part, whose result
is 0.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from scope_jax.models.kernels import cudnn
from scope_jax.models.kernels.cudnn import KernelCall, Spans
from scope_jax.models.kernels.masks import KEPT, MASKED


class Packing(NamedTuple):
    """What every row of a batch holds at most; static, as programs depend on it."""

    nodes: int
    """Texts, or nodes of their trees; 1: a row is one text and padding."""
    depth: int
    """Shared beginnings that a token continues, its own node not counted; 0: no texts share any."""


class RowPart(NamedTuple):
    """A call, and which tokens have something of it; None: all."""

    call: KernelCall
    place_BT: jax.Array | None
    """Of a token in `Spans`, flat."""
    queries_BT: jax.Array | None
    keys_BT: jax.Array | None


def parts_of(
    packing: Packing, ends_BT: Int[Array, "B T"], positions_BT: Int[Array, "B T"], window: int | None
) -> list[RowPart]:
    """The calls for rows that hold no more than `packing` says. A window is for rows without shared beginnings."""
    if packing.nodes == 1:
        return [RowPart(KernelCall(True, window, None), None, None, None)]
    starts_BS, stops_BS, ends_BS = _nodes(packing.nodes, ends_BT, positions_BT)
    nodes = starts_BS, stops_BS
    parts = [_part(True, window, nodes, nodes, ends_BT.shape[1])]
    inner_BS = ends_BS > stops_BS
    above_BSS = (stops_BS[:, None] <= starts_BS[:, :, None]) & (starts_BS[:, :, None] < ends_BS[:, None])
    level_BS = (above_BSS & inner_BS[:, None]).sum(-1)
    for level in range(packing.depth):
        here_BS = inner_BS & (level_BS == level)
        starts, stops, ends = (jnp.where(here_BS, x_BS, 0) for x_BS in (starts_BS, stops_BS, ends_BS))
        parts.append(_part(False, None, (stops, ends), (starts, stops), ends_BT.shape[1]))
    return parts


def _nodes(count: int, ends_BT: jax.Array, positions_BT: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(first token, place behind the last one, place behind the last that continues it) of the nodes of each row, in
    order; 0 of those that it lacks. Padding, and a text of one token, is none."""
    rows, length = ends_BT.shape
    here_T = jnp.arange(length)
    alone_BT = (positions_BT == 0) & (ends_BT == here_T + 1)
    first_B1 = jnp.ones((rows, 1), bool)
    goes_on_BT = (positions_BT[:, 1:] == positions_BT[:, :-1] + 1) & (ends_BT[:, 1:] == ends_BT[:, :-1])
    new_BT = alone_BT | jnp.concatenate([first_B1, ~goes_on_BT], axis=1)
    behind_BT = lax.cummin(jnp.where(new_BT, here_T, length), axis=1, reverse=True)
    behind_BT = jnp.concatenate([behind_BT[:, 1:], jnp.full((rows, 1), length)], axis=1)
    starts_BS = jnp.sort(jnp.where(new_BT & ~alone_BT, here_T, length), axis=1)[:, :count]
    there_BS, at_BS = starts_BS < length, jnp.minimum(starts_BS, length - 1)
    stops_BS, ends_BS = (jnp.take_along_axis(x_BT, at_BS, axis=1) for x_BT in (behind_BT, ends_BT))
    starts_BS, stops_BS, ends_BS = (jnp.where(there_BS, x_BS, 0) for x_BS in (starts_BS, stops_BS, ends_BS))
    return starts_BS, stops_BS, ends_BS


def _part(
    causal: bool,
    window: int | None,
    queries: tuple[jax.Array, jax.Array],
    keys: tuple[jax.Array, jax.Array],
    length: int,
) -> RowPart:
    """The call for these parts of rows, (starts, stops) of their queries and keys; those without tokens have stops that
    equal their starts."""
    (q_starts_BS, q_stops_BS), (k_starts_BS, k_stops_BS) = queries, keys
    rows, here_T = len(q_starts_BS), jnp.arange(length)
    there_N = (q_stops_BS > q_starts_BS).ravel()
    order_N = jnp.argsort(~there_N, stable=True)
    rank_BS = jnp.argsort(order_N).reshape(q_starts_BS.shape)
    behind = rows * length

    def moved(x_BS: jax.Array, empty: int) -> jax.Array:
        return jnp.where(there_N, x_BS.ravel(), empty)[order_N].reshape(x_BS.shape).astype(jnp.int32)

    row_B1 = jnp.arange(rows)[:, None] * length
    lengths = moved(q_stops_BS - q_starts_BS, 0), moved(k_stops_BS - k_starts_BS, 0)
    spans = Spans(*lengths, moved(row_B1 + q_starts_BS, behind), moved(row_B1 + k_starts_BS, behind))
    in_q_BTS = (q_starts_BS[:, None] <= here_T[:, None]) & (here_T[:, None] < q_stops_BS[:, None])
    in_k_BTS = (k_starts_BS[:, None] <= here_T[:, None]) & (here_T[:, None] < k_stops_BS[:, None])
    place_BT = jnp.sum(jnp.where(in_q_BTS, rank_BS[:, None] * length + here_T[:, None] - q_starts_BS[:, None], 0), -1)
    return RowPart(KernelCall(causal, window, spans), place_BT, in_q_BTS.any(-1), in_k_BTS.any(-1))


def attend_parts(
    parts: list[RowPart],
    q_BTHh: Float[Array, "B T H h"],
    k_BTKh: Float[Array, "B T K h"],
    v_BTKh: Float[Array, "B T K h"],
    sinks_H: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H h"]:
    """softmax(q kᵀ / √h) v over these parts; 0 for tokens in none of them."""
    causal = tuple((part.call.causal, part.call.window) for part in parts)
    arrays = [(part.call.spans, (part.place_BT, part.queries_BT, part.keys_BT)) for part in parts]
    sinks_H = None if sinks_H is None else sinks_H.astype(_wide(q_BTHh))
    o_BTHh: Any = _attend(q_BTHh, k_BTKh, v_BTKh, sinks_H, arrays, causal)
    return o_BTHh


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, sinks_H: Any, arrays: Any, causal: Any) -> jax.Array:
    return _forward(q, k, v, sinks_H, arrays, causal)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks_H: jax.Array | None, arrays: Any, causal: Any
) -> tuple[jax.Array, tuple[Any, ...]]:
    found = []
    for part in _parts(arrays, causal):
        out_BTHh, sums = cudnn.forward(part.call, q, k, v)
        found.append(_of_tokens(part, out_BTHh, sums))
    out_BTHh, normaliser_BHT = found[0]
    if len(found) > 1 or sinks_H is not None:
        more = [] if sinks_H is None else [jnp.broadcast_to(sinks_H[:, None], normaliser_BHT.shape)]
        normaliser_BHT = jax.nn.logsumexp(jnp.stack([*(own for _, own in found), *more]), axis=0)
        shares = (jnp.exp(own - normaliser_BHT).swapaxes(1, 2)[..., None] for _, own in found)
        weighted = [share * out.astype(_wide(q)) for share, (out, _) in zip(shares, found, strict=True)]
        out_BTHh = jnp.sum(jnp.stack(weighted), axis=0)
    out_BTHh, normaliser_BHT = (checkpoint_name(x, KEPT) for x in (out_BTHh.astype(q.dtype), normaliser_BHT))
    return out_BTHh, (q, k, v, sinks_H, arrays, out_BTHh, normaliser_BHT)


def _backward(causal: Any, saved: tuple[Any, ...], ct: jax.Array) -> tuple[Any, ...]:
    q, k, v, sinks_H, arrays, out, normaliser_BHT = saved
    sums: list[Any] = [0.0] * 3
    parts = _parts(arrays, causal)
    for part in parts:
        found = cudnn.backward(part.call, q, k, v, _of_spans(part, normaliser_BHT), out, ct)
        seen = (part.queries_BT, part.keys_BT, part.keys_BT)
        found = [x if on is None else jnp.where(on[..., None, None], x, 0) for x, on in zip(found, seen, strict=True)]
        sums = found if len(parts) == 1 else [total + x.astype(_wide(q)) for total, x in zip(sums, found, strict=True)]
    dq, dk, dv = (total.astype(x.dtype) for total, x in zip(sums, (q, k, v), strict=True))
    dsinks_H = None
    if sinks_H is not None:  # its value is 0, so that of ds = p (dp − Σ ct · o) only the mean remains
        mean_BHT = jnp.sum(ct.astype(_wide(q)) * out.astype(_wide(q)), axis=-1).swapaxes(1, 2)
        dsinks_H = -jnp.sum(jnp.exp(sinks_H[:, None] - normaliser_BHT) * mean_BHT, axis=(0, 2))
    return dq, dk, dv, dsinks_H, None


_attend.defvjp(_forward, _backward)


def _wide(x: jax.Array) -> Any:
    """The dtype of sums: float32, of float64 itself."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _parts(arrays: Any, causal: Any) -> list[RowPart]:
    found = []
    for (upwards, window), (spans, (place_BT, queries_BT, keys_BT)) in zip(causal, arrays, strict=True):
        found.append(RowPart(KernelCall(upwards, window, spans), place_BT, queries_BT, keys_BT))
    return found


def _of_tokens(part: RowPart, out_BTHh: jax.Array, sums: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(result, normaliser [B, H, T]) of a call, 0 and MASKED of tokens in none of its parts."""
    if part.queries_BT is None:
        return out_BTHh, sums
    assert part.place_BT is not None
    by_place_NH = sums.swapaxes(1, 2).reshape(-1, sums.shape[1])
    normaliser_BTH = jnp.where(part.queries_BT[..., None], by_place_NH[part.place_BT], MASKED)
    return jnp.where(part.queries_BT[..., None, None], out_BTHh, 0), normaliser_BTH.swapaxes(1, 2)


def _of_spans(part: RowPart, normaliser_BHT: jax.Array) -> jax.Array:
    """The normaliser as `cudnn.forward` lays it out; of what is behind a part's last query, that of other tokens."""
    if part.call.spans is None:
        return normaliser_BHT
    length = normaliser_BHT.shape[2]
    starts_N, by_token_NH = part.call.spans.query_starts_BS.ravel(), normaliser_BHT.swapaxes(1, 2)
    by_token_NH = by_token_NH.reshape(-1, normaliser_BHT.shape[1])
    at_NT = jnp.minimum(starts_N[:, None] + jnp.arange(length), len(by_token_NH) - 1)
    return by_token_NH[at_NT].swapaxes(1, 2)
