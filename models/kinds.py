"""What layers are made of: `MIXERS` and `FEEDS`, by the type that describes one in `models.config`.

A kind declares the weights of one layer, what their tensors are multiplied with, which of them adapters may adapt, and
what a mixer keeps of a token for later ones; the rest of the product reads these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from scope_jax.models.attention import Attend
from scope_jax.models.config import Attention, Dense, Experts, Layer, ModelConfig, QueryScaling
from scope_jax.models.lowrank import product
from scope_jax.models.moe import GroupedMatmul, moe_layer
from scope_jax.models.rope import rotate
from scope_jax.models.sums import with_bias
from scope_jax.sharding.collectives import Shards
from scope_jax.sharding.spec import Initializer, Param, normal, ones, zeros

Params = dict[str, Any]
Weights = dict[str, Param]
INIT_STD = 0.02  # GPT-2's, and transformers' initializer_range


def weight(shape: tuple[int, ...], *axes: str | None, init: Initializer = normal(INIT_STD)) -> Param:
    """A weight of one layer; master weights are float32."""
    return Param(shape, axes, init, jnp.float32)


def rms_norm(x: Float[Array, "..."], scale: Float[Array, " n"], eps: float) -> Float[Array, "..."]:
    """x / √(mean(x²) + eps) · scale over the last dimension, computed in float32 (Zhang & Sennrich 2019)."""
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (normed * scale.astype(jnp.float32)).astype(x.dtype)


# ----------------------------------------------------------------------------------------------------------- attention
def _attention_weights(width: int, mixer: Attention) -> Weights:
    D, h = width, mixer.head_dim
    Hh, Kh = mixer.num_heads * h, mixer.num_kv_heads * h
    found = {
        "q_D_Hh": weight((D, Hh), "width", "heads"),
        "k_D_Kh": weight((D, Kh), "width", "kv_heads"),
        "v_D_Kh": weight((D, Kh), "width", "kv_heads"),
        "o_Hh_D": weight((Hh, D), "heads", "width"),
    }
    if mixer.qk_norm == "head":
        found |= {name: weight((h,), None, init=ones) for name in ("q_norm_h", "k_norm_h")}
    elif mixer.qk_norm == "width":
        found |= {
            "q_norm_Hh": weight((Hh,), "head_bias", init=ones),
            "k_norm_Kh": weight((Kh,), "head_bias", init=ones),
        }
    if mixer.qkv_bias:
        sizes = {"q_bias_Hh": Hh, "k_bias_Kh": Kh, "v_bias_Kh": Kh}
        found |= {name: weight((size,), "head_bias", init=zeros) for name, size in sizes.items()}
    if mixer.output_bias:
        found["o_bias_D"] = weight((D,), None, init=zeros)
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


def _project(
    mixer: Attention, eps: float, w: Params, x_BTD: jax.Array, name: Literal["q", "k", "v"], shards: Shards
) -> jax.Array:
    """The q, k or v projection, [B, T, heads · h], with bias and the norm over all heads where the model has them.

    Of more devices in a tensor group than kv heads, several have the same one: each computes a part of its columns."""
    axes = "Hh" if name == "q" else "Kh"
    y = checkpoint_name(product(x_BTD, w[f"{name}_D_{axes}"]), "qkv")  # before the norm, whose gradient needs it
    if mixer.qkv_bias:
        y = with_bias(y, w[f"{name}_bias_{axes}"])
    if mixer.qk_norm == "width" and name != "v":
        y = _width_norm(y, w[f"{name}_norm_{axes}"], eps, shards)
    return y if name == "q" else shards.whole_heads(y, mixer.head_dim)


def plain_heads(
    mixer: Attention,
    eps: float,
    scales: tuple[jax.Array, jax.Array] | None,
    q_BTn: Float[Array, "B T Hh"],
    k_BTn: Float[Array, "B T Kh"],
    positions_BT: Int[Array, "B T"],
) -> tuple[Float[Array, "B T H h"], Float[Array, "B T K h"]]:
    """Queries and keys by head, after the norm of each head (scales [h], None: the model has none) and rotation."""

    def heads(y_BTn: jax.Array, number: int) -> jax.Array:
        y = y_BTn.reshape(*y_BTn.shape[:-1], -1, mixer.head_dim)
        y = y if scales is None else rms_norm(y, scales[number], eps)
        return y if mixer.rope is None else rotate(y, positions_BT, mixer.rope)

    return heads(q_BTn, 0), heads(k_BTn, 1)


Heads = Callable[..., tuple[jax.Array, jax.Array]]  # plain_heads, or a kernel that computes the same


def _scaled(q_BTHh: jax.Array, positions_BT: Any, scaling: QueryScaling) -> jax.Array:
    turns_BT = jnp.floor(positions_BT / scaling.original_positions)
    factor_BT = (1 + scaling.beta * jnp.log(1 + turns_BT)).astype(q_BTHh.dtype)
    return q_BTHh * factor_BT[..., None, None]


@dataclass(frozen=True)
class Call:
    """What a layer is computed with beside its weights and input.

    eps: of its norms. attend(q_BTHh, k_BTKh, v_BTKh) -> o_BTHh gets this device's heads, queries and keys after norm
    and rotation, and is responsible for mask, scale and cache. heads: what computes norm and rotation. grouped: the
    grouped matmul of `models.moe`, None for that of its kernels.
    """

    eps: float
    positions_BT: Any
    attend: Attend
    shards: Shards
    heads: Heads
    grouped: GroupedMatmul | None


def _attention(mixer: Attention, w: Params, x_BTD: jax.Array, call: Call) -> jax.Array:
    shards, positions_BT = call.shards, call.positions_BT
    x_BTD = shards.enter_layer(x_BTD).reshape(*positions_BT.shape, -1)
    q_BTn, k_BTn, v_BTn = (_project(mixer, call.eps, w, x_BTD, name, shards) for name in ("q", "k", "v"))
    # All heads share the scale and each device of a tensor group has different heads: their gradients are summed.
    norms = ("q_norm_h", "k_norm_h") if mixer.qk_norm == "head" else ()
    scales = tuple(shards.enter(w[name]) for name in norms) or None
    q_BTHh, k_BTKh = call.heads(mixer, call.eps, scales, q_BTn, k_BTn, positions_BT)
    if mixer.query_scaling is not None:
        q_BTHh = _scaled(q_BTHh, positions_BT, mixer.query_scaling)
    o_BTHh = call.attend(q_BTHh, k_BTKh, v_BTn.reshape(*v_BTn.shape[:-1], -1, mixer.head_dim))
    out_BTD = shards.leave_layer(product(o_BTHh.reshape(*o_BTHh.shape[:2], -1), w["o_Hh_D"]))
    return with_bias(out_BTD, shards.between_layers(w["o_bias_D"])) if mixer.output_bias else out_BTD


# ---------------------------------------------------------------------------------------------------------------- feeds
def _dense_weights(width: int, feed: Dense) -> Weights:
    D, F = width, feed.width
    return {
        "gate_DF": weight((D, F), "width", "ffn"),
        "up_DF": weight((D, F), "width", "ffn"),
        "down_FD": weight((F, D), "ffn", "width"),
    }


def _dense(feed: Dense, w: Params, x_BTD: jax.Array, call: Call) -> jax.Array:
    """SwiGLU (Shazeer 2020): (silu(x W_gate) ⊙ x W_up) W_down."""
    x_BTD = call.shards.enter_layer(x_BTD)
    hidden_BTF = jax.nn.silu(product(x_BTD, w["gate_DF"])) * product(x_BTD, w["up_DF"])
    return call.shards.leave_layer(product(hidden_BTF, w["down_FD"]))


def _expert_weights(width: int, feed: Experts) -> Weights:
    D, F, X = width, feed.width, feed.count
    return {
        "router_DX": weight((D, X), "width", None),
        "gate_XDF": weight((X, D, F), "experts", "width", "ffn"),
        "up_XDF": weight((X, D, F), "experts", "width", "ffn"),
        "down_XFD": weight((X, F, D), "experts", "ffn", "width"),
    }


def _experts(feed: Experts, w: Params, x_BTD: jax.Array, call: Call) -> jax.Array:
    return moe_layer(feed, w, x_BTD, call.shards, call.grouped)


# --------------------------------------------------------------------------------------------------------------- tables
@dataclass(frozen=True)
class Part:
    """A mixer or a feed-forward part; the functions take its description from `models.config`.

    weights(D, part): declarations by name, of one layer. apply(part, w, x_BTD, call): its output, before the residual.
    multiplied(D, part): weights that multiply a token. values(part): numbers of a token between its first and its last
    product. divided(part): sizes that a tensor group divides, by name. targets: module of Hugging Face -> weight, what
    adapters call "all-linear". expert_targets: what they call "experts".
    """

    weights: Callable[[int, Any], Weights]
    apply: Callable[[Any, Params, jax.Array, Call], jax.Array]
    multiplied: Callable[[int, Any], int]
    values: Callable[[Any], int]
    divided: Callable[[Any], dict[str, int]]
    targets: Mapping[str, str] = field(default_factory=dict)
    expert_targets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mixer(Part):
    """page(part): (kv heads, head dim) of the keys, and of the values, that it keeps of a token. projected(part):
    numbers of a token that its first products give. pair(part): FLOPs of a query and a key that it sees, forward."""

    page: Callable[[Any], tuple[int, int]]
    projected: Callable[[Any], int]
    pair: Callable[[Any], float]


MIXERS: dict[type, Mixer] = {
    Attention: Mixer(
        _attention_weights,
        _attention,
        multiplied=lambda D, a: 2 * D * (a.num_heads + a.num_kv_heads) * a.head_dim,
        values=lambda a: 2 * (a.num_heads + a.num_kv_heads) * a.head_dim,
        projected=lambda a: (a.num_heads + 2 * a.num_kv_heads) * a.head_dim,
        divided=lambda a: {"num_kv_heads": a.num_kv_heads, "num_heads": a.num_heads},
        targets={"q_proj": "q_D_Hh", "k_proj": "k_D_Kh", "v_proj": "v_D_Kh", "o_proj": "o_Hh_D"},
        page=lambda a: (a.num_kv_heads, a.head_dim),
        pair=lambda a: 4.0 * a.num_heads * a.head_dim,  # q kᵀ and p v, each 2 per head and head dimension
    ),
}
FEEDS: dict[type, Part] = {
    Dense: Part(
        _dense_weights,
        _dense,
        multiplied=lambda D, f: 3 * D * f.width,
        values=lambda f: 3 * f.width,  # gate, up and their product
        divided=lambda f: {"ffn_width": f.width},
        targets={"gate_proj": "gate_DF", "up_proj": "up_DF", "down_proj": "down_FD"},
    ),
    Experts: Part(
        _expert_weights,
        _experts,
        multiplied=lambda D, f: D * f.count + 3 * D * f.width * f.picked,
        values=lambda f: 3 * f.width * f.picked,
        divided=lambda f: {"ffn_width": f.width},
        expert_targets=("gate_XDF", "up_XDF", "down_XFD"),
    ),
}


def mixer_of(layer: Layer) -> Mixer:
    return MIXERS[type(layer.mixer)]


def feed_of(layer: Layer) -> Part:
    return FEEDS[type(layer.feed)]


def layer_weights(width: int, layer: Layer) -> Weights:
    """The declarations of one layer's weights."""
    return {
        "attn_norm_D": weight((width,), None, init=ones),
        **mixer_of(layer).weights(width, layer.mixer),
        "ffn_norm_D": weight((width,), None, init=ones),
        **feed_of(layer).weights(width, layer.feed),
    }


def multiplied(cfg: ModelConfig) -> Iterator[int]:
    """Weights that multiply a token, of each layer."""
    for layer in cfg.layers:
        yield mixer_of(layer).multiplied(cfg.width, layer.mixer) + feed_of(layer).multiplied(cfg.width, layer.feed)


def undivided(cfg: ModelConfig, size: int) -> str | None:
    """A figure of the model that a tensor group of this size does not divide, as name=value; None if there is none.
    Devices may share a kv head."""
    for layer in cfg.layers:
        sizes = mixer_of(layer).divided(layer.mixer) | feed_of(layer).divided(layer.feed)
        for name, count in (sizes | {"table_rows": cfg.table_rows}).items():
            if count % size and (name != "num_kv_heads" or size % count):
                return f"{name}={count}"
    return None


def kv_heads(cfg: ModelConfig, tensor: int = 1) -> int:
    """The number of kv heads, which all layers have in common, on each device of a tensor group of this size: one, if
    several devices have the same."""
    return max(1, cfg.layers[0].mixer.num_kv_heads // tensor)


def head_dim(cfg: ModelConfig) -> int:
    """The dimension of a head, which all layers have in common."""
    return cfg.layers[0].mixer.head_dim
