"""The decoder as pure functions: one `block` for training, prefill and decode; weights stacked over layers and scanned.

Inside `jax.shard_map(..., check_vma=False)` the arrays are local shards and `shards` names the mesh axes; in plain jit,
`shards` is LOCAL and the arrays are global (XLA partitions the program from the shardings of its inputs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, UInt

from scope_jax.errors import UserError
from scope_jax.models.decoder import context, delta, kinds, stacks
from scope_jax.models.decoder.config import Attention, Layer, ModelConfig
from scope_jax.models.decoder.kinds import INIT_STD, Heads, Params, norm_weight, plain_heads, rms_norm, scale_of
from scope_jax.models.decoder.lowrank import LowRank, factors_of, gathered
from scope_jax.models.decoder.moe import Route, route
from scope_jax.models.decoder.sums import rows_of
from scope_jax.models.kernels.attention import make_attend
from scope_jax.models.kernels.masks import KEPT
from scope_jax.models.kernels.packed import Packing
from scope_jax.sharding.collectives import LOCAL, Shards
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import Param, normal, partition_specs, spec_for

T = TypeVar("T")
PICKS, INPUTS = -1, -2  # keys of picked experts and of vectors among the stacks of weights, for a scan over layers

Remat = Literal["full", "attention", "qkv", "dots", "none"]
# What a layer keeps for its backward pass beside its input; the rest is computed again.
_ATTENTION = jax.checkpoint_policies.save_only_these_names(KEPT)
POLICIES = {
    "full": None,
    "attention": _ATTENTION,
    "qkv": jax.checkpoint_policies.save_only_these_names(KEPT, "qkv"),
    "dots": jax.checkpoint_policies.save_from_both_policies(
        _ATTENTION, jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),
}


def _declare_layers(cfg: ModelConfig) -> Params:
    """The weights of the layers, stacked (`models.decoder.stacks`)."""

    def stack(own: tuple[int, ...]) -> dict[str, Param]:
        return {
            name: replace(one, shape=(len(own), *one.shape), axes=("layers", *one.axes))
            for name, one in kinds.layer_weights(cfg, cfg.layers[own[0]]).items()
        }

    return stacks.joined(list(map(stack, stacks.stacks(cfg))))


def declare(cfg: ModelConfig) -> Params:
    """The tree of Param: embed.table_VD, layers.* with a leading L, final_norm.scale_D, head.table_VD if not tied,
    inputs.* of `layer_inputs`.

    Layers of several kinds are several stacks (`models.decoder.stacks`).
    The tables of large vocabularies are padded (`ModelConfig.table_rows`).
    Matrices are [in, out]; names end with the axes of one layer (an underscore separates a flattened pair of axes).
    Master weights are float32.
    """
    padding = cfg.table_rows - cfg.vocab_size
    table = Param((cfg.table_rows, cfg.width), ("vocab", "width"), normal(INIT_STD), jnp.float32, padding)
    tree: Params = {
        "embed": {"table_VD": table},
        "layers": _declare_layers(cfg),
        "final_norm": {"scale_D": norm_weight(cfg, cfg.width)},
    }
    if size := cfg.layers[0].inputs:
        columns = cfg.num_layers * size
        tree["inputs"] = {
            "table_V_Lp": replace(table, shape=(cfg.table_rows, columns), axes=("vocab", None)),
            "project_D_Lp": kinds.weight((cfg.width, columns), "width", None),
            "norm_p": norm_weight(cfg, size),
        }
    if not cfg.tie_embeddings:
        tree["head"] = {"table_VD": table}
    return tree


def check_mesh(cfg: ModelConfig, mesh: Mesh) -> None:
    """Raises ValueError if the tensor axis of the mesh cannot split this model's heads, ffn and vocabulary evenly."""
    check_tensor(cfg, mesh.shape["tensor"])


def check_tensor(cfg: ModelConfig, size: int, mesh: str = "mesh") -> None:
    """`check_mesh` for a tensor axis of this size. mesh: its table in a card."""
    if (figure := kinds.undivided(cfg, size)) is not None:
        raise UserError(f"{mesh} tensor={size} does not divide the model's {figure}; choose one that does.")


def block(
    cfg: ModelConfig,
    layer: Layer,
    w: Params,
    x_BTD: Float[Array, "B T D"],
    positions_BT: Int[Array, "B T"],
    attend: Callable[..., jax.Array],
    shards: Shards,
    heads: Heads = plain_heads,
    router: Route = route,
    input_BTp: Float[Array, "B T p"] | None = None,
) -> Float[Array, "B T D"]:
    """One decoder layer: x + mixer(norm(x)), then x + feed(norm(x)); with other norms as `Layer` says.

    With sequence parallelism x_BTD and the result are this device's tokens, [1, B · T / group, D]; positions_BT and
    `attend` are of all of them. w: its weights (no leading L), gathered over fsdp, in the dtype of x. attend, heads,
    router: see `kinds.LayerCall`. input_BTp: the layer's own vectors of the tokens, where it has some (`layer_inputs`).
    """
    call = kinds.LayerCall(cfg.norm_eps, cfg.norm_offset, positions_BT, attend, shards, heads, router)

    def norm(x_BTD: jax.Array, name: str) -> jax.Array:
        return rms_norm(x_BTD, scale_of(shards.between_layers(w[name]), cfg.norm_offset), cfg.norm_eps)

    def add(x_BTD: jax.Array, name: str, part: Callable[[jax.Array], jax.Array]) -> jax.Array:
        if layer.norms == "post":
            return x_BTD + norm(part(x_BTD), f"{name}_norm_D")
        y_BTD = part(norm(x_BTD, f"{name}_norm_D"))
        return x_BTD + (norm(y_BTD, f"{name}_out_norm_D") if layer.norms == "both" else y_BTD)

    x_BTD = add(x_BTD, "attn", lambda x_BTD: kinds.mixer_of(layer).apply(layer.mixer, w, x_BTD, call))
    call = replace(call, stream_BTD=x_BTD)
    x_BTD = add(x_BTD, "ffn", lambda x_BTD: kinds.feed_of(layer).apply(layer.feed, w, x_BTD, call))
    if input_BTp is not None:
        x_BTD = x_BTD + norm(kinds.of_inputs(w, x_BTD, input_BTp, shards), "input_norm_D")
    return x_BTD * lax.stop_gradient(w["scalar_1"]) if layer.scalar else x_BTD


def embed(
    cfg: ModelConfig,
    params: Params,
    ids_BT: Int[Array, "B T"],
    shards: Shards,
    compute_dtype: Any = None,
) -> Float[Array, "B T D"]:
    """Rows of the embedding table, in compute_dtype (None: the table's own), times `ModelConfig.embed_scale`.

    With a tensor group each device holds a share of the rows: it looks up the ids in its range, uses zeros for the
    others, and the group sums the results; with sequence parallelism each device keeps those of its own tokens.
    """
    table = params["embed"]["table_VD"]
    spec = partition_specs(declare(cfg), TRAIN)["embed"]["table_VD"]
    table = shards.gather(table, spec, table.dtype if compute_dtype is None else compute_dtype)
    if cfg.embed_scale != 1:
        return _rows(table, ids_BT, shards) * jnp.asarray(cfg.embed_scale, table.dtype)
    return _rows(table, ids_BT, shards)


def _rows(table: jax.Array, ids_BT: jax.Array, shards: Shards) -> jax.Array:
    if shards.tensor is None:
        return rows_of(table, ids_BT)
    local = ids_BT - shards.index * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    rows = rows_of(table, jnp.where(mine, local, 0))
    return shards.leave_layer(jnp.where(mine[..., None], rows, 0))


def layer_inputs(
    cfg: ModelConfig,
    params: Params,
    ids_BT: Int[Array, "B T"],
    x_BTD: Float[Array, "B T D"],
    shards: Shards,
) -> Float[Array, "L B T p"] | list[None]:
    """A vector of each token for each layer; of a model without them None for each. x_BTD: of `embed`.

    (norm(x W / √D) + √p · row of the token's id) / √2, where matrix and table have the columns of all layers (Gemma 4's
    E2B and E4B). The table is most of such a model's weights: it is never gathered, see `_rows_apart`.
    """
    if not (size := cfg.layers[0].inputs):
        return [None] * cfg.num_layers
    w, dtype = params["inputs"], x_BTD.dtype
    spec = partition_specs(declare(cfg), TRAIN)["inputs"]["project_D_Lp"]
    project = shards.between_layers(shards.gather(w["project_D_Lp"], spec, dtype))
    projected = x_BTD @ project * jnp.asarray(cfg.width**-0.5, dtype)
    projected = projected.reshape(*projected.shape[:-1], cfg.num_layers, size)
    scale_p = scale_of(shards.between_layers(w["norm_p"].astype(dtype)), cfg.norm_offset)
    rows = _rows_apart(w["table_V_Lp"], ids_BT, shards, dtype) * jnp.asarray(size**0.5, dtype)
    both = rms_norm(projected, scale_p, cfg.norm_eps) + rows.reshape(projected.shape)
    return jnp.moveaxis(both * jnp.asarray(2**-0.5, dtype), -2, 0)


def _rows_apart(table: jax.Array, ids_BT: jax.Array, shards: Shards, dtype: Any) -> jax.Array:
    """Rows, in dtype, of a table whose rows are divided over the tensor group and, inside it, fsdp. Each device looks
    up the ids of all of them among its own rows; the sums go to where the ids came from, and their gradients come back
    the same way."""
    axes = (() if shards.tensor is None else (shards.tensor,)) + shards.fsdp
    if not axes:
        return rows_of(table, ids_BT).astype(dtype)
    for axis in reversed(shards.fsdp):
        ids_BT = lax.all_gather(ids_BT, axis)
    local = ids_BT - lax.axis_index(axes) * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    rows = jnp.where(mine[..., None], rows_of(table, jnp.where(mine, local, 0)).astype(dtype), 0)
    for axis in shards.fsdp:
        rows = lax.psum_scatter(rows, axis)
    return shards.leave_layer(rows)


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


def logits_of(
    hidden_ND: Float[Array, "N D"], table_cD: Float[Array, "c D"], softcap: float | None, dtype: Any = jnp.float32
) -> Float[Array, "N c"]:
    """hidden_ND @ table_cD.T, summed in dtype, and the cap of `ModelConfig.final_softcap`."""
    logits_Nc = lax.dot_general(hidden_ND, table_cD, (((1,), (1,)), ((), ())), preferred_element_type=dtype)
    return logits_Nc if softcap is None else jnp.tanh(logits_Nc / softcap) * softcap


def final_norm(
    cfg: ModelConfig, params: Params, x_BTD: Float[Array, "B T D"], shards: Shards = LOCAL
) -> Float[Array, "B T D"]:
    """The norm after the last layer."""
    scale_D = shards.between_layers(params["final_norm"]["scale_D"])
    return rms_norm(x_BTD, scale_of(scale_D.astype(x_BTD.dtype), cfg.norm_offset), cfg.norm_eps)


def layer_stages(layers: tuple[T, ...]) -> list[tuple[int, tuple[T, ...], int]]:
    """How the layers are scanned: (first layer, layers unrolled in one step, steps) of each stage.

    One stage whose step is the pattern's shortest period, and one for each run of equal layers that remain behind its
    last whole one; or one stage per run of all layers, if these are fewer.
    """
    length = len(layers)
    period = next(p for p in range(1, length + 1) if layers[p:] == layers[:-p])
    whole = length - length % period

    def runs(first: int) -> list[tuple[int, tuple[T, ...], int]]:
        starts = [i for i in range(first, length) if i == first or layers[i] != layers[i - 1]]
        return [(a, (layers[a],), b - a) for a, b in zip(starts, [*starts[1:], length], strict=False)]

    if period + len(runs(whole)) <= len(runs(0)):
        return [(0, layers[:period], length // period), *runs(whole)]
    return runs(0)


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
    picked_BTLk: UInt[Array, "B T L k"] | None = None,
    packing: Packing | None = None,
) -> Float[Array, "B T D"]:
    """Hidden states after the final norm, in compute_dtype, for rows of texts.

    positions_BT: of each token in its text. ends_BT: the place in the row behind the last token that continues it; a
    token attends to the earlier ones that it continues, padding to itself (`models.kernels.masks`). Each layer's
    weights are cast and gathered inside the scan, so that only one layer is gathered at a time. remat: what is kept for
    the backward pass: "full" the input of each layer, "attention" also the result of attention, "qkv" also the
    projections to queries, keys and values, "dots" also the results of its dense products, "none" everything; all but
    the last gather the weights again. attention: a backend of `models.kernels.attention`. Different layers are scanned
    according to `layer_stages`; a tuple of layers (`unstack_layers`) is unrolled.

    With a context axis all arrays have this device's tokens, in the order of `context.token_order`; context_attention:
    how attention crosses the devices (`context.resolve`). With `shards.sequence` the tensor group must divide the
    tokens: between the layers, where remat keeps them, each of its devices has an equal part, [1, B · T / group, D].
    The result has all tokens, and its cotangents are summed over the group; otherwise they must be sums already.
    picked_BTLk: the experts that the routers of `expert_layers` are to pick (`moe.route`); None: they pick themselves.
    packing: what the rows hold at most, for `make_attend`; None: anything.
    """
    check_tensor(cfg, shards.size)
    if remat not in get_args(Remat):
        raise ValueError(f"remat is {remat!r}; it must be one of {', '.join(get_args(Remat))}.")
    stacked = isinstance(params["layers"], dict)
    layer_specs = _layer_specs(cfg, params["layers"])
    places = stacks.places(cfg)
    windows = dict.fromkeys(cfg.windows)
    if shards.context is None:
        attends = {window: make_attend(attention, ends_BT, positions_BT, window, packing) for window in windows}
        recur = delta.over_rows(ends_BT)
    else:
        how = context.resolve(context_attention, kinds.kv_heads(cfg, shards.size), lax.axis_size(shards.context))
        attends = context.make_attends(how, attention, ends_BT, positions_BT, windows, shards.context, packing)
        recur = delta.over_context(ends_BT, shards.context)

    replayed_LNk, among = _replayed(picked_BTLk, shards), cfg.expert_layers

    def compute(
        number: int,
        keep: bool,
        x_BTD: jax.Array,
        w_local: Params,
        known: dict[int, Any],
        replayed_Nk: jax.Array | None = None,
        input_BTp: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """The layer's result, and its keys and values if `keep`. known: those of earlier layers, by number."""
        layer, specs = cfg.layers[number], layer_specs[places[number][0]]
        w = {name: gathered(shards, x, specs[name], compute_dtype) for name, x in w_local.items()}
        own: list[Any] = []

        def attend(q_BTHh: jax.Array, *given: Any) -> jax.Array:
            source = layer.attention.source
            own[:] = given[:2] if source is None else known[source]
            return attends[layer.attention.window](q_BTHh, *own, *given[2:])

        mixed = attend if isinstance(layer.mixer, Attention) else recur
        router = route if replayed_Nk is None else partial(route, replayed_Nk=replayed_Nk)
        x_BTD = block(cfg, layer, w, x_BTD, positions_BT, mixed, shards, router=router, input_BTp=input_BTp)
        return x_BTD, own if keep else None

    x_BTD = embed(cfg, params, ids_BT, shards, compute_dtype)
    inputs = layer_inputs(cfg, params, ids_BT, x_BTD, shards)
    sources = {cfg.layers[number].attention.source for number in cfg.attention_layers}
    read = sorted(source for source in sources if source is not None)
    known: dict[int, Any] = {}  # keys and values of the layers in `read`
    if not stacked:
        for number, w in enumerate(params["layers"]):
            one = partial(compute, number, number in read)
            one = one if remat == "none" else jax.checkpoint(one, policy=POLICIES[remat])
            picks = None if replayed_LNk is None or number not in among else replayed_LNk[among.index(number)]
            x_BTD, keys = one(x_BTD, w, known, picks, inputs[number])
            known.update({number: keys} if number in read else {})
    for start, pattern, steps in layer_stages(cfg.layers) if stacked else ():
        first, stop = range(start, start + len(pattern)), start + len(pattern) * steps
        # A layer that others read is in the last step of its stage: the next one of its kind has no keys of its own.
        kept = {start + (number - start) % len(pattern): number for number in read if number in range(start, stop)}
        began = dict(places[number] for number in reversed(first))  # by stack: the place of the stage's first layer
        counts = Counter(places[number][0] for number in first)  # by stack: layers in a step
        own = {number: places[number][1] - began[places[number][0]] for number in first}
        layers = [
            partial(_at, own[number] if counts[places[number][0]] > 1 else None, compute, number, number in kept)
            for number in first
        ]
        if remat != "none":
            # A scan already keeps forward and recomputation apart, but XLA unrolls a scan of one step.
            layers = [jax.checkpoint(one, prevent_cse=steps == 1, policy=POLICIES[remat]) for one in layers]

        def period(x_BTD: jax.Array, w_P: dict[int, Any], layers=layers, first=first, kept=kept) -> Any:
            picks, inputs_P, found = iter(w_P.get(PICKS, ())), w_P.get(INPUTS), dict[int, Any]()
            for number, one in zip(first, layers, strict=True):
                replayed_Nk = next(picks) if PICKS in w_P and number in among else None
                input_BTp = None if inputs_P is None else inputs_P[number - first[0]]
                x_BTD, keys = one(x_BTD, w_P[places[number][0]], known | found, replayed_Nk, input_BTp)
                found |= {kept[number]: keys} if number in kept else {}
            return x_BTD, found

        stage: dict[int, Any] = {
            stack: _steps(whole, began[stack], steps, counts[stack] if counts[stack] > 1 else None)
            for stack, whole in enumerate(stacks.split(cfg, params["layers"]))
            if stack in began
        }
        if replayed_LNk is not None and (picking := sum(number in among for number in first)):
            before = sum(number < start for number in among)
            stage[PICKS] = _steps(replayed_LNk, before, steps, picking)
        if not isinstance(inputs, list):
            stage[INPUTS] = _steps(inputs, start, steps, len(first))
        x_BTD, found = lax.scan(period, x_BTD, stage)
        known.update(jax.tree.map(lambda x: x[-1], found))
    x_BTD = final_norm(cfg, params, x_BTD, shards)
    return shards.enter_layer(x_BTD).reshape(*ids_BT.shape, -1) if shards.sequence else x_BTD


def _replayed(picked_BTLk: jax.Array | None, shards: Shards) -> jax.Array | None:
    """The picks by layer, of the tokens that this device has between the layers, [L, N, k]."""
    if picked_BTLk is None:
        return None
    picked_LNk = jnp.moveaxis(picked_BTLk, 2, 0).reshape(picked_BTLk.shape[2], -1, picked_BTLk.shape[3])
    if not shards.sequence:
        return picked_LNk
    own = picked_LNk.shape[1] // shards.size
    return lax.dynamic_slice_in_dim(picked_LNk, shards.index * own, own, 1)


def _at(
    place: int | None, compute: Callable[..., Any], number: int, keep: bool, x_BTD: Any, w_P: Any, *more: Any
) -> Any:
    """compute of a layer with its weights among those of a step, None: they are its own. The backward pass then keeps
    what the scan has anyway: of a part that was taken outside it would keep a copy for each step."""
    w = w_P if place is None else jax.tree.map(lambda x: x[place], w_P)
    return compute(number, keep, x_BTD, w, *more)


def _steps(whole: Any, first: int, steps: int, count: int | None) -> Any:
    """What belongs to layers from `first` on, `count` of them for each of so many steps: leaves [steps, count, ...];
    None: one, [steps, ...]."""
    own = jax.tree.map(lambda x: x[first : first + steps * (count or 1)], whole)
    return own if count is None else jax.tree.map(lambda x: x.reshape(steps, count, *x.shape[1:]), own)


def _layer_specs(cfg: ModelConfig, layers: Any) -> list[dict[str, Any]]:
    """Of each stack: PartitionSpec of each of these weights in one layer, or a LowRank of three. layers: stacked, or a
    tuple of trees."""

    def one(param: Param) -> PartitionSpec:
        return PartitionSpec(*spec_for(param, TRAIN)[1:])

    def of(param: Param, w: Any) -> PartitionSpec | LowRank:
        if not isinstance(w, LowRank):
            return one(param)
        a, b = factors_of(param, w.a.shape[-1], w.a.dtype)
        return LowRank(one(param), one(a), one(b), w.scale)

    given = stacks.split(cfg, layers) if isinstance(layers, dict) else [layers[own[0]] for own in stacks.stacks(cfg)]
    return [
        {name: of(declared[name], w) for name, w in own.items()}
        for declared, own in zip(stacks.split(cfg, _declare_layers(cfg)), given, strict=True)
    ]


def with_wide_norms(params: Params) -> Params:
    """The same unstacked layers with the scales of their norms in float32, in which norms compute, once for all tokens
    of a loop. Without the barrier XLA converts them again for each."""

    def layer(w: Params) -> Params:
        scales = {name: x.astype(jnp.float32) for name, x in w.items() if "norm" in name and x.dtype != jnp.float32}
        return {**w, **lax.optimization_barrier(scales)}

    return {**params, "layers": tuple(layer(w) for w in params["layers"])}


def unstack_layers(cfg: ModelConfig, params: Params) -> Params:
    """The same weights with "layers" as a tuple of L trees, one per layer, so that decoding slices no weights."""
    return {**params, "layers": stacks.each(cfg, params["layers"])}
