"""Context parallelism: the tokens of each row divided over the devices of a mesh axis, and attention across them.

A row of T tokens is cut into 2C chunks of equal length, of which device c of C has chunk c and chunk 2C − 1 − c. Under
a causal mask early tokens have few keys and late ones many; with one of each, all devices have the same work. All
other layers see a device's tokens as any others: positions travel with them.

    attends = make_attends("ulysses", backend, ends_BT, positions_BT, windows, axis)  # in shard_map, its own tokens
    o_BTHh = attends[window](q_BTHh, k_BTKh, v_BTKh)

ulysses  (Jacobs et al. 2023) all-to-alls give each device all tokens of some heads, and any attention backend runs on
         them. Needs at least one kv head for each device.
ring     (Liu et al. 2023) keys and values travel around the devices, which add up softmaxes relative to the largest
         score so far. For any number of heads; blocks of queries in plain XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from scope_jax.errors import UserError
from scope_jax.models.kernels.attention import Attend, make_attend
from scope_jax.models.kernels.masks import KEPT, MASKED, live_blocks, visible
from scope_jax.models.kernels.packed import Packing

How = Literal["auto", "ulysses", "ring"]
QUERIES = 512  # of a block of the ring: its scores are [B, H, 512, chunk]

Row = tuple[jax.Array, jax.Array]  # ends and positions of the tokens of whole rows, [B, U]
State = tuple[jax.Array, jax.Array, jax.Array]  # Σ w v, largest score, Σ w; each with the two chunks in front


def resolve(choice: How, kv_heads: int, devices: int) -> Literal["ulysses", "ring"]:
    """How attention crosses `devices` devices: for "auto", ulysses if they divide the kv heads, otherwise ring.

    kv_heads: of each tensor shard. Raises ValueError for "ulysses" if the devices do not divide them, and for an
    unknown choice.
    """
    if choice not in get_args(How):
        raise UserError(f"context_attention is {choice!r}; it must be one of {', '.join(map(repr, get_args(How)))}.")
    if choice == "ulysses" and kv_heads % devices:
        raise UserError(
            f'learner.context_attention = "ulysses" divides the kv heads, {kv_heads} on each device of a tensor group, '
            f'over mesh.context = {devices}, which does not divide them; use "auto" or "ring".'
        )
    if choice == "auto":
        return "ring" if kv_heads % devices else "ulysses"
    return choice


# -------------------------------------------------------------------------------------------------------------- layout
def token_order(length: int, devices: int) -> np.ndarray:
    """The places in the row of the tokens of device 0, then those of device 1, and so on. Raises ValueError if the row
    cannot be cut into two chunks for each device."""
    if devices == 1:
        return np.arange(length)
    if length % (2 * devices):
        raise UserError(
            f"a row of {length} tokens cannot be divided over mesh.context = {devices}; choose multiples of "
            f"{2 * devices} for learner.buckets, two pieces for each device."
        )
    chunks = np.arange(length).reshape(2 * devices, -1)
    return np.concatenate([chunks[[c, 2 * devices - 1 - c]].ravel() for c in range(devices)])


def in_row_order(x_BT: jax.Array, devices: int) -> jax.Array:
    """Tokens [B, T, ...] in the order of the row, from those in the order of the devices."""
    parts = x_BT.reshape(x_BT.shape[0], devices, 2, -1, *x_BT.shape[2:])
    halves = (x_BT.shape[0], x_BT.shape[1] // 2, *x_BT.shape[2:])
    return jnp.concatenate([parts[:, :, 0].reshape(halves), parts[:, ::-1, 1].reshape(halves)], axis=1)


def in_device_order(x_BT: jax.Array, devices: int) -> jax.Array:
    """The inverse of `in_row_order`."""
    early, late = (half.reshape(x_BT.shape[0], devices, -1, *x_BT.shape[2:]) for half in jnp.split(x_BT, 2, axis=1))
    return jnp.stack([early, late[:, ::-1]], axis=2).reshape(x_BT.shape)


def make_attends(
    how: Literal["ulysses", "ring"],
    backend: str,
    ends_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    windows: Iterable[int | None],
    axis: str,
    packing: Packing | None = None,
) -> dict[int | None, Attend]:
    """attend(q_BTHh, k_BTKh, v_BTKh, sinks_H=None) -> o_BTHh for each window, over rows whose tokens are divided over
    `axis` in `token_order`; as `attention.make_attend` for whole rows. Ends are places in the whole row.

    Called inside shard_map with this device's tokens and heads. backend, packing: of ulysses, see `make_attend`.
    """
    devices = lax.axis_size(axis)
    both_BT2 = jnp.stack([ends_BT, positions_BT], axis=-1)
    whole_BU2 = in_row_order(lax.all_gather(both_BT2, axis, axis=1, tiled=True), devices)
    whole = whole_BU2[..., 0], whole_BU2[..., 1]
    if how == "ulysses":
        return {window: partial(_ulysses, make_attend(backend, *whole, window, packing), axis) for window in windows}
    return {window: partial(_ring_over, whole, window, axis) for window in windows}


def _ulysses(
    attend: Attend,
    axis: str,
    q_BTHh: Float[Array, "B T H h"],
    k_BTKh: Float[Array, "B T K h"],
    v_BTKh: jax.Array,
    sinks_H: jax.Array | None = None,
) -> Float[Array, "B T H h"]:
    devices = lax.axis_size(axis)
    if sinks_H is not None:
        own = sinks_H.shape[0] // devices
        sinks_H = lax.dynamic_slice_in_dim(sinks_H, lax.axis_index(axis) * own, own)

    def some_heads(x_BTHh: jax.Array) -> jax.Array:
        moved = lax.all_to_all(x_BTHh, axis, split_axis=2, concat_axis=1, tiled=True)
        return in_row_order(moved, devices)

    o_BUHh = attend(some_heads(q_BTHh), some_heads(k_BTKh), some_heads(v_BTKh), sinks_H)
    return lax.all_to_all(in_device_order(o_BUHh, devices), axis, split_axis=1, concat_axis=2, tiled=True)


# ---------------------------------------------------------------------------------------------------------------- ring
def _ring_over(
    row: Row,
    window: int | None,
    axis: str,
    q_BTHh: jax.Array,
    k_BTKh: jax.Array,
    v_BTKh: jax.Array,
    sinks_H: jax.Array | None = None,
) -> jax.Array:
    """`ring` with heads in front: queries as [2 chunks, B, K, H/K, t, h], keys and values as [2, B, K, t, h], sinks
    as [K, H/K, 1]."""
    rows, length, kv_heads, head_dim = k_BTKh.shape
    group = q_BTHh.shape[2] // kv_heads
    q = q_BTHh.reshape(rows, 2, length // 2, kv_heads, group, head_dim).transpose(1, 0, 3, 4, 2, 5)
    k, v = (x.reshape(rows, 2, length // 2, kv_heads, head_dim).transpose(1, 0, 3, 2, 4) for x in (k_BTKh, v_BTKh))
    sinks = None if sinks_H is None else sinks_H.astype(jnp.float32).reshape(kv_heads, group, 1)
    o: Any = _ring(q, k, v, sinks, row, window, axis)
    return o.transpose(1, 0, 4, 2, 3, 5).reshape(q_BTHh.shape)


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _ring(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, row: Row, window: int | None, axis: str
) -> jax.Array:
    return _ring_forward(q, k, v, sinks, row, window, axis)[0]


def _ring_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, row: Row, window: int | None, axis: str
) -> tuple[jax.Array, tuple[Any, ...]]:
    place = _Place(row, window, axis, k.shape[3])

    def add(state: State, queries: Any, keys: Any, source: Any, kv: jax.Array) -> State:
        """The state after the queries of one chunk have seen the keys of one chunk of `source`."""
        own = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, queries, keepdims=False), (q, *state))
        k_chunk, v_chunk = (lax.dynamic_index_in_dim(x, keys, keepdims=False) for x in kv)
        bias = place.bias(queries, keys, source)
        moved = _in_blocks(partial(_merge, k_chunk, v_chunk, bias), *own)
        return jax.tree.map(lambda x, new: lax.dynamic_update_index_in_dim(x, new, queries, 0), state, moved)

    nothing = jnp.zeros(q.shape[:-1], jnp.float32)
    begun = (nothing + MASKED, nothing) if sinks is None else (nothing + sinks, nothing + 1)
    state: State = (jnp.zeros(q.shape, jnp.float32), *begun)
    kv = jnp.stack([k, v])
    state = place.products(add, state, 0, kv)

    def visit(number: Any, carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        state, kv = carry
        kv = place.passed_on(kv)
        return place.products(add, state, number, kv), kv

    (out, top, total), _ = lax.fori_loop(1, place.devices, visit, (state, kv))
    kept = (out / total[..., None]).astype(q.dtype), top + jnp.log(total)
    out, normaliser = (checkpoint_name(x, KEPT) for x in kept)
    return out, (q, k, v, sinks, row, out, normaliser)


def _ring_backward(window: int | None, axis: str, saved: tuple[Any, ...], ct: jax.Array) -> tuple[Any, ...]:
    """Keys and values travel once more, and their gradients with them, which thereby come home after C steps."""
    q, k, v, sinks, row, out, normaliser = saved
    place = _Place(row, window, axis, k.shape[3])
    mean = jnp.sum(ct.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)

    def add(grads: tuple[jax.Array, jax.Array], queries: Any, keys: Any, source: Any, kv: jax.Array) -> Any:
        dq, dkv = grads
        own = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, queries, keepdims=False), (q, ct, normaliser, mean))
        k_chunk, v_chunk = (lax.dynamic_index_in_dim(x, keys, keepdims=False) for x in kv)
        bias = place.bias(queries, keys, source)
        new_dq, new_dkv = _gradients(k_chunk, v_chunk, bias, *own)
        dq = dq.at[queries].add(new_dq)
        return dq, dkv.at[:, keys].add(new_dkv)

    kv = jnp.stack([k, v])
    dq = jnp.zeros(q.shape, jnp.float32)
    dq, dkv = place.products(add, (dq, jnp.zeros(kv.shape, jnp.float32)), 0, kv)

    def visit(number: Any, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        dq, dkv, kv = carry
        kv, dkv = place.passed_on(kv), place.passed_on(dkv)
        return *place.products(add, (dq, dkv), number, kv), kv

    dq, dkv, _ = lax.fori_loop(1, place.devices, visit, (dq, dkv, kv))
    dk, dv = place.passed_on(dkv)
    # The value of a sink is 0, so that of its ds = p (dp − Σ ct · o) only the mean remains.
    dsinks = None
    if sinks is not None:
        dsinks = -jnp.sum(jnp.exp(sinks - normaliser) * mean, axis=(0, 1, 4))[..., None]
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), dsinks, None


_ring.defvjp(_ring_forward, _ring_backward)


class _Place:
    """A device's place in the ring: which chunks it has, and which products of chunks are visible."""

    def __init__(self, row: Row, window: int | None, axis: str, chunk: int) -> None:
        self.row, self.window, self.axis, self.chunk = row, window, axis, chunk
        self.devices, self.me = lax.axis_size(axis), lax.axis_index(axis)
        self.live_IJ = None if window is None else live_blocks(*row, window, chunk, chunk).any(0)

    def passed_on(self, x: jax.Array) -> jax.Array:
        """x of the device before this one."""
        return lax.ppermute(x, self.axis, [(c, (c + 1) % self.devices) for c in range(self.devices)])

    def number(self, piece: Any, device: Any) -> Any:
        """Number, in the row, of the early (0) or late (1) chunk of a device."""
        return jnp.where(piece == 0, device, 2 * self.devices - 1 - device)

    def bias(self, queries: Any, keys: Any, source: Any) -> Callable[[Any, int], jax.Array]:
        """bias(first, count): 0 where a query of this device's chunk may see a key of the source's chunk, else MASKED,
        for `count` queries from `first` on: [B, count, t]."""
        start, first_key = (self.number(*of) * self.chunk for of in ((queries, self.me), (keys, source)))
        _, positions_BU = self.row
        end_Bu, position_Bu = (lax.dynamic_slice_in_dim(x, first_key, self.chunk, axis=1) for x in self.row)

        def of(first: Any, count: int) -> jax.Array:
            t, u = start + first + jnp.arange(count), first_key + jnp.arange(self.chunk)
            position_Bt = lax.dynamic_slice_in_dim(positions_BU, start + first, count, axis=1)
            positions = position_Bt[:, :, None], position_Bu[:, None]
            return jnp.where(visible(t[:, None], u, end_Bu[:, None], self.window, *positions), 0.0, MASKED)

        return of

    def products(self, add: Callable[..., Any], carry: Any, number: Any, kv: jax.Array) -> Any:
        """The carry after add(carry, queries, keys, source, kv) for the visible products of chunks in step `number` of
        the ring: three with this device's own keys, two with those of any other.

        Late queries see all early chunks; beyond that, early ones see the early chunks of devices before this one, and
        late ones the late chunks of devices behind it.
        """
        source = (self.me - number) % self.devices
        both = [(1, 0), (0, 0), (1, 1)]
        if not isinstance(number, int):
            behind = (source > self.me).astype(jnp.int32)
            both = [(1, 0), (behind, behind)]
        for queries, keys in both:
            one = partial(add, queries=queries, keys=keys, source=source, kv=kv)
            if self.live_IJ is None:
                carry = one(carry)
            else:
                live = self.live_IJ[self.number(queries, self.me), self.number(keys, source)]
                carry = lax.cond(live, one, lambda same: same, carry)
        return carry


def _block(length: int) -> int:
    """Queries of a block: the most that divide the chunk, up to QUERIES."""
    return next(size for size in range(min(length, QUERIES), 0, -1) if length % size == 0)


def _in_blocks(one: Callable[..., Any], *arrays: jax.Array) -> Any:
    """one(first, *arrays) for blocks of queries, the fourth axis of all arrays [B, K, H/K, t, ...]."""
    length = arrays[0].shape[3]
    size = _block(length)
    if size == length:
        return one(0, *arrays)

    def cut(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(*x.shape[:3], -1, size, *x.shape[4:]), 3, 0)

    def joined(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x, 0, 3).reshape(*x.shape[1:4], length, *x.shape[5:])

    firsts = jnp.arange(0, length, size)
    return jax.tree.map(joined, lax.map(lambda xs: one(*xs), (firsts, *map(cut, arrays))))


def _scores(q: jax.Array, k: jax.Array, bias_BQU: jax.Array) -> jax.Array:
    scores = jnp.einsum("bkgqh,bkuh->bkgqu", q, k, preferred_element_type=jnp.float32)
    return scores / math.sqrt(q.shape[-1]) + bias_BQU[:, None, None]


def _merge(
    k: jax.Array,
    v: jax.Array,
    bias: Callable[[Any, int], jax.Array],
    first: Any,
    q: jax.Array,
    out: jax.Array,
    top: jax.Array,
    total: jax.Array,
) -> State:
    """Σ w v, largest score and Σ w of some queries after they have seen more keys."""
    scores = _scores(q, k, bias(first, q.shape[3]))
    higher = jnp.maximum(top, scores.max(-1))
    # Where nothing was visible yet, all of it is multiplied by exp(MASKED − a score) = 0 later.
    weights, kept = jnp.exp(scores - higher[..., None]), jnp.exp(top - higher)
    new = jnp.einsum("bkgqu,bkuh->bkgqh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return out * kept[..., None] + new, higher, total * kept + weights.sum(-1)


def _gradients(
    k: jax.Array,
    v: jax.Array,
    bias: Callable[[Any, int], jax.Array],
    q: jax.Array,
    ct: jax.Array,
    normaliser: jax.Array,
    mean: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """(dq, dk and dv) of a product of chunks: p = exp(s − normaliser), ds = p (dp − Σ ct · o)."""
    length, size, scale = q.shape[3], _block(q.shape[3]), 1 / math.sqrt(q.shape[-1])

    def one(dkv: jax.Array, number: Any) -> tuple[jax.Array, jax.Array]:
        first = number * size
        qb, ctb, nb, mb = (lax.dynamic_slice_in_dim(x, first, size, axis=3) for x in (q, ct, normaliser, mean))
        probs = jnp.exp(_scores(qb, k, bias(first, size)) - nb[..., None])
        dprobs = jnp.einsum("bkgqh,bkuh->bkgqu", ctb, v, preferred_element_type=jnp.float32)
        dscores = (probs * (dprobs - mb[..., None]) * scale).astype(q.dtype)
        dq = jnp.einsum("bkgqu,bkuh->bkgqh", dscores, k, preferred_element_type=jnp.float32)
        dk = jnp.einsum("bkgqu,bkgqh->bkuh", dscores, qb, preferred_element_type=jnp.float32)
        dv = jnp.einsum("bkgqu,bkgqh->bkuh", probs.astype(q.dtype), ctb, preferred_element_type=jnp.float32)
        return dkv + jnp.stack([dk, dv]), dq

    zeros = jnp.zeros((2, *k.shape), jnp.float32)
    if size == length:
        dkv, dq = one(zeros, 0)
        return dq, dkv
    dkv, parts = lax.scan(one, zeros, jnp.arange(length // size))
    return jnp.moveaxis(parts, 0, 3).reshape(q.shape), dkv
