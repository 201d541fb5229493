"""Mixture of experts: a router picks k of X gated experts for each token; dropless, so no token is left out.

Token copies are sorted by expert, so that each expert multiplies one contiguous group of rows (a grouped matmul), and
are combined by k gathers and a sum. Neither the forward nor the backward pass scatters: the two permutations are each
other's transpose and are declared as such (`_spread`, `_collect`, `_reorder`).

    token n, pick j  --order-->  sorted row m          order_J[m] = n·k + j, place_Nk[n, j] = m

Grouped products run in megablox's kernels on TPU, in `kernels.moe_gpu` on GPU, and elsewhere in a loop over blocks of
rows of one expert: 4,096 copies and 32 experts of 256 × 512 in float32 take 25 ms on two busy CPU cores (a dense
product of as many FLOPs 16, `jax.lax.ragged_dot` 971), and with the gradient 24 MiB of temporaries instead of 664.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt

from scope_jax.models.decoder.activations import ACTIVATIONS
from scope_jax.models.decoder.config import Experts
from scope_jax.models.decoder.lowrank import LowRank
from scope_jax.sharding.chips import LANES
from scope_jax.sharding.collectives import Shards

EXPERTS = ("gate_XDF", "up_XDF", "down_XFD")  # names of their matrices in a layer's weights

GroupedMatmul = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
Route = Callable[..., tuple[jax.Array, jax.Array]]  # `route`, or one that also keeps its picks, or replays others

TILES = (512, 1024, 768)  # rows, in, out of one megablox tile; larger ones overflow the vector memory of v5e and v5p
FEW = 512  # most tokens for the kernels of models/kernels/moe_tpu.py,
FEW_BYTES = 2**22  # and most bytes of them: they stay in the vector memory, of which v5p has least
SUBLANES = 128  # megablox requires a row count that is a multiple of its tile
LIMIT, SLOPE = 7.0, 1.702  # of the clamped activation (gpt-oss)


def activated(feed: Experts, gate: jax.Array, up: jax.Array) -> jax.Array:
    """What an expert makes of its two products: silu(gate) · up or, clamped, (u + 1) · g · σ(1.702 g) with g = gate up
    to 7 and u = up within ±7."""
    if feed.activation != "clamped":
        return ACTIVATIONS[feed.activation](gate) * up
    gate, up = jnp.minimum(gate, LIMIT), jnp.clip(up, -LIMIT, LIMIT)
    return (up + 1) * gate * jax.nn.sigmoid(SLOPE * gate)


def route(
    feed: Experts,
    x_ND: Float[Array, "N D"],
    router_DX: Float[Array, "D X"],
    gradient: bool = True,
    scale_X: Float[Array, " X"] | None = None,
    bias_X: Float[Array, " X"] | None = None,
    replayed_Nk: UInt[Array, "N k"] | None = None,
) -> tuple[Float[Array, "N k"], Int[Array, "N k"]]:
    """(weights of the picked experts, their indices), best first; ties go to the lower index.

    Softmax over all experts in float32, then the k largest, divided by their sum if normalised (Qwen3-MoE).
    gradient: the weights are differentiated; the values are the same without. scale_X: of each expert's weight.
    replayed_Nk: the experts to pick instead of the k largest, as `picked_dtype` has them; a token whose first two are
    equal has none, and picks for itself. The weights follow from its own probabilities in any case.
    """
    logits_NX = jnp.matmul(x_ND, router_DX, preferred_element_type=jnp.float32)
    logits_NX = logits_NX if bias_X is None else logits_NX + bias_X.astype(jnp.float32)
    probs_NX = jax.nn.softmax(logits_NX, axis=-1)
    weights_Nk, picked_Nk = lax.top_k(lax.stop_gradient(probs_NX), feed.picked)
    if replayed_Nk is not None:
        given_N1 = replayed_Nk[:, :1] != replayed_Nk[:, 1:2]
        picked_Nk = jnp.where(given_N1, replayed_Nk.astype(picked_Nk.dtype), picked_Nk)

    def of_picked(x_NX: jax.Array) -> jax.Array:
        # A masked sum: its gradient is a mask too, whereas the gradient of a gather is a scatter.
        chosen_NkX = picked_Nk[..., None] == jnp.arange(feed.count)
        return jnp.sum(jnp.where(chosen_NkX, x_NX[:, None, :], 0.0), axis=-1)

    if gradient or replayed_Nk is not None:
        weights_Nk = of_picked(probs_NX)
    if feed.normalised:
        weights_Nk = weights_Nk / jnp.sum(weights_Nk, axis=-1, keepdims=True)
    if scale_X is not None:
        weights_Nk = weights_Nk * of_picked(jnp.broadcast_to(scale_X.astype(jnp.float32), probs_NX.shape))
    return weights_Nk, picked_Nk


def picked_dtype(experts: int) -> Any:
    """The smallest dtype for indices of so many experts."""
    return jnp.dtype(jnp.uint8 if experts <= 256 else jnp.uint16)


def keeping(kept: list[jax.Array]) -> Route:
    """`route` that adds the picks of each layer to a list."""

    def keep(feed: Experts, *inputs: Any, **more: Any) -> tuple[jax.Array, jax.Array]:
        weights_Nk, picked_Nk = route(feed, *inputs, **more)
        kept.append(picked_Nk.astype(picked_dtype(feed.count)))
        return weights_Nk, picked_Nk

    return keep


@jax.custom_vjp
def _spread(x_ND: jax.Array, order_J: jax.Array, place_Nk: jax.Array) -> jax.Array:
    """The tokens' rows in sorted order, [J, D]."""
    return x_ND[order_J // place_Nk.shape[1]]


@jax.custom_vjp
def _collect(y_JD: jax.Array, order_J: jax.Array, place_Nk: jax.Array) -> jax.Array:
    """Sum of each token's k sorted rows, [N, D], in the order of its picks, in float32."""
    return jnp.sum(y_JD[place_Nk], axis=1, dtype=jnp.float32).astype(y_JD.dtype)


@jax.custom_vjp
def _reorder(w_Nk: jax.Array, order_J: jax.Array, place_Nk: jax.Array) -> jax.Array:
    """The k values of each token in sorted order, [J]."""
    return w_Nk.reshape(-1)[order_J]


def _transposes(forward: Any, backward: Any) -> None:
    forward.defvjp(
        lambda x, order_J, place_Nk: (forward(x, order_J, place_Nk), (order_J, place_Nk)),
        lambda where, ct: (backward(ct, *where), None, None),
    )


_transposes(_spread, _collect)
_transposes(_collect, _spread)
_transposes(_reorder, lambda ct_J, order_J, place_Nk: ct_J[place_Nk])


def grouped_matmul(
    x_JI: Float[Array, "J I"], w_XIO: Float[Array, "X I O"], sizes_X: Int[Array, " X"], kernels: bool = True
) -> Float[Array, "J O"]:
    """Multiplies each group of rows by its expert's matrix: group x has sizes_X[x] rows, in expert order; Σ sizes = J.

    Uses kernels on TPU (megablox) and GPU (models/kernels/moe_gpu.py), chosen by the platform compiled for, and a loop
    over blocks of rows elsewhere or without `kernels`. `lax.ragged_dot` multiplies every row by every expert on CPUs,
    and in its gradient on TPUs.
    """
    return _grouped(kernels, x_JI, w_XIO, sizes_X)


def _multiply(
    kernels: bool,
    x_JI: jax.Array,
    w_XIO: jax.Array,
    sizes_X: jax.Array,
    transposed: bool = False,
    tile: int | None = None,
) -> jax.Array:
    """grouped_matmul or, with transposed, the product with each expert's transpose. tile: megablox's rows of a tile."""
    if not kernels:
        return block_matmul(x_JI, w_XIO, sizes_X, transposed)
    return lax.platform_dependent(
        x_JI,
        w_XIO,
        sizes_X,
        tpu=partial(megablox_matmul, transposed=transposed, tile=tile),
        cuda=partial(_triton_matmul, transposed=transposed),
        default=partial(block_matmul, transposed=transposed),
    )


def _triton_matmul(x_JI: jax.Array, w_XIO: jax.Array, sizes_X: jax.Array, transposed: bool) -> jax.Array:
    from scope_jax.models.kernels.moe_gpu import triton_matmul  # Pallas takes a second to import

    return triton_matmul(x_JI, w_XIO, sizes_X, transposed)


def _triton_outer(x_JI: jax.Array, y_JO: jax.Array, sizes_X: jax.Array) -> jax.Array:
    from scope_jax.models.kernels.moe_gpu import triton_outer

    return triton_outer(x_JI, y_JO, sizes_X)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _grouped(kernels: bool, x_JI: jax.Array, w_XIO: jax.Array, sizes_X: jax.Array) -> jax.Array:
    return _multiply(kernels, x_JI, w_XIO, sizes_X)


def _grouped_backward(
    kernels: bool, saved: tuple[jax.Array, ...], ct_JO: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x_JI, w_XIO, sizes_X = saved
    dx_JI = _multiply(kernels, ct_JO, w_XIO, sizes_X, transposed=True)
    by_platform = {"tpu": megablox_outer, "cuda": _triton_outer} if kernels else {}
    dw_XIO = lax.platform_dependent(x_JI, ct_JO, sizes_X, **by_platform, default=block_outer)
    return dx_JI, dw_XIO.astype(w_XIO.dtype), None


_grouped.defvjp(lambda kernels, x, w, sizes: (_grouped(kernels, x, w, sizes), (x, w, sizes)), _grouped_backward)


# ------------------------------------------------------------------------------------------------------ blocks of rows
def _blocks(sizes_X: jax.Array, rows: int) -> tuple[int, jax.Array, jax.Array, jax.Array]:
    """(rows per block, expert of each block, first row of each block, number of blocks).

    Every group starts a new block, so that a block has one expert: at most rows / size + X blocks.
    """
    experts = sizes_X.shape[0]
    size = 8
    while size < 256 and size * 4 * experts <= rows:  # at most half an average group, so that little is padding
        size *= 2
    counts_X = -(-sizes_X // size)
    ends_X, starts_X = jnp.cumsum(counts_X), jnp.cumsum(sizes_X) - sizes_X
    block_b = jnp.arange(-(-rows // size) + experts)
    expert_b = jnp.minimum(jnp.searchsorted(ends_X, block_b, side="right"), experts - 1)
    first_b = starts_X[expert_b] + size * (block_b - (ends_X - counts_X)[expert_b])
    return size, expert_b, first_b, ends_X[-1]


def block_matmul(x_JI: jax.Array, w_XIO: jax.Array, sizes_X: jax.Array, transposed: bool = False) -> jax.Array:
    """grouped_matmul as a loop over blocks (with transposed: x_JO times each expert's transpose, [J, I]).

    Each product has one fixed shape, so that a row's bits do not depend on the other rows. A block's rows beyond its
    group are wrong until the next group's first block overwrites them.
    """
    rows = x_JI.shape[0]
    size, expert_b, first_b, count = _blocks(sizes_X, rows)
    padded = jnp.pad(x_JI, ((0, size), (0, 0)))
    width = w_XIO.shape[1 if transposed else 2]

    def one(b: jax.Array, out: jax.Array) -> jax.Array:
        w = lax.dynamic_index_in_dim(w_XIO, expert_b[b], keepdims=False)
        block = lax.dynamic_slice_in_dim(padded, first_b[b], size)
        product = jnp.matmul(block, w.T if transposed else w, preferred_element_type=jnp.float32)
        return lax.dynamic_update_slice_in_dim(out, product.astype(out.dtype), first_b[b], 0)

    out = lax.fori_loop(0, count, one, jnp.zeros((rows + size, width), x_JI.dtype))
    return out[:rows]


def block_outer(x_JI: jax.Array, y_JO: jax.Array, sizes_X: jax.Array) -> jax.Array:
    """Σ x yᵀ over each group's rows: [X, I, O] in float32, by the same loop."""
    rows = x_JI.shape[0]
    size, expert_b, first_b, count = _blocks(sizes_X, rows)
    x, y = (jnp.pad(a, ((0, size), (0, 0))) for a in (x_JI, y_JO))
    ends_X = jnp.cumsum(sizes_X)

    def one(b: jax.Array, out: jax.Array) -> jax.Array:
        first, expert = first_b[b], expert_b[b]
        own = first + jnp.arange(size) < ends_X[expert]
        left = jnp.where(own[:, None], lax.dynamic_slice_in_dim(x, first, size), 0)
        right = lax.dynamic_slice_in_dim(y, first, size)
        product = jnp.matmul(left.T, right, preferred_element_type=jnp.float32)
        before = lax.dynamic_index_in_dim(out, expert, keepdims=False)
        return lax.dynamic_update_index_in_dim(out, before + product, expert, 0)

    shape = (sizes_X.shape[0], x_JI.shape[1], y_JO.shape[1])
    return lax.fori_loop(0, count, one, jnp.zeros(shape, jnp.float32))


# ------------------------------------------------------------------------------------------------------------ megablox
def _tile(rows: int) -> int:
    """Rows of a tile: the largest, or the smallest if there are few rows."""
    return TILES[0] if rows >= TILES[0] else SUBLANES


def _tiling(tile: int, inner: int, outer: int) -> tuple[int, int, int]:
    return (tile, min(TILES[1], inner), min(TILES[2], outer))


def megablox_matmul(
    x_JI: jax.Array,
    w_XIO: jax.Array,
    sizes_X: jax.Array,
    transposed: bool = False,
    interpret: bool = False,
    tile: int | None = None,
) -> jax.Array:
    """grouped_matmul by megablox's Pallas kernel; padding rows belong to the last expert. tile: rows of a tile."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    rows = x_JI.shape[0]
    tile = _tile(rows) if tile is None else tile
    x = jnp.pad(x_JI, ((0, -rows % tile), (0, 0)))
    sizes = sizes_X.at[-1].add(x.shape[0] - rows).astype(jnp.int32)
    tiling = _tiling(tile, x.shape[1], w_XIO.shape[1 if transposed else 2])
    out = gmm(x, w_XIO, sizes, x_JI.dtype, tiling, transpose_rhs=transposed, interpret=interpret)
    return out[:rows]


def megablox_outer(x_JI: jax.Array, y_JO: jax.Array, sizes_X: jax.Array, interpret: bool = False) -> jax.Array:
    """block_outer by megablox's Pallas kernel."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    rows = x_JI.shape[0]
    tile = _tile(rows)
    padding = ((0, -rows % tile), (0, 0))
    x, y = jnp.pad(x_JI, padding), jnp.pad(y_JO, padding)
    sizes = sizes_X.at[-1].add(x.shape[0] - rows).astype(jnp.int32)
    tiling = _tiling(tile, x.shape[1], y.shape[1])
    return tgmm(x.swapaxes(0, 1), y, sizes, jnp.float32, tiling, interpret=interpret)


# --------------------------------------------------------------------------------------------------------------- layer
def moe_layer(
    feed: Experts,
    w: dict[str, Any],
    x_BTD: Float[Array, "B T D"],
    shards: Shards,
    router_BTD: Float[Array, "B T D"] | None = None,
    router: Route = route,
) -> Float[Array, "B T D"]:
    """Σ over a token's experts of weight · activated(x W_gate, x W_up) W_down, each product with its bias if there are.
    router_BTD: what the router reads, None: x. router: picks the experts. w has expert_scale_X where the experts have
    scales.

    w: router_DX, gate_XDF, up_XDF, down_XFD and biases, gathered over fsdp, F sharded over tensor; the experts' may be
    LowRank. All devices of a tensor group know the routing of all tokens, but only their shard's part of its gradient,
    hence `enter_layer`. With shards.experts each device has X/devices whole experts instead, and there is no gradient.
    """
    if shards.experts:
        return _over_experts(feed, w, x_BTD, shards, router_BTD, router)
    grouped = partial(grouped_matmul, kernels=feed.kernels)
    own = _routed(feed, w, x_BTD if router_BTD is None else router_BTD, shards, router)
    entered = [shards.enter_layer(y_Nk.reshape(len(x_BTD), -1, feed.picked)) for y_Nk in own]
    weights_Nk, picked_Nk = (y_BTk.reshape(-1, feed.picked) for y_BTk in entered)
    before, x_BTD = x_BTD, shards.enter_layer(x_BTD)
    x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
    order_J = jnp.argsort(picked_Nk.reshape(-1), stable=True)
    place_Nk = jnp.argsort(order_J).reshape(picked_Nk.shape)
    sizes_X = jnp.sum(picked_Nk.reshape(-1, 1) == jnp.arange(feed.count), axis=0, dtype=jnp.int32)
    rows_JD = _spread(x_ND, order_J, place_Nk)
    row_J = order_J // (feed.picked * x_BTD.shape[1])
    multiply = partial(_by_experts, grouped, sizes_X, lambda gate_Br: gate_Br[row_J])
    gate_JF, up_JF = multiply(rows_JD, w["gate_XDF"]), multiply(rows_JD, w["up_XDF"])
    if feed.bias:
        expert_J = picked_Nk.reshape(-1)[order_J]
        gate_JF = gate_JF + _of_expert(expert_J, w["gate_bias_XF"])
        up_JF = up_JF + _of_expert(expert_J, w["up_bias_XF"])
    # Scaling before the last matmul gives the same sum, over F columns instead of D; the weights are float32.
    weights_J = _reorder(weights_Nk, order_J, place_Nk)
    hidden_JF = (activated(feed, gate_JF, up_JF) * weights_J[:, None]).astype(x_ND.dtype)
    out_JD = multiply(hidden_JF, w["down_XFD"])
    out_BTD = shards.leave_layer(_collect(out_JD, order_J, place_Nk).reshape(x_BTD.shape))
    if not feed.bias:
        return out_BTD
    # The sum over the tensor group would have it once for each device; between the layers it is added once.
    bias_ND = _shares(feed, *own) @ shards.between_layers(w["down_bias_XD"]).astype(jnp.float32)
    return (out_BTD + bias_ND.reshape(before.shape)).astype(x_ND.dtype)


def _routed(
    feed: Experts, w: dict[str, Any], read_BTD: jax.Array, shards: Shards, router: Route
) -> tuple[jax.Array, jax.Array]:
    """`route` of a device's tokens between the layers: with sequence parallelism its own, with a router that counts as
    a weight between layers."""
    given = {"scale_X": "expert_scale_X", "bias_X": "router_bias_X"}
    more: dict[str, Any] = {name: shards.between_layers(w[ours]) for name, ours in given.items() if ours in w}
    return router(feed, read_BTD.reshape(-1, read_BTD.shape[-1]), shards.between_layers(w["router_DX"]), **more)


def _of_expert(expert_J: jax.Array, bias_XF: jax.Array) -> jax.Array:
    """The bias of each row's expert, [J, F] in float32: a product with zeros and ones, whose gradient is one, too."""
    one_JX = (expert_J[:, None] == jnp.arange(len(bias_XF))).astype(bias_XF.dtype)
    return jnp.matmul(one_JX, bias_XF, preferred_element_type=jnp.float32)


def _shares(feed: Experts, weights_Nk: jax.Array, picked_Nk: jax.Array) -> jax.Array:
    """The weight of every expert, [N, X], 0 where it is not picked."""
    return jnp.sum(jnp.where(picked_Nk[..., None] == jnp.arange(feed.count), weights_Nk[..., None], 0), axis=1)


def _by_experts(
    grouped: GroupedMatmul,
    sizes_X: jax.Array,
    spread: Callable[[jax.Array], jax.Array],
    x_JI: jax.Array,
    w: jax.Array | LowRank,
) -> jax.Array:
    """Each group of rows times its expert's matrix. spread(gate): the gate of a LowRank in the order of the rows."""
    if not isinstance(w, LowRank):
        return grouped(x_JI, w, sizes_X)
    low_Jr = grouped(x_JI, w.a, sizes_X)
    low_Jr = low_Jr if w.gate is None else low_Jr * spread(w.gate)
    return grouped(x_JI, w.weight, sizes_X) + w.scale * grouped(low_Jr, w.b, sizes_X)


def _over_experts(
    feed: Experts, w: dict[str, Any], x_BTD: jax.Array, shards: Shards, router_BTD: jax.Array | None, router: Route
) -> jax.Array:
    """`moe_layer` without a gradient, whole experts distributed over shards.experts.

    For decoding, where a layer's experts are many times larger than its tokens: every device gets the tokens of all,
    multiplies those that picked its experts, and the results are summed. With a router of its own every device routes
    its own tokens.
    """
    x_ND = shards.gather_tokens(x_BTD.reshape(-1, x_BTD.shape[-1]))
    read_ND = x_ND if router_BTD is None else shards.gather_tokens(router_BTD.reshape(-1, router_BTD.shape[-1]))
    first = lax.axis_index(shards.experts) * w["gate_XDF"].shape[0]

    def gates(gate_Br: jax.Array) -> jax.Array:
        return shards.gather_tokens(jnp.repeat(gate_Br, x_BTD.shape[1], axis=0))

    routed = None
    if router is not route:
        own = _routed(feed, w, x_BTD if router_BTD is None else router_BTD, shards, router)
        routed = shards.gather_tokens(own[0]), shards.gather_tokens(own[1])
    by_platform = {"default": partial(_own_sorted, feed, w, gates, routed)}
    # What the kernels of models/kernels/moe_tpu.py compute.
    plain = router_BTD is None and "expert_scale_X" not in w and feed.activation == "silu" and not feed.bias
    if feed.kernels and plain and _few(x_ND, [w[name] for name in EXPERTS]):
        by_platform["tpu"] = partial(_own_few, feed, w, routed)
    out_ND = lax.platform_dependent(x_ND, read_ND, first, **by_platform)
    return shards.sum_tokens(out_ND).reshape(x_BTD.shape)


def _few(x_ND: jax.Array, matrices: list[Any]) -> bool:
    """Whether `models.kernels.moe_tpu` takes these tokens and experts."""
    if any(isinstance(matrix, LowRank) for matrix in matrices):
        return False
    if any(size % LANES for size in matrices[0].shape[1:]):
        return False
    tokens = -(-x_ND.shape[0] // LANES) * LANES
    return tokens <= FEW and tokens * x_ND.shape[1] * x_ND.dtype.itemsize <= FEW_BYTES


def _own_few(
    feed: Experts,
    w: dict[str, Any],
    routed: tuple[jax.Array, jax.Array] | None,
    x_ND: jax.Array,
    _: jax.Array,
    first: jax.Array,
) -> jax.Array:
    """The part of the own experts, from `first` on, by two kernels for TPUs. routed: as for `_own_sorted`, without the
    first kernel."""
    from scope_jax.models.kernels.moe_tpu import few_tokens, route_few, routed_few  # Pallas takes a second to import

    gate_XDF, up_XDF, down_XFD = (w[name] for name in EXPERTS)
    if routed is None:
        own = route_few(x_ND, w["router_DX"], first, len(gate_XDF), feed.picked, feed.normalised)
    else:
        own = routed_few(*routed, first, len(gate_XDF))
    return few_tokens(x_ND, own, gate_XDF, up_XDF, down_XFD)


def _own_sorted(
    feed: Experts,
    w: dict[str, Any],
    gates: Callable[[jax.Array], jax.Array],
    routed: tuple[jax.Array, jax.Array] | None,
    x_ND: jax.Array,
    read_ND: jax.Array,
    first: jax.Array,
) -> jax.Array:
    """The same, with their tokens sorted to the front. gates: the gate of a LowRank for each token. routed: what the
    router gives, None: it has yet to be asked. read_ND: what it reads."""
    if routed is None:
        more = w.get("expert_scale_X"), w.get("router_bias_X")
        routed = route(feed, read_ND, w["router_DX"], False, *more)
    weights_Nk, picked_Nk = routed
    own_Nk, count = picked_Nk - first, w["gate_XDF"].shape[0]
    mine_Nk = (own_Nk >= 0) & (own_Nk < count)
    own_J = jnp.where(mine_Nk, own_Nk, count).reshape(-1)
    order_J = jnp.argsort(own_J, stable=True)
    place_Nk = jnp.argsort(order_J).reshape(own_Nk.shape)
    sizes_X = jnp.sum(own_J[:, None] == jnp.arange(count), axis=0, dtype=jnp.int32)
    tile = TILES[0] if len(own_J) >= TILES[0] * feed.count else SUBLANES
    token_J = order_J // own_Nk.shape[1]
    product = partial(_multiply, feed.kernels, tile=tile)
    multiply = partial(_by_experts, product, sizes_X, lambda gate_Br: gates(gate_Br)[token_J])
    rows_JD = x_ND[token_J]
    gate_JF, up_JF = multiply(rows_JD, w["gate_XDF"]), multiply(rows_JD, w["up_XDF"])
    if feed.bias:
        expert_J = own_J[order_J]
        gate_JF = gate_JF + _of_expert(expert_J, w["gate_bias_XF"])
        up_JF = up_JF + _of_expert(expert_J, w["up_bias_XF"])
    weight_J1 = weights_Nk.reshape(-1)[order_J][:, None]
    hidden_JF = (activated(feed, gate_JF, up_JF) * weight_J1).astype(x_ND.dtype)
    out_JD = multiply(hidden_JF, w["down_XFD"])
    if feed.bias:
        out_JD = out_JD + weight_J1 * _of_expert(expert_J, w["down_bias_XD"])
    # Rows behind the own experts were not computed: their values are arbitrary.
    out_ND = jnp.sum(jnp.where(mine_Nk[..., None], out_JD[place_Nk], 0), axis=1, dtype=jnp.float32)
    return out_ND.astype(x_ND.dtype)
