"""Attention over rows of texts, and the backend that computes it.

    backend = resolve("auto", platform, dtype)                            # once, outside
    attend = make_attend(backend, ends_BT, positions_BT, window)          # inside the traced program
    o_BTHh = attend(q_BTHh, k_BTKh, v_BTKh)

Every backend computes softmax(q kᵀ / √h) v, where query head i uses kv head i // (H/K), over the tokens that
`masks.visible` allows; backends differ in rounding only (docs/models.md#attention).

With sinks_H, attend(q_BTHh, k_BTKh, v_BTKh, sinks_H), the softmax of head i has exp(sinks_H[i]) in its sum as if of one
more token, whose value is 0: a head need not attend to anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from scope_jax.errors import UserError
from scope_jax.models.kernels.cudnn import takes
from scope_jax.models.kernels.masks import KEPT, MASKED, visible_mask
from scope_jax.models.kernels.packed import Packing, RowPart, attend_parts, parts_of

Attend = Callable[..., jax.Array]  # of queries, keys, values, and of a model that has them sinks_H

BACKENDS = ("reference", "dot_product", "cudnn", "cudnn_mask", "splash")
QUERY_BLOCK = 128  # tokens: their scores fit the cache of a CPU (rows of 512: 2.7 times as fast as in one piece)
CUDNN_HEAD = 256  # the widest head that cuDNN takes
MOST_BLOCKS = 16  # so that the program of a long row stays small
SINK_DIMS, SINK_KEYS = 8, 64  # by which a sink lengthens heads and keys (cuDNN's heads are multiples of 8)


def resolve(choice: str, platform: str, dtype: Any) -> str:
    """The backend, one of BACKENDS, for a configured choice, a platform and the arrays' dtype.

    choice: "auto" (TPU: splash; GPU: cuDNN's kernels in bfloat16 or float16, else dot_product; else reference),
    "reference", "dot_product" (cuDNN's kernel with a mask on a GPU in bfloat16 or float16, XLA's own program elsewhere)
    or "splash". platform: of the mesh's devices, as in `device.platform`. Raises ValueError if the choice is unknown or
    not available on the platform.
    """
    fused = platform in ("gpu", "cuda") and jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
    if choice == "auto" and fused:
        return "cudnn"
    if choice == "auto":
        choice = {"tpu": "splash", "gpu": "dot_product", "cuda": "dot_product"}.get(platform, "reference")
    if choice == "splash" and platform != "tpu":
        raise UserError(
            f'attention = "splash" is a TPU kernel but the devices are {platform}; use "auto" or "reference".'
        )
    if choice == "dot_product" and fused:
        return "cudnn_mask"
    if choice not in ("reference", "dot_product", "splash"):
        raise ValueError(f"attention is {choice!r}; it must be 'auto', 'reference', 'dot_product' or 'splash'.")
    return choice


def make_attend(
    backend: str,
    ends_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"] | None = None,
    window: int | None = None,
    packing: Packing | None = None,
) -> Attend:
    """attend(q_BTHh, k_BTKh, v_BTKh, sinks_H=None) -> o_BTHh over rows of texts, masked as by `masks.visible`.

    backend: one of BACKENDS (see `resolve`). positions_BT: in the text; needed with a window, and with a packing.
    packing: what the rows hold at most, for "cudnn", which otherwise, and where its kernels have no such call, is
    "cudnn_mask". Called inside the traced program and, for splash on more than one device, inside `shard_map`, with
    this device's heads. Raises ValueError for an unknown backend or a window below 1.
    """
    if window is not None and window < 1:
        raise ValueError(f"The attention window is {window}; a token sees at least itself, so it must be 1 or more.")
    if backend == "splash":
        from scope_jax.models.kernels import splash  # Pallas takes a second to import and is needed on TPUs only

        return splash.make_attend(ends_BT, positions_BT, window)
    if backend in ("reference", "cudnn", "cudnn_mask"):
        one = _reference_block if backend == "reference" else _cudnn_block
        blocks = _kept(partial(_in_blocks, one, ends_BT, positions_BT, window))
        if backend != "cudnn" or packing is None or positions_BT is None or (window is not None and packing.depth):
            return blocks
        return partial(_unmasked, blocks, packing.nodes > 1, parts_of(packing, ends_BT, positions_BT, window))
    if backend == "dot_product":
        mask_BTT = visible_mask(ends_BT, positions_BT, window)
        return _kept(partial(_dot_product, "xla", mask_BTT))
    raise ValueError(f"attention backend {backend!r} is not one of {', '.join(BACKENDS)}.")


def _kept(attend: Attend) -> Attend:
    """attend, whose result has the name of what a layer may keep for its backward pass."""
    return lambda *arrays: checkpoint_name(attend(*arrays), KEPT)


def _unmasked(blocks: Attend, packed: bool, parts: list[RowPart], q_BTHh: jax.Array, *others: jax.Array) -> jax.Array:
    """cuDNN's kernels without a mask, or, of heads that they do not take, `blocks`."""
    if not takes(q_BTHh.shape[-1], packed):
        return blocks(q_BTHh, *others)
    return attend_parts(parts, q_BTHh, *others)


def attend_both_ways(lengths_B: Int[Array, " B"]) -> Attend:
    """The attention of encoders: every token sees all tokens of its row's text, the first lengths_B (at least one)."""

    def attend(q_BTHh: jax.Array, k_BTKh: jax.Array, v_BTKh: jax.Array) -> jax.Array:
        length, size = q_BTHh.shape[1], _block_size(q_BTHh.shape[1])
        mask_B1T = (jnp.arange(length) < lengths_B[:, None])[:, None]
        if length <= QUERY_BLOCK:
            return attention(q_BTHh, k_BTKh, v_BTKh, mask_B1T)
        blocks = [
            _reference_block(q_BTHh[:, start : start + size], k_BTKh, v_BTKh, lambda: mask_B1T)
            for start in range(0, length, size)
        ]
        return jnp.concatenate(blocks, axis=1)

    return attend


def _block_size(length: int) -> int:
    """Queries of a block: QUERY_BLOCK, more in a row of more than MOST_BLOCKS."""
    return QUERY_BLOCK * max(1, -(-length // (QUERY_BLOCK * MOST_BLOCKS)))


def _in_blocks(
    one: Callable[..., jax.Array],
    ends_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"] | None,
    window: int | None,
    q_BTHh: Float[Array, "B T H h"],
    k_BTKh: Float[Array, "B T K h"],
    v_BTKh: Float[Array, "B T K h"],
    sinks_H: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H h"]:
    """Attention for one block of queries after another, each over the keys before its end; with a window only over
    the last of them, unless one further back in the row is seen.

    one(q, k, v, mask, sinks) -> o for a block; mask() computes the block's mask.
    """
    length = q_BTHh.shape[1]
    if length <= QUERY_BLOCK and one is _reference_block:
        return attention(q_BTHh, k_BTKh, v_BTKh, visible_mask(ends_BT, positions_BT, window), sinks_H)
    size, blocks = _block_size(length), []
    for start in range(0, length, size):
        stop = min(start + size, length)
        reach = start if window is None else window - 1
        near = max(0, start - reach) // QUERY_BLOCK * QUERY_BLOCK  # cuDNN wants even lengths

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, first: int, start: int = start, stop: int = stop) -> Any:
            mask = partial(visible_mask, ends_BT, positions_BT, window, slice(start, stop), slice(first, stop))
            return one(q, k[:, first:stop], v[:, first:stop], mask, sinks_H)

        arrays = q_BTHh[:, start:stop], k_BTKh, v_BTKh
        if near == 0:
            blocks.append(attend(*arrays, first=0))
        else:
            far = visible_mask(ends_BT, positions_BT, window, slice(start, stop), slice(0, near)).any()
            blocks.append(lax.cond(far, partial(attend, first=0), partial(attend, first=near), *arrays))
    return jnp.concatenate(blocks, axis=1)


def _reference_block(
    q_BQHh: jax.Array,
    k_BUKh: jax.Array,
    v_BUKh: jax.Array,
    mask: Callable[[], jax.Array],
    sinks_H: jax.Array | None = None,
) -> jax.Array:
    """`attention`, whose scores the backward pass computes again instead of keeping them: memory is [B, H, Q, U].

    On CPU the second computation costs less than writing and reading the scores of a whole row.
    """
    return jax.checkpoint(attention)(q_BQHh, k_BUKh, v_BUKh, mask(), sinks_H)


def _cudnn_block(
    q_BQHh: jax.Array,
    k_BUKh: jax.Array,
    v_BUKh: jax.Array,
    mask: Callable[[], jax.Array],
    sinks_H: jax.Array | None = None,
) -> jax.Array:
    """cuDNN's kernel. It takes the mask as an array of the queries' dtype and writes a gradient of that size.

    So it gets one for this block only, which the backward pass computes again; nothing else is computed twice. Wider
    heads than it takes are computed by XLA.
    """
    if q_BQHh.shape[-1] > CUDNN_HEAD:
        return _reference_block(q_BQHh, k_BUKh, v_BUKh, mask, sinks_H)

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_anything_except_these_names("mask"))
    def block(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        # The window stays in the mask: before 9.10.2 cuDNN does not accept a window together with a mask.
        return _dot_product("cudnn", mask(), q, k, v, sinks_H)

    return block(q_BQHh, k_BUKh, v_BUKh)


def _dot_product(
    implementation: Literal["xla", "cudnn"],
    mask_BQU: jax.Array,
    q_BQHh: jax.Array,
    k_BUKh: jax.Array,
    v_BUKh: jax.Array,
    sinks_H: jax.Array | None = None,
) -> jax.Array:
    """JAX's attention, which has no sinks: each is the score of one more key.

    Heads are longer by SINK_DIMS. In the first of these that key is 1 and all others are 0, and queries have √h times
    their head's sink; with h = 64 this is no rounding. The key's value is 0. It is one of SINK_KEYS, the others masked.
    """
    head_dim = q_BQHh.shape[-1]
    if sinks_H is not None:
        q_BQHh, k_BUKh, v_BUKh = (jnp.pad(x, ((0, 0),) * 3 + ((0, SINK_DIMS),)) for x in (q_BQHh, k_BUKh, v_BUKh))
        in_queries = jnp.broadcast_to(sinks_H.astype(jnp.float32) * math.sqrt(head_dim), q_BQHh.shape[:3])
        q_BQHh = q_BQHh.at[..., head_dim].set(in_queries.astype(q_BQHh.dtype))
        k_BUKh, v_BUKh = (jnp.pad(x, ((0, 0), (0, SINK_KEYS), (0, 0), (0, 0))) for x in (k_BUKh, v_BUKh))
        k_BUKh = k_BUKh.at[:, -SINK_KEYS, :, head_dim].set(1)
        first_U = jnp.broadcast_to(jnp.arange(SINK_KEYS) == 0, (*mask_BQU.shape[:2], SINK_KEYS))
        mask_BQU = jnp.concatenate([mask_BQU, first_U], axis=-1)
    named = checkpoint_name(mask_BQU[:, None], "mask")
    out = jax.nn.dot_product_attention(
        q_BQHh, k_BUKh, v_BUKh, mask=named, scale=1 / math.sqrt(head_dim), implementation=implementation
    )
    return out[..., :head_dim]


def storable(k_xKh: jax.Array, v_xKh: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys and values for a cache whose memory other rows use later: every value is finite, and where one was not, the
    head's key is NaN, so that whatever attends to the token still gets NaN.

    A mask replaces the score of a foreign key, but only multiplies a foreign value by 0, and 0 · NaN is NaN.
    """
    finite_xK = jnp.isfinite(v_xKh).all(axis=-1, keepdims=True)
    return jnp.where(finite_xK, k_xKh, jnp.nan), jnp.where(finite_xK, v_xKh, 0)


def attention(
    q_BTHh: Float[Array, "B T H h"],
    k_BUKh: Float[Array, "B U K h"],
    v_BUKh: Float[Array, "B U K h"],
    mask_BTU: Bool[Array, "B #T U"],
    sinks_H: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H h"]:
    """softmax(q kᵀ / √h) v over the tokens the mask allows; query head i uses kv head i // (H/K).

    Keys and values are never repeated in memory: the queries of one kv head are stacked as rows of one matmul. The
    matmuls are batched over [B, K] with contiguous rows, the layout for which XLA's CPU backend calls its matmul kernel
    in both the forward and the backward pass; weights are divided by their sum after the second matmul.
    """
    rows, length, num_heads, head_dim = q_BTHh.shape
    num_kv = k_BUKh.shape[2]
    grouped = (rows, num_kv, num_heads // num_kv, length)  # B K q T
    q = q_BTHh.reshape(rows, length, num_kv, -1, head_dim).transpose(0, 2, 3, 1, 4).reshape(rows, num_kv, -1, head_dim)
    scores = jnp.matmul(q, k_BUKh.transpose(0, 2, 3, 1), preferred_element_type=jnp.float32) / math.sqrt(head_dim)
    # Adding the mask is vectorised on CPU; a select is not (it doubled the time of the forward pass).
    bias_BTU = jnp.where(mask_BTU, 0.0, MASKED)
    scores = scores.reshape(*grouped, -1) + bias_BTU[:, None, None]
    top = lax.stop_gradient(scores.max(-1, keepdims=True))
    sinks = None if sinks_H is None else sinks_H.astype(jnp.float32).reshape(num_kv, -1, 1, 1)
    top = top if sinks is None else jnp.maximum(top, lax.stop_gradient(sinks))
    weights = jnp.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    total = total if sinks is None else total + jnp.exp(sinks - top)
    weights = weights.astype(v_BUKh.dtype).reshape(rows, num_kv, -1, k_BUKh.shape[1])
    out = jnp.matmul(weights, v_BUKh.transpose(0, 2, 1, 3), preferred_element_type=jnp.float32)
    out = (out.reshape(*grouped, head_dim) / total).astype(q_BTHh.dtype)
    return out.transpose(0, 3, 1, 2, 4).reshape(q_BTHh.shape)
