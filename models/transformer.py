"""The decoder as pure functions: one `block` for training, prefill and decode; weights stacked over layers and scanned.

Inside `jax.shard_map(..., check_vma=False)` the arrays are local shards and `shards` names the mesh axes; in plain jit,
`shards` is LOCAL and the arrays are global (XLA partitions the program from the shardings of its inputs).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from scope_jax.errors import UserError
from scope_jax.models import context
from scope_jax.models.attention import Attend, make_attend
from scope_jax.models.config import ModelConfig
from scope_jax.models.lowrank import LowRank, factors_of, gathered, product
from scope_jax.models.moe import GroupedMatmul, moe_layer
from scope_jax.models.rope import Rope, rotate
from scope_jax.models.sums import rows_of, with_bias
from scope_jax.sharding.collectives import LOCAL, Shards
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import Param, normal, ones, partition_specs, spec_for, zeros

Params = dict[str, Any]

Remat = Literal["full", "qkv", "dots", "none"]
# What a layer keeps for its backward pass beside its input; the rest is computed again.
POLICIES = {
    "full": None,
    "qkv": jax.checkpoint_policies.save_only_these_names("qkv"),
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
INIT_STD = 0.02  # GPT-2's, and transformers' initializer_range


def _declare_layer(cfg: ModelConfig) -> dict[str, Param]:
    D, F, X, h = cfg.width, cfg.ffn_width, cfg.num_experts, cfg.head_dim
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
    }
    if cfg.num_experts:
        layer["router_DX"] = weight((D, X), "width", None)
        layer["gate_XDF"] = weight((X, D, F), "experts", "width", "ffn")
        layer["up_XDF"] = weight((X, D, F), "experts", "width", "ffn")
        layer["down_XFD"] = weight((X, F, D), "experts", "ffn", "width")
    else:
        layer["gate_DF"] = weight((D, F), "width", "ffn")
        layer["up_DF"] = weight((D, F), "width", "ffn")
        layer["down_FD"] = weight((F, D), "ffn", "width")
    if cfg.qk_norm == "head":
        layer["q_norm_h"] = weight((h,), None, init=ones)
        layer["k_norm_h"] = weight((h,), None, init=ones)
    elif cfg.qk_norm == "width":
        layer["q_norm_Hh"] = weight((Hh,), "head_bias", init=ones)
        layer["k_norm_Kh"] = weight((Kh,), "head_bias", init=ones)
    if cfg.qkv_bias:
        layer["q_bias_Hh"] = weight((Hh,), "head_bias", init=zeros)
        layer["k_bias_Kh"] = weight((Kh,), "head_bias", init=zeros)
        layer["v_bias_Kh"] = weight((Kh,), "head_bias", init=zeros)
    if cfg.output_bias:
        layer["o_bias_D"] = weight((D,), None, init=zeros)
    return layer


def declare(cfg: ModelConfig) -> Params:
    """The tree of Param: embed.table_VD, layers.* with a leading L, final_norm.scale_D, head.table_VD if not tied.

    The tables of large vocabularies are padded (`ModelConfig.table_rows`).
    Matrices are [in, out]; names end with the axes of one layer (an underscore separates a flattened pair of axes).
    Master weights are float32.
    """
    padding = cfg.table_rows - cfg.vocab_size
    table = Param((cfg.table_rows, cfg.width), ("vocab", "width"), normal(INIT_STD), jnp.float32, padding)
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
    for name in ("num_kv_heads", "num_heads", "ffn_width", "table_rows"):
        count = getattr(cfg, name)
        if count % size:
            raise UserError(f"mesh tensor={size} does not divide the model's {name}={count}; choose one that does.")


def rms_norm(x: Float[Array, "..."], scale: Float[Array, " n"], eps: float) -> Float[Array, "..."]:
    """x / √(mean(x²) + eps) · scale over the last dimension, computed in float32 (Zhang & Sennrich 2019)."""
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (normed * scale.astype(jnp.float32)).astype(x.dtype)


def _width_norm(x: jax.Array, scale: jax.Array, eps: float, shards: Shards) -> jax.Array:
    """rms_norm over a width that is sharded over the tensor group.

    Every device's output depends on the sum of all squares, so the cotangent of that sum must itself be summed over
    the group: `enter` after `psum` does that; `psum` alone would keep only each device's own part.
    """
    x32 = x.astype(jnp.float32)
    squares = shards.enter(shards.psum(jnp.sum(jnp.square(x32), axis=-1, keepdims=True)))
    normed = x32 * lax.rsqrt(squares / (x.shape[-1] * shards.size) + eps)
    return (normed * scale.astype(jnp.float32)).astype(x.dtype)


def _project(cfg: ModelConfig, w: Params, x_BTD: jax.Array, name: Literal["q", "k", "v"], shards: Shards) -> jax.Array:
    """The q, k or v projection, [B, T, heads · h], with bias and the norm over all heads where the model has them."""
    axes = "Hh" if name == "q" else "Kh"
    y = checkpoint_name(product(x_BTD, w[f"{name}_D_{axes}"]), "qkv")  # before the norm, whose gradient needs it
    if cfg.qkv_bias:
        y = with_bias(y, w[f"{name}_bias_{axes}"])
    if cfg.qk_norm == "width" and name != "v":
        y = _width_norm(y, w[f"{name}_norm_{axes}"], cfg.norm_eps, shards)
    return y


def plain_heads(
    cfg: ModelConfig,
    rope: Rope,
    scales: tuple[jax.Array, jax.Array] | None,
    q_BTn: Float[Array, "B T Hh"],
    k_BTn: Float[Array, "B T Kh"],
    positions_BT: Int[Array, "B T"],
) -> tuple[Float[Array, "B T H h"], Float[Array, "B T K h"]]:
    """Queries and keys by head, after the norm of each head (scales [h], None: the model has none) and rotation."""

    def heads(y_BTn: jax.Array, number: int) -> jax.Array:
        y = y_BTn.reshape(*y_BTn.shape[:-1], -1, cfg.head_dim)
        return rotate(y if scales is None else rms_norm(y, scales[number], cfg.norm_eps), positions_BT, rope)

    return heads(q_BTn, 0), heads(k_BTn, 1)


Heads = Callable[..., tuple[jax.Array, jax.Array]]  # plain_heads, or a kernel that computes the same


def _attention_layer(
    cfg: ModelConfig,
    rope: Rope,
    w: Params,
    x_BTD: jax.Array,
    positions_BT: jax.Array,
    attend: Attend,
    shards: Shards,
    heads: Heads,
) -> jax.Array:
    x_BTD = shards.enter_layer(x_BTD).reshape(*positions_BT.shape, -1)
    q_BTn, k_BTn, v_BTn = (_project(cfg, w, x_BTD, name, shards) for name in ("q", "k", "v"))
    # All heads share the scale and each device of a tensor group has different heads: their gradients are summed.
    norms = ("q_norm_h", "k_norm_h") if cfg.qk_norm == "head" else ()
    scales = tuple(shards.enter(w[name]) for name in norms) or None
    q_BTHh, k_BTKh = heads(cfg, rope, scales, q_BTn, k_BTn, positions_BT)
    o_BTHh = attend(q_BTHh, k_BTKh, v_BTn.reshape(*v_BTn.shape[:-1], -1, cfg.head_dim))
    out_BTD = shards.leave_layer(product(o_BTHh.reshape(*o_BTHh.shape[:2], -1), w["o_Hh_D"]))
    return with_bias(out_BTD, shards.between_layers(w["o_bias_D"])) if cfg.output_bias else out_BTD


def _ffn_layer(w: Params, x_BTD: jax.Array, shards: Shards) -> jax.Array:
    """SwiGLU (Shazeer 2020): (silu(x W_gate) ⊙ x W_up) W_down."""
    x_BTD = shards.enter_layer(x_BTD)
    hidden_BTF = jax.nn.silu(product(x_BTD, w["gate_DF"])) * product(x_BTD, w["up_DF"])
    return shards.leave_layer(product(hidden_BTF, w["down_FD"]))


def block(
    cfg: ModelConfig,
    rope: Rope,
    w: Params,
    x_BTD: Float[Array, "B T D"],
    positions_BT: Int[Array, "B T"],
    attend: Attend,
    shards: Shards,
    grouped: GroupedMatmul | None = None,
    heads: Heads = plain_heads,
) -> Float[Array, "B T D"]:
    """One decoder layer: x + attention(norm(x)), then x + ffn(norm(x)); with norm "post" x + norm(attention(x)) etc.

    With sequence parallelism x_BTD and the result are this device's tokens, [1, B · T / group, D]; positions_BT and
    `attend` are of all of them. rope: this layer's rotary positions. w: its weights (no leading L), gathered over fsdp,
    in the dtype of x. attend(q_BTHh, k_BTKh, v_BTKh) -> o_BTHh gets this device's heads, queries and keys after norm
    and rotation, and is responsible for mask, scale and cache. grouped: the grouped matmul of `models.moe` for MoE
    layers. heads: what computes norm and rotation.
    """

    def feed(x_BTD: jax.Array) -> jax.Array:
        return moe_layer(cfg, w, x_BTD, shards, grouped) if cfg.num_experts else _ffn_layer(w, x_BTD, shards)

    def add(x_BTD: jax.Array, scale_D: jax.Array, layer: Callable[[jax.Array], jax.Array]) -> jax.Array:
        scale_D = shards.between_layers(scale_D)
        if cfg.norm == "post":
            return x_BTD + rms_norm(layer(x_BTD), scale_D, cfg.norm_eps)
        return x_BTD + layer(rms_norm(x_BTD, scale_D, cfg.norm_eps))

    def mix(x_BTD: jax.Array) -> jax.Array:
        return _attention_layer(cfg, rope, w, x_BTD, positions_BT, attend, shards, heads)

    x_BTD = add(x_BTD, w["attn_norm_D"], mix)
    return add(x_BTD, w["ffn_norm_D"], feed)


def embed(
    cfg: ModelConfig,
    params: Params,
    ids_BT: Int[Array, "B T"],
    shards: Shards,
    compute_dtype: Any = None,
) -> Float[Array, "B T D"]:
    """Rows of the embedding table, in compute_dtype (None: the table's own).

    With a tensor group each device holds a share of the rows: it looks up the ids in its range, uses zeros for the
    others, and the group sums the results; with sequence parallelism each device keeps those of its own tokens.
    """
    table = params["embed"]["table_VD"]
    spec = partition_specs(declare(cfg), TRAIN)["embed"]["table_VD"]
    table = shards.gather(table, spec, table.dtype if compute_dtype is None else compute_dtype)
    if shards.tensor is None:
        return rows_of(table, ids_BT)
    local = ids_BT - shards.index * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    rows = rows_of(table, jnp.where(mine, local, 0))
    return shards.leave_layer(jnp.where(mine[..., None], rows, 0))


def output_table(
    cfg: ModelConfig, params: Params, shards: Shards = LOCAL, compute_dtype: Any = None
) -> Float[Array, "V D"]:
    """The table that turns hidden states into logits, hidden_BTD @ table_VD.T: the embedding table if tied.

    Gathered over fsdp, in compute_dtype (None: its own); with a tensor group, this device's share of the rows. Logits
    from V on belong to padding. The caller passes the hidden states through shards.enter before the matmul.
    """
    name = "embed" if cfg.tie_embeddings else "head"
    table = params[name]["table_VD"]
    spec = partition_specs(declare(cfg), TRAIN)[name]["table_VD"]
    return shards.gather(table, spec, table.dtype if compute_dtype is None else compute_dtype)


def final_norm(
    cfg: ModelConfig, params: Params, x_BTD: Float[Array, "B T D"], shards: Shards = LOCAL
) -> Float[Array, "B T D"]:
    """The norm after the last layer."""
    scale_D = shards.between_layers(params["final_norm"]["scale_D"])
    return rms_norm(x_BTD, scale_D.astype(x_BTD.dtype), cfg.norm_eps)


def layer_stages(windows: tuple[int | None, ...]) -> list[tuple[int, tuple[int | None, ...], int]]:
    """How the layers are scanned: (first layer, windows of the layers unrolled in one step, steps) of each stage.

    One stage whose step is the pattern's shortest period, or one stage per run of equal layers if there are fewer runs
    than layers in a period.
    """
    length = len(windows)
    period = next(p for p in range(1, length + 1) if length % p == 0 and windows == windows[:p] * (length // p))
    starts = [i for i in range(length) if i == 0 or windows[i] != windows[i - 1]]
    if period <= len(starts):
        return [(0, windows[:period], length // period)]
    ends = [*starts[1:], length]
    return [(start, (windows[start],), end - start) for start, end in zip(starts, ends, strict=True)]


def hidden(
    cfg: ModelConfig,
    params: Params,
    ids_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    ends_BT: Int[Array, "B T"],
    *,
    shards: Shards,
    remat: Remat,
    compute_dtype: Any,
    attention: str = "reference",
    context_attention: context.How = "auto",
) -> Float[Array, "B T D"]:
    """Hidden states after the final norm, in compute_dtype, for rows of texts.

    positions_BT: of each token in its text. ends_BT: the place in the row behind the last token that continues it; a
    token attends to the earlier ones that it continues, padding to itself (`models.attention`). Each layer's weights
    are cast and gathered inside the scan, so that only one layer is gathered at a time. remat: what is kept for the
    backward pass: "full" the input of each layer, "qkv" also the projections to queries, keys and values, "dots" also
    the results of its dense products, "none" everything; all but the last gather the weights again. attention: a
    backend of `models.attention`. Layers with different windows are scanned according to `layer_stages`; a tuple of
    layers (`unstack_layers`) is unrolled.

    With a context axis all arrays have this device's tokens, in the order of `context.token_order`; context_attention:
    how attention crosses the devices (`context.resolve`). With `shards.sequence` the tensor group must divide the
    tokens: between the layers, where remat keeps them, each of its devices has an equal part, [1, B · T / group, D].
    The result has all tokens, and its cotangents are summed over the group; otherwise they must be sums already.
    """
    _check_tensor(cfg, shards.size)
    if remat not in get_args(Remat):
        raise ValueError(f"remat is {remat!r}; it must be one of {', '.join(get_args(Remat))}.")
    stacked = isinstance(params["layers"], dict)
    layer_specs = _layer_specs(cfg, params["layers"] if stacked else params["layers"][0])
    windows = dict.fromkeys(cfg.layer_windows)
    if shards.context is None:
        attends = {window: make_attend(attention, ends_BT, positions_BT, window) for window in windows}
    else:
        how = context.resolve(context_attention, cfg.num_kv_heads // shards.size, lax.axis_size(shards.context))
        attends = context.make_attends(how, attention, ends_BT, positions_BT, windows, shards.context)

    def layer(window: int | None, x_BTD: jax.Array, w_local: Params) -> jax.Array:
        w = {name: gathered(shards, x, layer_specs[name], compute_dtype) for name, x in w_local.items()}
        return block(cfg, cfg.layer_rope(window), w, x_BTD, positions_BT, attends[window], shards)

    x_BTD = embed(cfg, params, ids_BT, shards, compute_dtype)
    if not stacked:
        for window, w in zip(cfg.layer_windows, params["layers"], strict=True):
            one = partial(layer, window)
            x_BTD = (one if remat == "none" else jax.checkpoint(one, policy=POLICIES[remat]))(x_BTD, w)
    for start, pattern, steps in layer_stages(cfg.layer_windows) if stacked else ():
        layers = [partial(layer, window) for window in pattern]
        if remat != "none":
            # A scan already keeps forward and recomputation apart, but XLA unrolls a scan of one step.
            layers = [jax.checkpoint(one, prevent_cse=steps == 1, policy=POLICIES[remat]) for one in layers]

        def period(x_BTD: jax.Array, w_P: Params, layers=layers) -> tuple[jax.Array, None]:
            for place, one in enumerate(layers):
                x_BTD = one(x_BTD, jax.tree.map(lambda x, place=place: x[place], w_P))
            return x_BTD, None

        count = steps * len(pattern)
        stage = jax.tree.map(
            lambda x, start=start, count=count, steps=steps: x[start : start + count].reshape(steps, -1, *x.shape[1:]),
            params["layers"],
        )
        x_BTD, _ = lax.scan(period, x_BTD, stage)
    x_BTD = final_norm(cfg, params, x_BTD, shards)
    return shards.enter_layer(x_BTD).reshape(*ids_BT.shape, -1) if shards.sequence else x_BTD


def _layer_specs(cfg: ModelConfig, layers: Params) -> dict[str, Any]:
    """PartitionSpec of each of these weights in one layer, or a LowRank of three."""

    def one(param: Param) -> PartitionSpec:
        return PartitionSpec(*spec_for(param, TRAIN)[1:])

    def of(param: Param, w: Any) -> PartitionSpec | LowRank:
        if not isinstance(w, LowRank):
            return one(param)
        a, b = factors_of(param, w.a.shape[-1], w.a.dtype)
        return LowRank(one(param), one(a), one(b), w.scale)

    declared = _declare_layer(cfg)
    return {name: of(declared[name], w) for name, w in layers.items()}


def with_wide_norms(params: Params) -> Params:
    """The same unstacked layers with the scales of their norms in float32, in which norms compute, once for all tokens
    of a loop. Without the barrier XLA converts them again for each."""

    def layer(w: Params) -> Params:
        scales = {name: x.astype(jnp.float32) for name, x in w.items() if "norm" in name and x.dtype != jnp.float32}
        return {**w, **lax.optimization_barrier(scales)}

    return {**params, "layers": tuple(layer(w) for w in params["layers"])}


def unstack_layers(params: Params) -> Params:
    """The same weights with "layers" as a tuple of L trees, one per layer, so that decoding slices no weights."""
    stacked = params["layers"]
    num_layers = jax.tree.leaves(stacked)[0].shape[0]
    layers = tuple(jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(num_layers))
    return {**params, "layers": layers}
