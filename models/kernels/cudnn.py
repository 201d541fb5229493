"""cuDNN's attention kernels with the softmax's normaliser as a result of the forward and an argument of the backward
pass, which JAX offers under private names alone.

Rows of one text are a plain causal call. With `Spans` a call computes pairs of parts of a row, those of queries and
those of keys, which lie in the row as they are (cuDNN's packed layout, on Hopper and later); the results of tokens
outside all parts are undefined.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn

LAYOUT = cudnn.AttentionLayout.BTNH.value


class Spans(NamedTuple):
    """Parts of rows: S of each row, those without tokens behind all others of the batch."""

    query_lengths_BS: jax.Array
    key_lengths_BS: jax.Array
    query_starts_BS: jax.Array
    """Places in the batch as one long row, B · T behind the last part that has tokens."""
    key_starts_BS: jax.Array


class KernelCall(NamedTuple):
    """What of a row is computed. causal: of a part, or without spans of the row, a query sees the keys up to its own
    place, with a window only the last of them; otherwise all."""

    causal: bool
    window: int | None
    spans: Spans | None


def takes(head_dim: int, packed: bool) -> bool:
    """Whether the devices' kernels take heads of this size, and rows of several parts."""
    hopper = cudnn.check_compute_capability("9.0")
    return head_dim % 8 == 0 and head_dim <= (256 if hopper else 128) and (hopper or not packed)


def forward(call: KernelCall, q_BTHh: jax.Array, k_BTKh: jax.Array, v_BTKh: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(o_BTHh, the log of each softmax's sum in float32): [B, H, T], with spans [B · S, H, T] from each part's first
    query on."""
    arrays, options = _operands(call, q_BTHh, k_BTKh)
    out, normaliser = cudnn._dot_product_attention_fwd_p.bind(
        q_BTHh, k_BTKh, v_BTKh, *arrays, is_training=True, **options
    )
    return out, normaliser


def backward(
    call: KernelCall,
    q_BTHh: jax.Array,
    k_BTKh: jax.Array,
    v_BTKh: jax.Array,
    normaliser: jax.Array,
    o_BTHh: jax.Array,
    ct_BTHh: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(dq, dk, dv) of the scores of this call: p = exp(s − normaliser), ds = p (dp − Σ ct · o). Where normaliser, as
    `forward` lays it out, and o are those of a softmax over more keys, this is the part of its gradient that is due to
    the call's."""
    arrays, options = _operands(call, q_BTHh, k_BTKh)
    dq, dk, dv = cudnn._dot_product_attention_bwd_p.bind(
        q_BTHh, k_BTKh, v_BTKh, *arrays, normaliser, o_BTHh, ct_BTHh, **options
    )
    return dq, dk, dv


def _operands(call: KernelCall, q_BTHh: jax.Array, k_BTKh: jax.Array) -> tuple[list[jax.Array], dict[str, Any]]:
    """Bias, lengths, starts in numbers of the arrays, and page tables of the primitives; their parameters."""
    length, heads, head_dim = q_BTHh.shape[1:]
    none = jnp.zeros(0, q_BTHh.dtype)
    arrays, mask = [none] * 5, cudnn.MaskType.CAUSAL if call.causal else cudnn.MaskType.NO_MASK
    if call.spans is not None:
        of_q, of_k, q_starts, k_starts = call.spans
        more = jnp.full((len(of_q), 1), q_BTHh.shape[0] * length, jnp.int32)
        starts = (_and_end(q_starts, more) * heads * head_dim, _and_end(k_starts, more) * k_BTKh.shape[2] * head_dim)
        arrays = [none, of_q, of_k, *starts]
        mask = cudnn.MaskType.PADDING_CAUSAL if call.causal else cudnn.MaskType.PADDING
    windowed = call.window is not None and call.window < length
    options = {
        "scale": 1 / math.sqrt(head_dim),
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": mask,
        "layout": LAYOUT,
        "sliding_window_length": call.window if windowed else None,
    }
    return [*arrays, none, none], options


def _and_end(starts_BS: jax.Array, more_B1: jax.Array) -> jax.Array:
    """[B, S + 1] numbers, of which the first B · S are the starts: cuDNN reads them in order, and one behind them."""
    flat = jnp.concatenate([starts_BS.ravel(), more_B1.ravel()])
    return flat.reshape(len(starts_BS), -1)
