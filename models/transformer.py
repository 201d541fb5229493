"""The decoder as pure functions: one `block` for training, prefill and decode; weights stacked over layers and scanned.

Inside `jax.shard_map(..., check_vma=False)` the arrays are local shards and `shards` names the mesh axes; in plain jit,
`shards` is LOCAL and the arrays are whole (XLA partitions the program from the shardings of its inputs).
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from models.attention import Attend, make_attend
from models.config import ModelConfig
from models.rope import rotate
from sharding.collectives import LOCAL, Shards
from sharding.rules import TRAIN
from sharding.spec import Param, normal, ones, partition_specs, zeros

Params = dict[str, Any]

INIT_STD = 0.02  # GPT-2's, and transformers' initializer_range


def _declare_layer(cfg: ModelConfig) -> dict[str, Param]:
    D, F, h = cfg.width, cfg.ffn_width, cfg.head_dim
    Hh, Kh = cfg.num_heads * h, cfg.num_kv_heads * h

    def weight(shape: tuple[int, ...], *axes: str | None, init=normal(INIT_STD)) -> Param:
        return Param((cfg.num_layers, *shape), ("layers", *axes), init, jnp.float32)

    layer = {
        "attn_norm_D": weight((D,), None, init=ones),
        "q_D_Hh": weight((D, Hh), "width", "heads"),
        "k_D_Kh": weight((D, Kh), "width", "kv_heads"),
        "v_D_Kh": weight((D, Kh), "width", "kv_heads"),
        "o_Hh_D": weight((Hh, D), "heads", "width"),
        "ffn_norm_D": weight((D,), None, init=ones),
        "gate_DF": weight((D, F), "width", "ffn"),
        "up_DF": weight((D, F), "width", "ffn"),
        "down_FD": weight((F, D), "ffn", "width"),
    }
    if cfg.qk_norm:
        layer["q_norm_h"] = weight((h,), None, init=ones)
        layer["k_norm_h"] = weight((h,), None, init=ones)
    if cfg.attention_bias:
        layer["q_bias_Hh"] = weight((Hh,), "head_bias", init=zeros)
        layer["k_bias_Kh"] = weight((Kh,), "head_bias", init=zeros)
        layer["v_bias_Kh"] = weight((Kh,), "head_bias", init=zeros)
        layer["o_bias_D"] = weight((D,), None, init=zeros)
    return layer


def declare(cfg: ModelConfig) -> Params:
    """The tree of Param: embed.table_VD, layers.* with a leading L, final_norm.scale_D, head.table_VD if not tied.

    Matrices are [in, out]; names carry the axes of one layer (an underscore between axes when one is a flattened pair).
    Master weights are float32.
    """
    table = Param((cfg.vocab_size, cfg.width), ("vocab", "width"), normal(INIT_STD), jnp.float32)
    tree: Params = {
        "embed": {"table_VD": table},
        "layers": _declare_layer(cfg),
        "final_norm": {"scale_D": Param((cfg.width,), (None,), ones, jnp.float32)},
    }
    if not cfg.tie_embeddings:
        tree["head"] = {"table_VD": table}
    return tree


def check_mesh(cfg: ModelConfig, mesh: Mesh) -> None:
    """Raises ValueError if the tensor axis of the mesh cannot split this model's heads, ffn and vocabulary evenly."""
    _check_tensor(cfg, mesh.shape["tensor"])


def _check_tensor(cfg: ModelConfig, size: int) -> None:
    for name in ("num_kv_heads", "num_heads", "ffn_width", "vocab_size"):
        count = vars(cfg)[name]
        if count % size:
            raise ValueError(f"mesh tensor={size} does not divide the model's {name}={count}; choose one that does.")


def rms_norm(x: Float[Array, "..."], scale: Float[Array, " n"], eps: float) -> Float[Array, "..."]:
    """x / √(mean(x²) + eps) · scale over the last dimension, computed in float32 (Zhang & Sennrich 2019)."""
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (normed * scale.astype(jnp.float32)).astype(x.dtype)


def _dense(x: jax.Array, w: jax.Array) -> jax.Array:
    """x w over the last dimension of x.

    The product is taken over [tokens, in]: with rows and tokens apart, the gradient of w contracts two dimensions, for
    which XLA's CPU backend has no fast path (the gradient of a SwiGLU layer took twice as long).
    """
    return (x.reshape(-1, x.shape[-1]) @ w).reshape(*x.shape[:-1], w.shape[-1])


def _project(x_BTD: jax.Array, w: Params, name: str, axes: str, head_dim: int) -> jax.Array:
    """Heads [B, T, heads, h] of one attention input projection, with its bias if the layer has one."""
    y = _dense(x_BTD, w[f"{name}_D_{axes}"])
    bias = w.get(f"{name}_bias_{axes}")
    if bias is not None:
        y = y + bias
    return y.reshape(*y.shape[:-1], -1, head_dim)


def _attention_layer(
    cfg: ModelConfig, w: Params, x_BTD: jax.Array, positions_BT: jax.Array, attend: Attend, shards: Shards
) -> jax.Array:
    q_BTHh = _project(x_BTD, w, "q", "Hh", cfg.head_dim)
    k_BTKh = _project(x_BTD, w, "k", "Kh", cfg.head_dim)
    v_BTKh = _project(x_BTD, w, "v", "Kh", cfg.head_dim)
    if cfg.qk_norm:
        # The scale is one for all heads and each device of a tensor group has other heads: its gradient is their sum.
        q_BTHh = rms_norm(q_BTHh, shards.enter(w["q_norm_h"]), cfg.norm_eps)
        k_BTKh = rms_norm(k_BTKh, shards.enter(w["k_norm_h"]), cfg.norm_eps)
    q_BTHh = rotate(q_BTHh, positions_BT, cfg.rope_theta)
    k_BTKh = rotate(k_BTKh, positions_BT, cfg.rope_theta)
    o_BTHh = attend(q_BTHh, k_BTKh, v_BTKh)
    out_BTD = shards.psum(_dense(o_BTHh.reshape(*o_BTHh.shape[:2], -1), w["o_Hh_D"]))
    return out_BTD + w["o_bias_D"] if cfg.attention_bias else out_BTD


def _ffn_layer(w: Params, x_BTD: jax.Array, shards: Shards) -> jax.Array:
    """SwiGLU (Shazeer 2020): (silu(x W_gate) ⊙ x W_up) W_down."""
    hidden_BTF = jax.nn.silu(_dense(x_BTD, w["gate_DF"])) * _dense(x_BTD, w["up_DF"])
    return shards.psum(_dense(hidden_BTF, w["down_FD"]))


def block(
    cfg: ModelConfig,
    w: Params,
    x_BTD: Float[Array, "B T D"],
    positions_BT: Int[Array, "B T"],
    attend: Attend,
    shards: Shards,
) -> Float[Array, "B T D"]:
    """One decoder layer: x + attention(norm(x)), then x + ffn(norm(x)).

    w: one layer's weights (no leading L), whole along fsdp, in the dtype of x. attend(q_BTHh, k_BTKh, v_BTKh) -> o_BTHh
    gets queries and keys after their norm and rotation, this device's heads only, and owns mask, scale and cache.
    """
    normed_BTD = shards.enter(rms_norm(x_BTD, w["attn_norm_D"], cfg.norm_eps))
    x_BTD = x_BTD + _attention_layer(cfg, w, normed_BTD, positions_BT, attend, shards)
    normed_BTD = shards.enter(rms_norm(x_BTD, w["ffn_norm_D"], cfg.norm_eps))
    return x_BTD + _ffn_layer(w, normed_BTD, shards)


def embed(
    cfg: ModelConfig,
    params: Params,
    ids_BT: Int[Array, "B T"],
    shards: Shards,
    compute_dtype: Any = None,
) -> Float[Array, "B T D"]:
    """Rows of the embedding table, in compute_dtype (None: the table's own).

    With a tensor group each device holds V/size rows: it looks up the ids it has, zeros for the others, and the group
    sums.
    """
    table = params["embed"]["table_VD"]
    spec = partition_specs(declare(cfg), TRAIN)["embed"]["table_VD"]
    table = shards.gather(table, spec, table.dtype if compute_dtype is None else compute_dtype)
    if shards.tensor is None:
        return table[ids_BT]
    local = ids_BT - shards.index * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    rows = table[jnp.where(mine, local, 0)]
    return shards.psum(jnp.where(mine[..., None], rows, 0))


def output_table(
    cfg: ModelConfig, params: Params, shards: Shards = LOCAL, compute_dtype: Any = None
) -> Float[Array, "V D"]:
    """The table that turns hidden states into logits, hidden_BTD @ table_VD.T: the embedding table if tied.

    Whole along fsdp, in compute_dtype (None: its own); with a tensor group, this device's V/size rows, starting at row
    shards.index · V/size. The caller passes its hidden states through shards.enter before the product.
    """
    name = "embed" if cfg.tie_embeddings else "head"
    table = params[name]["table_VD"]
    spec = partition_specs(declare(cfg), TRAIN)[name]["table_VD"]
    return shards.gather(table, spec, table.dtype if compute_dtype is None else compute_dtype)


def final_norm(cfg: ModelConfig, params: Params, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """The norm after the last layer."""
    return rms_norm(x_BTD, params["final_norm"]["scale_D"].astype(x_BTD.dtype), cfg.norm_eps)


def hidden(
    cfg: ModelConfig,
    params: Params,
    ids_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    segments_BT: Int[Array, "B T"],
    *,
    shards: Shards,
    remat: Literal["full", "none"],
    compute_dtype: Any,
    attention: str = "reference",
) -> Float[Array, "B T D"]:
    """Hidden states after the final norm, in compute_dtype, for packed rows.

    A token sees the tokens before it in its row that have its segment id; segment 0 is padding, whose outputs mean
    nothing. Ids decide nothing but the embedding: a real token equal to the pad id is a real token. Each layer's
    weights are cast and gathered inside the scan, so that one layer at a time is whole; remat "full" keeps only the
    input of each layer for the backward pass (and gathers again there), "none" keeps everything. attention: a backend
    of `models.attention`.
    """
    _check_tensor(cfg, shards.size)
    specs = partition_specs(declare(cfg), TRAIN)["layers"]
    layer_specs = jax.tree.map(lambda spec: PartitionSpec(*spec[1:]), specs)
    attend = make_attend(attention, segments_BT)

    def layer(x_BTD: jax.Array, w_local: Params) -> tuple[jax.Array, None]:
        w = jax.tree.map(lambda x, spec: shards.gather(x, spec, compute_dtype), w_local, layer_specs)
        return block(cfg, w, x_BTD, positions_BT, attend, shards), None

    if remat == "full":
        layer = jax.checkpoint(layer, prevent_cse=False)  # scan already keeps the two passes apart
    elif remat != "none":
        raise ValueError(f"remat is {remat!r}; it must be 'full' or 'none'.")
    x_BTD = embed(cfg, params, ids_BT, shards, compute_dtype)
    x_BTD, _ = lax.scan(layer, x_BTD, params["layers"])
    return final_norm(cfg, params, x_BTD)


def unstack_layers(params: Params) -> Params:
    """The same weights with "layers" as a tuple of L trees, one per layer: generation slices nothing in its loop."""
    stacked = params["layers"]
    num_layers = jax.tree.leaves(stacked)[0].shape[0]
    layers = tuple(jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(num_layers))
    return {**params, "layers": layers}
