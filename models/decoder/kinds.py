"""What layers are made of: `MIXERS` and `FEEDS`, by the type that describes one in `models.decoder.config`.

A kind declares the weights of one layer, what their tensors are multiplied with, which of them adapters may adapt, and
what a mixer keeps of a token for later ones; the rest of the product reads these tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from scope_jax.models.decoder.activations import ACTIVATIONS
from scope_jax.models.decoder.config import Attention, Delta, Dense, Experts, Layer, ModelConfig, Parallel, QueryScaling
from scope_jax.models.decoder.delta import Streams, Taps
from scope_jax.models.decoder.lowrank import product
from scope_jax.models.decoder.moe import Route, moe_layer, route
from scope_jax.models.decoder.sums import with_bias
from scope_jax.models.kernels.rope import rotate
from scope_jax.sharding.collectives import Shards
from scope_jax.sharding.spec import Initializer, Param, normal, ones, zeros

Params = dict[str, Any]
Weights = dict[str, Param]
FROZEN = ("scalar_1",)  # weights that training does not move: buffers of transformers' classes
INPUT_TARGETS = ("input_gate_Dp", "input_out_pD")  # weights of a layer's own vectors that adapters adapt
INIT_STD = 0.02  # GPT-2's, and transformers' initializer_range


def weight(shape: tuple[int, ...], *axes: str | None, init: Initializer = normal(INIT_STD)) -> Param:
    """A weight of one layer; master weights are float32."""
    return Param(shape, axes, init, jnp.float32)


def rms_norm(x: Float[Array, "..."], scale: Float[Array, " n"] | None, eps: float) -> Float[Array, "..."]:
    """x / √(mean(x²) + eps) · scale over the last dimension, computed in float32 (Zhang & Sennrich 2019). scale None:
    of ones."""
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) if scale is None else (normed * scale.astype(jnp.float32)).astype(x.dtype)


def scale_of(w: Float[Array, " n"], offset: float) -> Float[Array, " n"]:
    """What a norm multiplies with: offset + w, in float32 (`ModelConfig.norm_offset`).

    The sum is never stored: near 1 bfloat16 is too coarse for weights near 0.
    """
    return w if offset == 0 else offset + w.astype(jnp.float32)


def norm_weight(cfg: ModelConfig, size: int, *axes: str | None) -> Param:
    """A norm's weight [size], with which it first multiplies by 1."""
    return weight((size,), *(axes or (None,)), init=zeros if cfg.norm_offset == 1 else ones)


# ----------------------------------------------------------------------------------------------------------- attention
def _attention_weights(cfg: ModelConfig, mixer: Attention) -> Weights:
    D, h, own = cfg.width, mixer.head_dim, mixer.source is None
    Hh, Kh = mixer.num_heads * h, mixer.num_kv_heads * h
    queries = 2 * Hh if mixer.gate else Hh  # by head: query, gate
    found = {
        "q_D_Hh": weight((D, queries), "width", "heads"),
        "k_D_Kh": weight((D, Kh), "width", "kv_heads"),
        "o_Hh_D": weight((Hh, D), "heads", "width"),
    }
    if mixer.values == "own":
        found["v_D_Kh"] = weight((D, Kh), "width", "kv_heads")
    if mixer.qk_norm == "head":
        found |= {name: norm_weight(cfg, h) for name in ("q_norm_h", "k_norm_h")}
    elif mixer.qk_norm == "width":
        found |= {
            "q_norm_Hh": norm_weight(cfg, Hh, "head_bias"),
            "k_norm_Kh": norm_weight(cfg, Kh, "head_bias"),
        }
    if mixer.qkv_bias:
        sizes = {"q_bias_Hh": queries, "k_bias_Kh": Kh} | ({"v_bias_Kh": Kh} if mixer.values == "own" else {})
        found |= {name: weight((size,), "head_bias", init=zeros) for name, size in sizes.items()}
    if not own:
        found = {name: one for name, one in found.items() if name[0] not in "kv"}
    if mixer.output_bias:
        found["o_bias_D"] = weight((D,), None, init=zeros)
    if mixer.sinks:
        found["sinks_H"] = weight((mixer.num_heads,), "head_bias")
    return found


def _width_norm(x: jax.Array, scale: jax.Array, eps: float, shards: Shards) -> jax.Array:
    """rms_norm over a width that is sharded over the tensor group.

    Every device's output depends on the sum of all squares, so the cotangent of that sum must itself be summed over
    the group: `enter` after `psum` does that; `psum` alone would keep only each device's own part.
    """
    x32 = x.astype(jnp.float32)
    squares = shards.enter(shards.psum(jnp.sum(jnp.square(x32), axis=-1, keepdims=True)))
    normed = x32 * lax.rsqrt(squares / (x.shape[-1] * shards.size) + eps)
    return (normed * scale.astype(jnp.float32)).astype(x.dtype)


def _project(mixer: Attention, w: Params, x_BTD: jax.Array, name: Literal["q", "k", "v"], call: LayerCall) -> jax.Array:
    """The q, k or v projection, [B, T, heads · h], with bias and the norm over all heads where the model has them.

    Of more devices in a tensor group than kv heads, several have the same one: each computes a part of its columns."""
    axes = "Hh" if name == "q" else "Kh"
    y = checkpoint_name(product(x_BTD, w[f"{name}_D_{axes}"]), "qkv")  # before the norm, whose gradient needs it
    if mixer.qkv_bias:
        y = with_bias(y, w[f"{name}_bias_{axes}"])
    if mixer.qk_norm == "width" and name != "v":
        y = _width_norm(y, scale_of(w[f"{name}_norm_{axes}"], call.offset), call.eps, call.shards)
    return y if name == "q" else call.shards.whole_heads(y, mixer.head_dim)


class HeadTransform(NamedTuple):
    """What becomes of a layer's queries and keys before attention: a norm of each head, then rotation."""

    mixer: Attention
    eps: float
    scales: tuple[jax.Array, ...] | None
    """Of the norms of queries and keys, [h] each; None: the model has none."""


def plain_heads(
    how: HeadTransform,
    positions_BT: Int[Array, "B T"],
    q_BTn: Float[Array, "B T Hh"],
    k_BTn: Float[Array, "B T Kh"] | None,
    v_BTKh: Float[Array, "B T K h"] | None,
) -> tuple[Float[Array, "B T H h"], Float[Array, "B T K h"] | None, Float[Array, "B T K h"] | None]:
    """Queries and keys by head, transformed, and the values. k_BTn, v_BTKh: None in a layer without keys of its own."""

    def heads(y_BTn: jax.Array, number: int) -> jax.Array:
        y = y_BTn.reshape(*y_BTn.shape[:-1], -1, how.mixer.head_dim)
        y = y if how.scales is None else rms_norm(y, how.scales[number], how.eps)
        return y if how.mixer.rope is None else rotate(y, positions_BT, how.mixer.rope)

    return heads(q_BTn, 0), None if k_BTn is None else heads(k_BTn, 1), v_BTKh


Heads = Callable[..., tuple[jax.Array, jax.Array | None, jax.Array | None]]  # plain_heads, or what does the same


def _scaled(q_BTHh: jax.Array, positions_BT: Any, scaling: QueryScaling) -> jax.Array:
    turns_BT = jnp.floor(positions_BT / scaling.original_positions)
    factor_BT = (1 + scaling.beta * jnp.log(1 + turns_BT)).astype(q_BTHh.dtype)
    return q_BTHh * factor_BT[..., None, None]


@dataclass(frozen=True)
class LayerCall:
    """What a layer is computed with beside its weights and input.

    eps, offset: of its norms (`rms_norm`, `scale_of`). attend(q_BTHh, k_BTKh, v_BTKh) -> o_BTHh gets this device's
    heads, queries and keys after norm and rotation, and sinks_H where the mixer has sinks; it is responsible for mask,
    scale and cache. Keys and values are None where the mixer has none of its own, or `heads` has put them into the
    cache; of a layer with a state it is attend(streams, taps) -> o_BTHe (`models.decoder.delta`). heads: what computes
    norm and rotation. router: what picks experts. stream_BTD: what the layer's result is added to, whose norm is its
    input.
    """

    eps: float
    offset: float
    positions_BT: Any
    attend: Callable[..., jax.Array]
    shards: Shards
    heads: Heads
    router: Route = route
    stream_BTD: Any = None


def _attention(mixer: Attention, w: Params, x_BTD: jax.Array, call: LayerCall) -> jax.Array:
    shards, positions_BT = call.shards, call.positions_BT
    x_BTD = shards.enter_layer(x_BTD).reshape(*positions_BT.shape, -1)
    own = mixer.source is None
    q_BTn = _project(mixer, w, x_BTD, "q", call)
    k_BTn = _project(mixer, w, x_BTD, "k", call) if own else None
    v_BTn = _project(mixer, w, x_BTD, "v", call) if own and mixer.values == "own" else k_BTn
    gate_BTHh = None
    if mixer.gate:
        q_BTHh, gate_BTHh = jnp.split(q_BTn.reshape(*q_BTn.shape[:2], -1, 2 * mixer.head_dim), 2, axis=-1)
        q_BTn = q_BTHh.reshape(*q_BTn.shape[:2], -1)
    # All heads share the scale and each device of a tensor group has different heads: their gradients are summed.
    norms = ("q_norm_h", *(["k_norm_h"] if own else [])) if mixer.qk_norm == "head" else ()
    scales = tuple(scale_of(shards.enter(w[name]), call.offset) for name in norms) or None
    if scales is not None and mixer.scale is not None:
        # Attention multiplies by 1/√h. In float32 the rest costs no rounding of its own.
        of_q, *of_k = scales
        scales = of_q.astype(jnp.float32) * (mixer.scale * math.sqrt(mixer.head_dim)), *of_k
    v_BTKh = None if v_BTn is None else v_BTn.reshape(*v_BTn.shape[:-1], -1, mixer.head_dim)
    v_BTKh = rms_norm(v_BTKh, None, call.eps) if v_BTKh is not None and mixer.v_norm else v_BTKh
    how = HeadTransform(mixer, call.eps, scales)
    q_BTHh, k_BTKh, v_BTKh = call.heads(how, positions_BT, q_BTn, k_BTn, v_BTKh)
    if mixer.query_scaling is not None:
        q_BTHh = _scaled(q_BTHh, positions_BT, mixer.query_scaling)
    sinks = (w["sinks_H"],) if mixer.sinks else ()
    attend: Any = call.attend
    o_BTHh = attend(q_BTHh, k_BTKh, v_BTKh, *sinks)
    if gate_BTHh is not None:
        o_BTHh = o_BTHh * jax.nn.sigmoid(gate_BTHh)
    out_BTD = shards.leave_layer(product(o_BTHh.reshape(*o_BTHh.shape[:2], -1), w["o_Hh_D"]))
    return with_bias(out_BTD, shards.between_layers(w["o_bias_D"])) if mixer.output_bias else out_BTD


# ---------------------------------------------------------------------------------------------------------------- delta
def _decays(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """ln of rates drawn uniformly up to 16, as in Mamba 2."""
    return jnp.log(jax.random.uniform(key, shape, jnp.float32, 1e-2, 16.0)).astype(dtype)


def _delta_weights(cfg: ModelConfig, mixer: Delta) -> Weights:
    D, H, K = cfg.width, mixer.num_heads, mixer.num_key_heads
    Kh, He = K * mixer.key_dim, H * mixer.value_dim
    return {
        "q_D_Kh": weight((D, Kh), "width", "heads"),
        "k_D_Kh": weight((D, Kh), "width", "heads"),
        "v_D_He": weight((D, He), "width", "heads"),
        "z_D_He": weight((D, He), "width", "heads"),
        "beta_DH": weight((D, H), "width", "heads"),
        "decay_DH": weight((D, H), "width", "heads"),
        "q_taps_Kh_a": weight((Kh, mixer.taps), "head_bias", None),
        "k_taps_Kh_a": weight((Kh, mixer.taps), "head_bias", None),
        "v_taps_He_a": weight((He, mixer.taps), "head_bias", None),
        "rate_H": weight((H,), "head_bias", init=_decays),
        "decay_bias_H": weight((H,), "head_bias", init=ones),
        "norm_e": weight((mixer.value_dim,), None, init=ones),
        "o_He_D": weight((He, D), "heads", "width"),
    }


def _delta(mixer: Delta, w: Params, x_BTD: jax.Array, call: LayerCall) -> jax.Array:
    shards, f32 = call.shards, jnp.float32
    x_BTD = shards.enter_layer(x_BTD).reshape(*call.positions_BT.shape, -1)

    def projected(name: str, dim: int) -> jax.Array:
        y = checkpoint_name(product(x_BTD, w[name]), "qkv")
        return y.reshape(*y.shape[:2], -1, dim)

    def taps(name: str, dim: int) -> jax.Array:
        return w[name].reshape(-1, dim, mixer.taps)

    h, e = mixer.key_dim, mixer.value_dim
    # XLA joins products of one array and one precision. On GPUs it reads wide matrices where they are, but with these
    # two beside them it would copy all of them first, for every token.
    exact = partial(product, x_BTD, precision=lax.Precision.HIGHEST)
    beta_BTH = jax.nn.sigmoid(exact(w["beta_DH"]).astype(f32)) * (2 if mixer.doubled else 1)
    step_BTH = jax.nn.softplus(exact(w["decay_DH"]).astype(f32) + w["decay_bias_H"].astype(f32))
    decay_BTH = -jnp.exp(w["rate_H"].astype(f32)) * step_BTH
    streams = Streams(projected("q_D_Kh", h), projected("k_D_Kh", h), projected("v_D_He", e), decay_BTH, beta_BTH)
    o_BTHe = call.attend(streams, Taps(taps("q_taps_Kh_a", h), taps("k_taps_Kh_a", h), taps("v_taps_He_a", e)))
    # All heads share the scale and each device of a tensor group has different heads: its gradients are summed.
    o_BTHe = rms_norm(o_BTHe, shards.enter(w["norm_e"]), mixer.norm_eps)
    gate_BTHe = jax.nn.silu(projected("z_D_He", e).astype(f32))
    o_BTHe = (o_BTHe.astype(f32) * gate_BTHe).astype(x_BTD.dtype)
    return shards.leave_layer(product(o_BTHe.reshape(*o_BTHe.shape[:2], -1), w["o_He_D"]))


# ---------------------------------------------------------------------------------------------------------------- feeds
def _dense_weights(cfg: ModelConfig, feed: Dense) -> Weights:
    D, F = cfg.width, feed.width
    return {
        "gate_DF": weight((D, F), "width", "ffn"),
        "up_DF": weight((D, F), "width", "ffn"),
        "down_FD": weight((F, D), "ffn", "width"),
    }


def _dense(feed: Dense, w: Params, x_BTD: jax.Array, call: LayerCall) -> jax.Array:
    """SwiGLU or GeGLU (Shazeer 2020): (activation(x W_gate) ⊙ x W_up) W_down."""
    x_BTD = call.shards.enter_layer(x_BTD)
    hidden_BTF = ACTIVATIONS[feed.activation](product(x_BTD, w["gate_DF"])) * product(x_BTD, w["up_DF"])
    return call.shards.leave_layer(product(hidden_BTF, w["down_FD"]))


def _expert_weights(cfg: ModelConfig, feed: Experts) -> Weights:
    D, F, X = cfg.width, feed.width, feed.count
    return {
        "router_DX": weight((D, X), "width", None),
        "gate_XDF": weight((X, D, F), "experts", "width", "ffn"),
        "up_XDF": weight((X, D, F), "experts", "width", "ffn"),
        "down_XFD": weight((X, F, D), "experts", "ffn", "width"),
        **(_shared_weights(D, feed.shared) if feed.shared else {}),
        **(_expert_biases(D, F, X) if feed.bias else {}),
    }


def _shared_weights(D: int, F: int) -> Weights:
    return {
        "shared_gate_DF": weight((D, F), "width", "ffn"),
        "shared_up_DF": weight((D, F), "width", "ffn"),
        "shared_down_FD": weight((F, D), "ffn", "width"),
        "shared_D1": weight((D, 1), "width", None),
    }


def _expert_biases(D: int, F: int, X: int) -> Weights:
    return {
        "router_bias_X": weight((X,), None, init=zeros),
        "gate_bias_XF": weight((X, F), "experts", "ffn", init=zeros),
        "up_bias_XF": weight((X, F), "experts", "ffn", init=zeros),
        "down_bias_XD": weight((X, D), "experts", "width", init=zeros),
    }


def _experts(feed: Experts, w: Params, x_BTD: jax.Array, call: LayerCall) -> jax.Array:
    out_BTD = moe_layer(feed, w, x_BTD, call.shards, router=call.router)
    return out_BTD + _shared(w, x_BTD, call.shards) if feed.shared else out_BTD


def _shared(w: Params, x_BTD: jax.Array, shards: Shards) -> jax.Array:
    """The expert that every token has, times the sigmoid of its gate."""
    x_BTD = shards.enter_layer(x_BTD)
    hidden_BTF = jax.nn.silu(product(x_BTD, w["shared_gate_DF"])) * product(x_BTD, w["shared_up_DF"])
    gate_BT1 = jax.nn.sigmoid(product(x_BTD, shards.enter(w["shared_D1"])))
    return shards.leave_layer(gate_BT1 * product(hidden_BTF, w["shared_down_FD"]))


def _parallel_weights(cfg: ModelConfig, feed: Parallel) -> Weights:
    norms = ("dense_out_norm_D", "experts_norm_D", "experts_out_norm_D", "router_norm_D")
    return {
        **_dense_weights(cfg, feed.dense),
        **_expert_weights(cfg, feed.experts),
        **{name: norm_weight(cfg, cfg.width) for name in norms},
        "expert_scale_X": weight((feed.experts.count,), None, init=ones),
    }


def _parallel(feed: Parallel, w: Params, x_BTD: jax.Array, call: LayerCall) -> jax.Array:
    """norm(dense(x)) + norm(experts(norm(stream))); the router reads a norm of its own of the stream, times D^−½."""

    def norm(x_BTD: jax.Array, name: str) -> jax.Array:
        return rms_norm(x_BTD, scale_of(call.shards.between_layers(w[name]), call.offset), call.eps)

    dense_BTD = norm(_dense(feed.dense, w, x_BTD, call), "dense_out_norm_D")
    router_BTD = norm(call.stream_BTD, "router_norm_D") * jnp.asarray(x_BTD.shape[-1] ** -0.5, x_BTD.dtype)
    inputs = norm(call.stream_BTD, "experts_norm_D"), call.shards, router_BTD, call.router
    return dense_BTD + norm(moe_layer(feed.experts, w, *inputs), "experts_out_norm_D")


# --------------------------------------------------------------------------------------------------------------- tables
@dataclass(frozen=True)
class LayerPart:
    """A mixer or a feed-forward part; the functions take its description from `models.decoder.config`.

    weights(cfg, part): declarations by name, of one layer. apply(part, w, x_BTD, call): its output, before the
    residual. multiplied(D, part): weights that multiply a token. values(part): numbers of a token between its first and
    its last product. divided(part): sizes that a tensor group divides, by name. targets: weights that adapters call
    "all-linear", if they are tensors of their own in files. expert_targets: those that they call "experts".
    """

    weights: Callable[[ModelConfig, Any], Weights]
    apply: Callable[[Any, Params, jax.Array, LayerCall], jax.Array]
    multiplied: Callable[[int, Any], int]
    values: Callable[[Any], int]
    divided: Callable[[Any], dict[str, int]]
    targets: tuple[str, ...] = ()
    expert_targets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mixer(LayerPart):
    """projected(part): numbers of a token that its first products give. pair(part): FLOPs of a query and a key that it
    sees, forward. page(part): (kv heads, head dim) of the keys, and of the values, that it keeps of a token, in a cache
    that grows with the text; None if it reads another layer's. kept(part): what it keeps of a text instead, whatever
    its length: arrays by name, the heads first (`delta.Kept`)."""

    projected: Callable[[Any], int]
    pair: Callable[[Any], float]
    page: Callable[[Any], tuple[int, int] | None] | None = None
    kept: Callable[[Any], dict[str, tuple[int, ...]]] | None = None


def _projected(mixer: Attention) -> int:
    queries, keys = (2 if mixer.gate else 1) * mixer.num_heads, (2 if mixer.values == "own" else 1) * mixer.num_kv_heads
    return (queries + (keys if mixer.source is None else 0)) * mixer.head_dim


MIXERS: dict[type, Mixer] = {
    Attention: Mixer(
        _attention_weights,
        _attention,
        multiplied=lambda D, a: D * (a.num_heads * a.head_dim + _projected(a)),
        values=lambda a: ((3 if a.gate else 2) * a.num_heads + 2 * a.num_kv_heads * (a.source is None)) * a.head_dim,
        projected=_projected,
        divided=lambda a: {"num_kv_heads": a.num_kv_heads, "num_heads": a.num_heads},
        targets=("q_D_Hh", "k_D_Kh", "v_D_Kh", "o_Hh_D"),
        page=lambda a: (a.num_kv_heads, a.head_dim) if a.source is None else None,
        pair=lambda a: 4.0 * a.num_heads * a.head_dim,  # q kᵀ and p v, each 2 per head and head dimension
    ),
    Delta: Mixer(
        _delta_weights,
        _delta,
        # The numbers of the state multiply a token three times: with its key, to be written, with its query.
        multiplied=lambda D, d: (
            D * (2 * d.num_key_heads * d.key_dim + 3 * d.num_heads * d.value_dim + 2 * d.num_heads)
            + 3 * d.num_heads * d.key_dim * d.value_dim
        ),
        values=lambda d: 4 * d.num_heads * (d.key_dim + d.value_dim),  # in float32, convolved and not
        projected=lambda d: 2 * d.num_key_heads * d.key_dim + 2 * d.num_heads * d.value_dim,
        divided=lambda d: {"linear key heads": d.num_key_heads},
        targets=("q_D_Kh", "k_D_Kh", "v_D_He", "z_D_He", "beta_DH", "decay_DH", "o_He_D"),
        pair=lambda d: 0.0,
        kept=lambda d: {
            "state_BHhe": (d.num_heads, d.key_dim, d.value_dim),
            "q_BKah": (d.num_key_heads, d.taps - 1, d.key_dim),
            "k_BKah": (d.num_key_heads, d.taps - 1, d.key_dim),
            "v_BHae": (d.num_heads, d.taps - 1, d.value_dim),
        },
    ),
}
FEEDS: dict[type, LayerPart] = {
    Dense: LayerPart(
        _dense_weights,
        _dense,
        multiplied=lambda D, f: 3 * D * f.width,
        values=lambda f: 3 * f.width,  # gate, up and their product
        divided=lambda f: {"ffn_width": f.width},
        targets=("gate_DF", "up_DF", "down_FD"),
    ),
    Experts: LayerPart(
        _expert_weights,
        _experts,
        multiplied=lambda D, f: D * f.count + 3 * D * (f.width * f.picked + f.shared) + (D if f.shared else 0),
        values=lambda f: 3 * (f.width * f.picked + f.shared),
        divided=lambda f: {"ffn_width": f.width, **({"shared_width": f.shared} if f.shared else {})},
        targets=("shared_gate_DF", "shared_up_DF", "shared_down_FD"),
        expert_targets=("gate_XDF", "up_XDF", "down_XFD"),
    ),
}
_of_dense, _of_experts = FEEDS[Dense], FEEDS[Experts]
FEEDS[Parallel] = LayerPart(
    _parallel_weights,
    _parallel,
    multiplied=lambda D, f: _of_dense.multiplied(D, f.dense) + _of_experts.multiplied(D, f.experts),
    values=lambda f: _of_dense.values(f.dense) + _of_experts.values(f.experts),
    divided=lambda f: {"ffn_width": f.dense.width, "expert_width": f.experts.width},
    targets=_of_dense.targets,
    expert_targets=_of_experts.expert_targets,
)


def mixer_of(layer: Layer) -> Mixer:
    return MIXERS[type(layer.mixer)]


def feed_of(layer: Layer) -> LayerPart:
    return FEEDS[type(layer.feed)]


def layer_weights(cfg: ModelConfig, layer: Layer) -> Weights:
    """The declarations of one layer's weights."""
    after = layer.norms == "both"
    return {
        "attn_norm_D": norm_weight(cfg, cfg.width),
        **mixer_of(layer).weights(cfg, layer.mixer),
        **({"attn_out_norm_D": norm_weight(cfg, cfg.width)} if after else {}),
        "ffn_norm_D": norm_weight(cfg, cfg.width),
        **feed_of(layer).weights(cfg, layer.feed),
        **({"ffn_out_norm_D": norm_weight(cfg, cfg.width)} if after else {}),
        **(_input_weights(cfg, layer.inputs) if layer.inputs else {}),
        **({"scalar_1": weight((1,), None, init=ones)} if layer.scalar else {}),
    }


def _input_weights(cfg: ModelConfig, size: int) -> Weights:
    return {
        "input_gate_Dp": weight((cfg.width, size), "width", None),
        "input_out_pD": weight((size, cfg.width), "inputs", None),
        "input_norm_D": norm_weight(cfg, cfg.width),
    }


def of_inputs(w: Params, x_BTD: jax.Array, input_BTp: jax.Array, shards: Shards) -> jax.Array:
    """What a layer makes of its own vectors of the tokens (Gemma 4's E sizes): (gelu(x W_gate) ⊙ input) W_out. They
    are few, so that the devices of a tensor group all compute it."""
    gate, out = (jax.tree.map(shards.between_layers, w[name]) for name in INPUT_TARGETS)
    return product(ACTIVATIONS["gelu_tanh"](product(x_BTD, gate)) * input_BTp, out)


def multiplied(cfg: ModelConfig) -> Iterator[int]:
    """Weights that multiply a token, of each layer."""
    for layer in cfg.layers:
        mixed = mixer_of(layer).multiplied(cfg.width, layer.mixer)
        # Of a layer's own vectors: the projection that gives them, gate and output.
        yield mixed + feed_of(layer).multiplied(cfg.width, layer.feed) + 3 * cfg.width * layer.inputs


def undivided(cfg: ModelConfig, size: int) -> str | None:
    """A figure of the model that a tensor group of this size does not divide, as name=value; None if there is none.
    Devices may share a kv head."""
    for layer in cfg.layers:
        sizes = mixer_of(layer).divided(layer.mixer) | feed_of(layer).divided(layer.feed)
        for name, count in (sizes | {"table_rows": cfg.table_rows}).items():
            if count % size and (name != "num_kv_heads" or size % count):
                return f"{name}={count}"
    return None


def kept_bytes(cfg: ModelConfig, itemsize: int) -> int:
    """Bytes that layers with states keep of a text, whatever its length; of 0 without any. itemsize: of activations."""
    found = 0
    for layer in cfg.layers:
        shapes = mixer_of(layer).kept
        for name, shape in ({} if shapes is None else shapes(layer.mixer)).items():
            found += math.prod(shape) * (4 if name.startswith("state") else itemsize)
    return found


def has_sinks(cfg: ModelConfig) -> bool:
    """Whether attention has sinks."""
    return any(isinstance(layer.mixer, Attention) and layer.mixer.sinks for layer in cfg.layers)


def kv_heads(cfg: ModelConfig, tensor: int = 1) -> int:
    """The largest number that divides the kv heads of every layer with attention, on each device of a tensor group of
    this size: 1 if several devices have the same head."""
    heads = math.gcd(*(cfg.layers[number].attention.num_kv_heads for number in cfg.attention_layers))
    return max(1, heads // tensor)


def head_dim(cfg: ModelConfig) -> int:
    """The largest number that divides the dimension of a head in every layer with attention."""
    return math.gcd(*(cfg.layers[number].attention.head_dim for number in cfg.attention_layers))


def vector_bytes(dtype: Any, head_dim: int) -> int:
    """Of a key or value of one head in the cache: in int8 it has a scale in float32."""
    return head_dim * jnp.dtype(dtype).itemsize + (4 if jnp.dtype(dtype) == jnp.int8 else 0)


def cached_bytes(
    cfg: ModelConfig, tensor: int, dtype: Any, kept: Callable[[int | None], float], read: bool = False
) -> float:
    """Of keys and values in the cache of a row, on one of `tensor` devices that share its heads; kept(window): tokens
    that a layer keeps. read: of every layer that reads some, not of those that keep some."""
    mixers = (cfg.layers[number].attention for number in (cfg.attention_layers if read else cfg.cache_layers))
    return sum(
        2 * max(1.0, one.num_kv_heads / tensor) * vector_bytes(dtype, one.head_dim) * kept(one.window) for one in mixers
    )
