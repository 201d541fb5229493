"""cuDNN's attention in XLA: takes what JAX's primitives take, on any platform and in any dtype, and gives NaN where
cuDNN's results are undefined."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from scope_jax.models.kernels import attention


def in_place_of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for the rest of a test."""
    monkeypatch.setattr(cudnn, "_dot_product_attention_fwd_p", Forward)
    monkeypatch.setattr(cudnn, "_dot_product_attention_bwd_p", Backward)
    monkeypatch.setattr(attention, "takes", lambda head_dim, packed: True)
    masked = attention._dot_product
    monkeypatch.setattr(attention, "_dot_product", lambda how, *arrays: masked("xla", *arrays))  # that with a mask


class Forward:
    """Of the forward primitive."""

    @staticmethod
    def bind(q, k, v, bias, q_len, k_len, q_off, k_off, page_k, page_v, *, is_training, **options):
        assert is_training and not bias.size and not page_k.size and not page_v.size
        at_q, at_k, seen = _places(q, k, q_len, k_len, q_off, k_off, options)
        scores, values = _scores(q, k, at_q, at_k, seen, options["scale"]), _taken(v, at_k)
        top = scores.max(-1, keepdims=True, initial=-1e30)
        weights = jnp.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        out = jnp.einsum("NKGTU,NUKh->NTKGh", weights / total, values).reshape(*at_q.shape, *q.shape[2:])
        sums = (top + jnp.log(total))[..., 0].reshape(len(at_q), q.shape[2], -1)
        return _put(q.shape, at_q, out).astype(q.dtype), jnp.where((at_q >= 0)[:, None], sums, jnp.nan)


class Backward:
    """Of the backward primitive."""

    @staticmethod
    def bind(q, k, v, bias, q_len, k_len, q_off, k_off, page_k, page_v, sums, out, ct, **options):
        at_q, at_k, seen = _places(q, k, q_len, k_len, q_off, k_off, options)
        keys, values = _taken(k, at_k), _taken(v, at_k)
        queries, outs, cts = (_grouped(_taken(x, at_q), keys) for x in (q, out, ct))
        sums = jnp.where((at_q >= 0)[:, None], sums, 0).reshape(*queries.shape[:1], *queries.shape[2:4], -1)
        probs = jnp.exp(_scores(q, k, at_q, at_k, seen, options["scale"]) - sums[..., None])
        mean = (cts * outs).sum(-1).transpose(0, 2, 3, 1)
        slopes = probs * (jnp.einsum("NTKGh,NUKh->NKGTU", cts, values) - mean[..., None]) * options["scale"]
        dq = jnp.einsum("NKGTU,NUKh->NTKGh", slopes, keys).reshape(*at_q.shape, *q.shape[2:])
        dk = jnp.einsum("NKGTU,NTKGh->NUKh", slopes, queries)
        dv = jnp.einsum("NKGTU,NTKGh->NUKh", probs, cts)
        return [_put(x.shape, at, dx).astype(x.dtype) for x, at, dx in ((q, at_q, dq), (k, at_k, dk), (v, at_k, dv))]


def _places(q, k, q_len, k_len, q_off, k_off, options) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Places of queries and keys in the batch as one row, [N, T] of each part, −1 behind it; what sees what."""
    rows, length = q.shape[:2]
    here = jnp.arange(length)
    mask, window = options["mask_type"], options["sliding_window_length"]
    if mask is cudnn.MaskType.CAUSAL:
        at_q = at_k = jnp.arange(rows)[:, None] * length + here
    else:
        assert q_off.shape == k_off.shape == (rows, q_len.shape[1] + 1)
        at_q, at_k = (
            jnp.where(here < of.reshape(-1, 1), off.ravel()[: of.size, None] // (x.shape[2] * x.shape[3]) + here, -1)
            for x, of, off in ((q, q_len, q_off), (k, k_len, k_off))
        )
    seen = (at_q >= 0)[:, :, None] & (at_k >= 0)[:, None]
    if mask in (cudnn.MaskType.CAUSAL, cudnn.MaskType.PADDING_CAUSAL):
        seen &= here[:, None] >= here
    if window is not None:
        assert mask is not cudnn.MaskType.PADDING
        seen &= here[:, None] - here < window
    return at_q, at_k, seen


def _taken(x_BTHh: Any, at: jax.Array) -> jax.Array:
    flat = x_BTHh.reshape(-1, *x_BTHh.shape[2:])
    return jnp.where((at >= 0)[..., None, None], flat[at], 0)


def _put(shape: Any, at: jax.Array, values: jax.Array) -> jax.Array:
    flat = jnp.full((shape[0] * shape[1] + 1, *shape[2:]), jnp.nan, values.dtype)
    return flat.at[at].set(values)[:-1].reshape(shape)


def _grouped(x_NTHh: jax.Array, keys: jax.Array) -> jax.Array:
    return x_NTHh.reshape(*x_NTHh.shape[:2], keys.shape[2], -1, keys.shape[3])


def _scores(q, k, at_q, at_k, seen, scale) -> jax.Array:
    keys = _taken(k, at_k)
    scores = jnp.einsum("NTKGh,NUKh->NKGTU", _grouped(_taken(q, at_q), keys), keys) * scale
    return jnp.where(seen[:, None, None], scores, -jnp.inf)
