"""Gated DeltaNet (Yang et al. 2024, "Gated Delta Networks"): each head has a matrix that keeps values by their keys.

    S_t = γ_t S_{t−1} + k_t β_t (v_t − (γ_t S_{t−1})ᵀ k_t)ᵀ,    o_t = S_tᵀ q_t,    γ = exp(decay)

Queries, keys and values first pass a causal depthwise convolution of a few taps and silu; queries and keys have length
1 then, and queries are divided by √h. `delta_rule` computes a chunk of tokens at a time by products of matrices.

What a token reads, of the convolution and of S, is what its own text wrote: since_BT is the number of tokens of the
text before it in the row or in earlier calls. The first token of a text so begins with an S of zeros, whatever was kept
of another.

Learner: CHUNK tokens at a time, in float32. Common beginnings of texts are not shared in a row, since each text would
need a state where it parts from the others. Over `mesh.context` these layers cross devices by all-to-alls over their
key heads, which the axis must divide.

Engine: a state for each slot in float32, of the same size whatever the length (Qwen3.5-9B: 48 MiB in all layers, 27B:
144 MiB), and snapshots (`rollouts.pages.Snapshots`). A state cannot be cut: a turn that goes on is computed again from
the snapshot at its beginning, always, so that bits do not depend on where a dispatch ended.

Files: `in_proj_qkv` and the convolution are three weights here, so that heads can be divided, and one tensor in files;
an adapter of the three shares its A, as PEFT's module has one. Decays are computed in float32 from weights in the
compute dtype, as in transformers. Qwen3.5's files have `A_log` and `norm.weight` in float32, Qwen3.6's in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from scope_jax.errors import UserError
from scope_jax.models.decoder.context import in_device_order, in_row_order

CHUNK = 64  # tokens that the learner computes together: the products of a chunk grow with its square
EPS = 1e-6  # added to the squared lengths of queries and keys
EXACT = lax.Precision.HIGHEST  # float32 products, also where a platform's default is less


class Streams(NamedTuple):
    """A layer's tokens by head, before the convolution; each key head serves H/K value heads."""

    q_BTKh: Any
    k_BTKh: Any
    v_BTHe: Any
    decay_BTH: Any
    """float32, ln γ ≤ 0."""
    beta_BTH: Any
    """float32, β."""


class Taps(NamedTuple):
    """Weights of the convolution, the last tap for the token itself."""

    q_Kha: Any
    k_Kha: Any
    v_Hea: Any


class KeptState(NamedTuple):
    """What a layer keeps of rows for their next tokens: S, and the last tokens before the convolution."""

    state_BHhe: Any
    """float32"""
    q_BKah: Any
    k_BKah: Any
    v_BHae: Any


Recur = Callable[[Streams, Taps], jax.Array]  # -> o_BTHe


def convolved(
    x_BTKh: Float[Array, "B T K h"],
    taps_Kha: Float[Array, "K h a"],
    since_BT: Int[Array, "B T"],
    before_BKah: Float[Array, "B K n h"] | None = None,
) -> Float[Array, "B T K h"]:
    """silu of the causal convolution of each feature, in float32 and rounded once. before: the last tokens before these
    (one less than taps), None: there are none."""
    count, length = taps_Kha.shape[-1], x_BTKh.shape[1]
    if before_BKah is None:
        whole = jnp.pad(x_BTKh, ((0, 0), (count - 1, 0), (0, 0), (0, 0)))
    else:
        whole = jnp.concatenate([before_BKah.swapaxes(1, 2).astype(x_BTKh.dtype), x_BTKh], axis=1)
    total = jnp.float32(0)
    for tap in range(count):
        back = count - 1 - tap
        x = jnp.where((since_BT >= back)[..., None, None], whole[:, tap : tap + length], 0)
        total = total + x.astype(jnp.float32) * taps_Kha[..., tap].astype(jnp.float32)
    return jax.nn.silu(total).astype(x_BTKh.dtype)


def inverse(low_cc: Float[Array, "... c c"]) -> Float[Array, "... c c"]:
    """(I + A)⁻¹ of a strictly lower triangular A whose size is a power of two, by products: the inverses of the blocks
    on the diagonal give that of blocks twice as large, (X 0; −Z L X, Z) of (X⁻¹ 0; L Z⁻¹).

    All of these are inverses of parts of the same recurrence, whose steps lengthen nothing; a series in powers of A
    cancels numbers that are far larger than the result where keys are alike.
    """
    size = low_cc.shape[-1]
    place = np.arange(size)
    result, block = jnp.broadcast_to(jnp.eye(size, dtype=low_cc.dtype), low_cc.shape), 1
    while block < size:
        below = place[:, None] // block == place // block + 1
        pair = (place[:, None] // (2 * block) == place // (2 * block)) & below
        part = jnp.matmul(jnp.where(pair, low_cc, 0), result, precision=EXACT)
        result = result - jnp.matmul(result, part, precision=EXACT)
        block *= 2
    return result


def unit(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Vectors of length 1 in the same direction."""
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPS)


def delta_rule(
    q_BTHh: Float[Array, "B T H h"],
    k_BTHh: Float[Array, "B T H h"],
    v_BTHe: Float[Array, "B T H e"],
    decay_BTH: Float[Array, "B T H"],
    beta_BTH: Float[Array, "B T H"],
    since_BT: Int[Array, "B T"],
    state_BHhe: Float[Array, "B H h e"] | None = None,
    chunk: int = CHUNK,
) -> tuple[Float[Array, "B T H e"], Float[Array, "B H h e"]]:
    """(o, S after the last token), in the wider of float32 and the dtype of v. state: S before the first token, None:
    zeros. A token with β = 0 and decay = 0 leaves S as it is. Within a chunk of c tokens, with Γ_i = Σ decay up to i,

        A_ij = β_i (k_i · k_j) exp(Γ_i − Γ_j)  (j < i),   (I + A) N = β (V − exp(Γ) K S),
        O = exp(Γ) Q S + (Q Kᵀ ⊙ exp(Γ_i − Γ_j), j ≤ i) N,   S' = exp(Γ_c) S + Σ_j exp(Γ_c − Γ_j) k_j N_jᵀ

    where tokens of another text count as infinitely far away (eq. 7 to 9 of the paper; the products N are its
    pseudo-values).
    """
    rows, length, heads, width = q_BTHh.shape
    dtype = jnp.promote_types(v_BTHe.dtype, jnp.float32)
    size = min(chunk, 1 << max(length - 1, 0).bit_length())
    pad, count = -length % size, -(-length // size)

    def chunks(x_BTHn: jax.Array) -> jax.Array:  # [n, B, H, c, ...]
        x = jnp.pad(x_BTHn.astype(dtype), [(0, 0), (0, pad)] + [(0, 0)] * (x_BTHn.ndim - 2))
        return jnp.moveaxis(x.reshape(rows, count, size, *x.shape[2:]), (1, 3), (0, 2))

    last_B1 = since_BT[:, -1:]
    since = jnp.concatenate([since_BT, last_B1 + 1 + jnp.arange(pad)], axis=1)
    since = jnp.moveaxis(since.reshape(rows, count, size), 1, 0)
    if state_BHhe is None:
        state_BHhe = jnp.zeros((rows, heads, width, v_BTHe.shape[-1]), dtype)
    place = np.arange(size)
    product = partial(jnp.matmul, precision=EXACT)

    def one(state: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, decay, beta, since_Bc = xs
        total = jnp.cumsum(decay, axis=-1)
        same = (since_Bc[:, None, :, None] >= place[:, None] - place) & (place[:, None] >= place)
        near = jnp.where(same, jnp.exp(jnp.where(same, total[..., :, None] - total[..., None, :], 0)), 0)
        old = (since_Bc > place)[:, None]  # tokens of the text that the state is of
        reach = jnp.where(old, jnp.exp(jnp.where(old, total, 0)), 0)[..., None]
        keys_T = jnp.swapaxes(k, -1, -2)
        within = jnp.where(place[:, None] > place, product(k * beta[..., None], keys_T) * near, 0)
        new = product(inverse(within), beta[..., None] * (v - reach * product(k, state)))
        out = reach * product(q, state) + product(product(q, keys_T) * near, new)
        far = near[..., -1, :, None]
        return reach[..., -1:, :] * state + product(jnp.swapaxes(k * far, -1, -2), new), out

    q_BTHh, k_BTHh = unit(q_BTHh.astype(dtype)) * width**-0.5, unit(k_BTHh.astype(dtype))
    xs = (*map(chunks, (q_BTHh, k_BTHh, v_BTHe, decay_BTH, beta_BTH)), since)
    state, out = lax.scan(jax.checkpoint(one, prevent_cse=False), state_BHhe, xs)
    out = jnp.moveaxis(out, (0, 2), (1, 3)).reshape(rows, -1, heads, v_BTHe.shape[-1])
    return out[:, :length], state


def _by_value_head(x_BTKh: jax.Array, heads: int) -> jax.Array:
    """In at least float32, as gradients of the heads that share one are added."""
    x_BTKh = x_BTKh.astype(jnp.promote_types(x_BTKh.dtype, jnp.float32))
    return jnp.repeat(x_BTKh, heads // x_BTKh.shape[2], axis=2)


def _recurred(
    streams: Streams, taps: Taps, since_BT: jax.Array, kept: KeptState | None, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """(o in the dtype of the values, state)."""
    befores = (None,) * 3 if kept is None else kept[1:]
    q, k, v = (convolved(x, tap, since_BT, before) for x, tap, before in zip(streams[:3], taps, befores, strict=True))
    q, k = (_by_value_head(x, v.shape[2]) for x in (q, k))
    state = None if kept is None else kept.state_BHhe
    out, state = delta_rule(q, k, v, streams.decay_BTH, streams.beta_BTH, since_BT, state, chunk)
    return out.astype(v.dtype), state


# -------------------------------------------------------------------------------------------------------------- learner
def since_of(ends_BT: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """The number of tokens of its text before each token, in rows of whole texts one after another
    (`models.kernels.masks`)."""
    here_T = jnp.arange(ends_BT.shape[1])
    begins_BT = jnp.pad(ends_BT[:, :-1] <= here_T[1:], ((0, 0), (1, 0)), constant_values=True)
    return here_T - lax.cummax(jnp.where(begins_BT, here_T, 0), axis=1)


def over_rows(ends_BT: Int[Array, "B T"]) -> Recur:
    """Over whole rows of texts that share no beginning."""
    since_BT = since_of(ends_BT)
    return lambda streams, taps: _recurred(streams, taps, since_BT, None, CHUNK)[0]


def over_context(ends_BT: Int[Array, "B T"], axis: str) -> Recur:
    """The same with the tokens of each row divided over an axis (`models.decoder.context`): all-to-alls give each
    device all tokens of some heads."""
    devices, me = lax.axis_size(axis), lax.axis_index(axis)
    whole = over_rows(in_row_order(lax.all_gather(ends_BT, axis, axis=1, tiled=True), devices))

    def some_heads(x_BTHn: jax.Array) -> jax.Array:
        return in_row_order(lax.all_to_all(x_BTHn, axis, split_axis=2, concat_axis=1, tiled=True), devices)

    def own(tap: jax.Array) -> jax.Array:
        count = tap.shape[0] // devices
        return lax.dynamic_slice_in_dim(tap, me * count, count)

    def recur(streams: Streams, taps: Taps) -> jax.Array:
        o_BUHe = whole(Streams(*map(some_heads, streams)), Taps(*map(own, taps)))
        return lax.all_to_all(in_device_order(o_BUHe, devices), axis, split_axis=1, concat_axis=2, tiled=True)

    return recur


def check_context(key_heads: int, tensor: int, devices: int) -> None:
    """Raises UserError if the devices of a context axis do not divide the key heads of a tensor shard."""
    if key_heads // tensor % devices:
        raise UserError(
            f"mesh.context = {devices} does not divide the model's linear attention, which has {key_heads // tensor} "
            "key heads on each device of a tensor group and crosses devices by heads only; choose one that does."
        )


# --------------------------------------------------------------------------------------------------------------- engine
def nothing_kept(shapes: dict[str, tuple[int, ...]], rows: int, dtype: Any) -> KeptState:
    """What is kept of rows without tokens. shapes: `kinds.Mixer.kept` of the layer."""
    return KeptState(**{name: jnp.zeros((rows, *shape), _dtype(name, dtype)) for name, shape in shapes.items()})


def _dtype(name: str, dtype: Any) -> Any:
    return jnp.float32 if name.startswith("state") else dtype


def _last(
    kept: KeptState, streams: Streams, counts_B: Int[Array, " B"]
) -> tuple[Float[Array, "B K n h"], Float[Array, "B K n h"], Float[Array, "B H n e"]]:
    """The last tokens before the convolution, after counts_B of T more."""

    def last(before_BKah: jax.Array, x_BTKh: jax.Array) -> jax.Array:
        whole = jnp.concatenate([before_BKah, x_BTKh.swapaxes(1, 2).astype(before_BKah.dtype)], axis=2)
        at_Ba = counts_B[:, None] + jnp.arange(before_BKah.shape[2])
        return jnp.take_along_axis(whole, at_Ba[:, None, :, None], axis=2)

    q, k, v = (last(before, x) for before, x in zip(kept[1:], streams[:3], strict=True))
    return q, k, v


def advanced(
    streams: Streams,
    taps: Taps,
    starts_B: Int[Array, " B"],
    counts_B: Int[Array, " B"],
    kept: KeptState,
    chunk: int = CHUNK,
) -> tuple[jax.Array, KeptState]:
    """(o, what is kept) of rows that add counts_B of T tokens from position starts_B on; the rest is padding, whose
    output is meaningless. A row that adds none keeps what it has, bit for bit."""
    offset_T = jnp.arange(streams.q_BTKh.shape[1])
    since_BT = starts_B[:, None] + offset_T
    real_BT1 = (offset_T < counts_B[:, None])[..., None]
    decay, beta = (jnp.where(real_BT1, x, 0) for x in streams[3:])
    out, state = _recurred(Streams(*streams[:3], decay, beta), taps, since_BT, kept, chunk)
    state = jnp.where((counts_B > 0)[:, None, None, None], state, kept.state_BHhe)
    return out, KeptState(state, *_last(kept, streams, counts_B))


class RowBounds(NamedTuple):
    """Where, among the rows that are kept, R rows that add tokens one after another begin and end (or their
    shardings). A row may begin where one before it ended."""

    sources_R: Any
    """int32, the row of what is kept at its start."""
    targets_R: Any
    """int32, the row that it ends in."""
    copies_R: Any
    """int32, another row for the same, or that one again."""


TokenStep = Callable[..., tuple[jax.Array, jax.Array]]  # `models.kernels.delta_gpu.token_step`


def one_each(
    streams: Streams,
    taps: Taps,
    starts_R: jax.Array,
    counts_R: jax.Array,
    kept: KeptState,
    step: TokenStep | None = None,
) -> tuple[jax.Array, KeptState]:
    """`advanced` by a token at most, of the first R of the rows that are kept. step: a kernel that computes the states
    in place of `delta_rule`, in float32."""
    own = jax.tree.map(lambda x: x[: len(starts_R)], kept)
    if step is None:
        out, new = advanced(streams, taps, starts_R, counts_R, own, chunk=1)
        return out, jax.tree.map(_put_first, kept, new)
    convolve = zip(streams[:3], taps, own[1:], strict=True)
    q, k, v = (convolved(x, tap, starts_R[:, None], before)[:, 0] for x, tap, before in convolve)
    q, k = (unit(_by_value_head(x[:, None], v.shape[1])[:, 0].astype(jnp.float32)) for x in (q, k))
    decay_RH, beta_RH = streams.decay_BTH[:, 0], streams.beta_BTH[:, 0]
    reach_RH = jnp.where((starts_R > 0)[:, None], jnp.exp(decay_RH), 0)  # a text's first token reads no state
    numbers = q * q.shape[-1] ** -0.5, k, v.astype(jnp.float32), reach_RH, beta_RH, counts_R > 0
    out, state_BHhe = step(*numbers, kept.state_BHhe)
    last = map(_put_first, kept[1:], _last(own, streams, counts_R))
    return out[:, None].astype(v.dtype), KeptState(state_BHhe, *last)


def _put_first(x: jax.Array, part: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(x, part, 0, 0)


def in_order(
    streams: Streams, taps: Taps, starts_R: jax.Array, counts_R: jax.Array, kept: KeptState, rows: RowBounds
) -> tuple[jax.Array, KeptState]:
    """`advanced` one row after the other: steps of one shape, so that a row's bits do not depend on the others."""

    def one(kept: KeptState, xs: tuple[Any, ...]) -> tuple[KeptState, jax.Array]:
        own, start, count, (source, target, copy) = xs
        before = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, source), kept)
        out, after = advanced(jax.tree.map(lambda x: x[None], own), taps, start[None], count[None], before)

        def put(x: jax.Array, new: jax.Array) -> jax.Array:
            x = lax.dynamic_update_slice_in_dim(x, new, target, 0)
            return lax.dynamic_update_slice_in_dim(x, new, copy, 0)

        return jax.tree.map(put, kept, after), out[0]

    kept, out = lax.scan(one, kept, (streams, starts_R, counts_R, rows))
    return out, kept
