"""The kernels of a platform, and checks of each against plain XLA in float32: attention over pages, norm and rotation,
states, the learner's attention, products of experts.

`scope-jax selftest` runs the checks, and a run those of the kernels that it would use (`run.kernels`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scope_jax.models.decoder import moe
from scope_jax.models.decoder.check import ROUNDING, Check, apart
from scope_jax.models.decoder.config import Attention, Dense, Experts, Layer, ModelConfig
from scope_jax.models.decoder.delta import KeptState, Streams, Taps, one_each
from scope_jax.models.decoder.kinds import HeadTransform, plain_heads
from scope_jax.models.decoder.pages import Loop, Ragged, RaggedByHead
from scope_jax.models.decoder.paging import PAGE, SHARED, Implementation, Where
from scope_jax.models.kernels import attention
from scope_jax.models.kernels.packed import Packing
from scope_jax.models.kernels.rope import Rope
from scope_jax.sharding.chips import LANES

HEADS = Attention(8, 2, 128, Rope(1e6), qk_norm="head")
DENSE = ModelConfig("qwen3", 512, 256, (Layer(HEADS, Dense(512)),) * 2, 1e-6, False, 1024)
PICKS = Experts(128, 16, 4, normalised=True)
EXPERTS = replace(DENSE, architecture="qwen3_moe", layers=(Layer(HEADS, PICKS),) * 2)
STATE = 128, 128  # of a head of Gated DeltaNet: dimensions of its keys and values
XLA = "XLA in float32"
# How the names of the checks of each kernel begin.
PAGES, ROTATION, STATES, LEARNER, UNMASKED, PRODUCTS, FEW = (
    "attention over pages",
    "norm and rotation of decoding rows",
    "states of decoding rows",
    "attention of the learner",
    "attention without a mask",
    "products of experts",
    "routing and experts of a few tokens",
)


class Heads(NamedTuple):
    """Query heads, kv heads, and their dimension."""

    query: int = 8
    kv: int = 2
    dim: int = 128


def heads_of(model: ModelConfig) -> tuple[Heads, ...]:
    """Two kv heads, or one, with the queries and dimension of each kind of attention in the model."""

    def of(mixer: Attention) -> Heads:
        kv = min(2, mixer.num_kv_heads)
        return Heads(kv * mixer.num_heads // mixer.num_kv_heads, kv, mixer.head_dim)

    return tuple(dict.fromkeys(of(model.layers[number].attention) for number in model.attention_layers))


def attention_over_pages(platform: str, head_dim: int, sinks: bool = False) -> Implementation:
    """The kernel of a platform where it takes heads of this size, and sinks if the model has some, else the loop over
    pages, which runs on any and takes all."""
    if platform == "tpu" and head_dim % LANES == 0 and not sinks:
        return Ragged() if head_dim == LANES else RaggedByHead()
    if platform == "gpu" and head_dim >= 16 and head_dim.bit_count() == 1:
        from scope_jax.models.decoder.paged_gpu import Triton  # Pallas takes a second to import

        return Triton()
    return Loop()


def checks(platform: str, sizes: Heads = Heads(), dtype: str | None = None) -> list[Check]:
    """The checks of a platform's kernels with heads of these sizes, in `dtype`, by default that of cards there.

    On accelerators the bound is that of bfloat16 for float32, too: by default they multiply with fewer digits.
    """
    dtype = dtype or ("float32" if platform == "cpu" else "bfloat16")
    how, with_sinks = (attention_over_pages(platform, sizes.dim, sinks) for sinks in (False, True))
    backend = attention.resolve("auto", platform, dtype)
    masked = "cudnn_mask" if backend == "cudnn" else backend
    bound = ROUNDING[dtype if platform == "cpu" else "bfloat16"]
    heads = "" if type(how) is not Loop else f"{platform} has no kernel for norm and rotation"
    learning = "" if backend in ("cudnn", "splash") else f"{platform} has no kernel for it in {dtype}: XLA's is used"
    unmasked = "" if backend == "cudnn" else f"{platform} has no kernel for it in {dtype}"
    few = "" if platform == "tpu" else f"{platform} has no kernel for few tokens"
    states = "" if how.token_step(*STATE) is not None else f"{platform} has no kernel for states"

    def page(name: str, queries: int, window: int | None, sinks: bool = False, cache: str | None = None) -> Check:
        one = with_sinks if sinks else how
        kernel = type(one) is not Loop and (cache is None or isinstance(one, Loop))
        none = "" if kernel else f"{platform} has no kernel for it: the loop over pages is the reference"
        measure = partial(page_attention, one, dtype, queries, window, sizes, sinks, cache)
        return Check(f"{PAGES}, {name}", XLA, bound, measure, none)

    def learner(name: str, window: int | None, sinks: bool = False) -> Check:
        measure = partial(learner_attention, masked, dtype, window, sizes, sinks)
        return Check(f"{LEARNER} ({masked}) and its gradient{name}", XLA, bound, measure, learning)

    def without_mask(name: str, packing: Packing, window: int | None = None, sinks: bool = False) -> Check:
        measure = partial(learner_attention, "cudnn", dtype, window, sizes, sinks, packing)
        return Check(f"{UNMASKED} and its gradient, {name}", XLA, bound, measure, unmasked)

    return [
        page("decoding", 1, None),
        page("decoding, with a window", 1, 100),
        page("prompts", 32, None),
        page("prompts, with a window", 32, 100),
        page("prompts, with sinks", 32, None, True),
        page("decoding, keys and values in 8 bits", 1, None, cache="int8"),
        Check(ROTATION, "XLA", bound, partial(norm_and_rotation, how, dtype, sizes), heads),
        Check(STATES, XLA, bound, partial(token_states, how, dtype), states),
        learner("", None),
        learner(", with a window", 100),
        learner(", with sinks", None, True),
        without_mask("a text a row", Packing(1, 0)),
        without_mask("a text a row, with a window", Packing(1, 0), 100),
        without_mask("several texts", Packing(4, 0)),
        without_mask("several texts, with a window", Packing(4, 0), 100),
        without_mask("shared beginnings", Packing(4, 1)),
        without_mask("shared beginnings, with sinks", Packing(4, 1), None, True),
        Check(f"{PRODUCTS} and their gradients", XLA, bound, partial(grouped_products, dtype)),
        Check(FEW, XLA, bound, partial(few_tokens, dtype), few),
    ]


def _rounded(dtype: str, *shapes: Sequence[int], seed: int = 0) -> tuple[jax.Array, ...]:
    """Normal numbers of a dtype."""
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def _wide(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def _exactly(function: Callable[..., Any], *arguments: Any) -> Any:
    """function of these arguments in float32, multiplied with all digits."""
    with jax.default_matmul_precision("highest"):
        return jax.jit(function)(*_wide(arguments))


def page_attention(
    how: Implementation,
    dtype: str,
    queries: int,
    window: int | None,
    sizes: Heads = Heads(),
    sinks: bool = False,
    cache: str | None = None,
) -> float:
    """Four rows of different lengths, with pages in any order, the last page partly filled. cache: the dtype of pages
    in both; None: that of the arrays."""
    starts_R = np.array([0, 63, 130, 331] if queries == 1 else [0, 64, 130, 301])
    counts_R = np.array([1, 1, 1, 1] if queries == 1 else [queries, 7, queries, queries])
    longest = SHARED.count(int(starts_R.max()) + queries)
    table_Rb = np.random.default_rng(1).permutation(np.arange(1, 1 + 4 * longest)).reshape(4, longest)
    lengths_R = starts_R + counts_R
    row_N = np.repeat(np.arange(4), lengths_R)
    place_N = np.concatenate([np.arange(length) for length in lengths_R])
    shape = (len(row_N), sizes.kv, sizes.dim)
    arrays = _rounded(dtype, (4, queries, sizes.query, sizes.dim), shape, shape, (sizes.query,))
    page_N, column_N = (jnp.asarray(x, jnp.int32) for x in (table_Rb[row_N, place_N // PAGE], place_N % PAGE))
    table_R1b, starts, counts = (jnp.asarray(x, jnp.int32) for x in (table_Rb[:, None], starts_R, counts_R))
    where = Where(table_R1b, starts, counts)

    def attend(how: Implementation, q_RQHh: Any, k_NKh: Any, v_NKh: Any, sinks_H: Any) -> jax.Array:
        layer = how.empty(1 + table_Rb.size, sizes.kv, sizes.dim, jnp.dtype(cache or q_RQHh.dtype))
        layer = how.write(layer, k_NKh, v_NKh, page_N, column_N)
        out_RQHh = how.attend(layer, q_RQHh, where.seen(0, window, queries), window, sinks_H if sinks else None)
        return jnp.where((jnp.arange(queries) < counts_R[:, None])[..., None, None], out_RQHh, 0)

    return apart(jax.jit(partial(attend, how))(*arrays), _exactly(partial(attend, Loop()), *arrays))


def norm_and_rotation(how: Implementation, dtype: str, sizes: Heads = Heads()) -> float:
    """Queries of 70 tokens at positions up to 2,000, and two pages with their keys and values."""
    count = 70
    transform = partial(HeadTransform, Attention(*sizes, Rope(1e6), qk_norm="head"), 1e-6)
    rng = np.random.default_rng(0)
    at_N, positions_N = rng.permutation(count), rng.integers(0, 2000, count)
    page_N, column_N, position_B1 = (
        jnp.asarray(x, jnp.int32) for x in (at_N // PAGE, at_N % PAGE, positions_N[:, None])
    )
    arrays = _rounded(
        *(dtype, (count, 1, sizes.query * sizes.dim), (count, 1, sizes.kv * sizes.dim)),
        *((count, 1, sizes.kv, sizes.dim), (sizes.dim,), (sizes.dim,)),
    )

    def ours(q_B1n: jax.Array, k_B1n: jax.Array, v_B1Kh: jax.Array, *scales: jax.Array) -> Any:
        layer = how.empty(2, sizes.kv, sizes.dim, q_B1n.dtype)
        return how.place(layer, page_N, column_N, transform(scales), position_B1, q_B1n, k_B1n, v_B1Kh)

    def plain(q_B1n: jax.Array, k_B1n: jax.Array, v_B1Kh: jax.Array, *scales: jax.Array) -> Any:
        layer = how.empty(2, sizes.kv, sizes.dim, q_B1n.dtype)
        q_B1Hh, *tokens = plain_heads(transform(scales), position_B1, q_B1n, k_B1n, v_B1Kh)
        k_NKh, v_NKh = (x[:, 0] for x in tokens if x is not None)
        return q_B1Hh, how.write(layer, k_NKh, v_NKh, page_N, column_N)

    return apart(jax.jit(ours)(*arrays), _exactly(plain, *arrays))


def token_states(how: Implementation, dtype: str) -> float:
    """A token of four rows, of which one begins a text, beside two that add none; outputs and states."""
    key, value = STATE
    q, k, v, *before = _rounded(
        *(dtype, (4, 1, 2, key), (4, 1, 2, key), (4, 1, 4, value)),
        *((6, 2, 3, key), (6, 2, 3, key), (6, 4, 3, value)),
        *((2, key, 4), (2, key, 4), (4, value, 4)),
    )
    decay, beta, state = _rounded("float32", (4, 1, 4), (4, 1, 4), (6, 4, key, value), seed=1)
    streams = Streams(q, k, v, -jnp.exp(decay), jax.nn.sigmoid(beta))
    kept, taps = KeptState(state, *before[:3]), Taps(*before[3:])
    where = jnp.asarray([0, 5, 63, 700], jnp.int32), jnp.ones(4, jnp.int32)

    def stepped(kernel: Any, streams: Streams, taps: Taps, kept: KeptState) -> Any:
        out, new = one_each(streams, taps, *where, kept, kernel)
        return out, new.state_BHhe

    ours = jax.jit(partial(stepped, how.token_step(key, value)))(streams, taps, kept)
    return apart(ours, _exactly(partial(stepped, None), streams, taps, kept))


def learner_attention(
    backend: str,
    dtype: str,
    window: int | None,
    sizes: Heads = Heads(),
    sinks: bool = False,
    packing: Packing | None = None,
) -> float:
    """Two rows of 512 tokens, of one text, and of a prompt of 200 with answers of 130 and 100 with padding behind them,
    or with a packing texts that hold no more than it; result and gradients."""
    ends_BT = np.stack([np.full(512, 512), np.repeat([430, 330, 430], [200, 130, 182])])
    positions_BT = np.stack([np.arange(512), np.concatenate([np.arange(330), 200 + np.arange(182)])])
    if packing is not None and not packing.depth:
        several = packing.nodes > 1
        ends_BT[1] = np.repeat([200, 430], [200, 312]) if several else 430
        positions_BT[1, 200:] = np.arange(312) if several else np.arange(200, 512)
    ends_BT[1, 430:], positions_BT[1, 430:] = np.arange(431, 513), 0
    real_BT11 = (np.arange(512) < np.array([512, 430])[:, None])[..., None, None]
    kv, query = (2, 512, sizes.kv, sizes.dim), (2, 512, sizes.query, sizes.dim)
    ct_BTHh, *arrays = _rounded(dtype, query, query, kv, kv, *[(sizes.query,)] * sinks)
    ct_BTHh = jnp.where(real_BT11, ct_BTHh, 0)  # nobody reads what padding attends to

    def attend(backend: str, ct: jax.Array, *arrays: jax.Array) -> Any:
        numbers = jnp.asarray(ends_BT), jnp.asarray(positions_BT)
        out, gradients = jax.vjp(attention.make_attend(backend, *numbers, window, packing), *arrays)
        return jnp.where(real_BT11, out, 0), gradients(ct)

    ours = jax.jit(partial(attend, backend))(ct_BTHh, *arrays)
    return apart(ours, _exactly(partial(attend, "reference"), ct_BTHh, *arrays))


def grouped_products(dtype: str) -> float:
    """Rows of eight experts, one of which has none; the product and both gradients."""
    sizes_X = np.array([100, 0, 300, 37, 201, 128, 1, 257])
    expert_J = np.repeat(np.arange(8), sizes_X)
    x_JI, w_XIO, ct_JO = _rounded(dtype, (1024, 256), (8, 256, 128), (1024, 128))

    def kernel(x_JI: jax.Array, w_XIO: jax.Array) -> jax.Array:
        return moe.grouped_matmul(x_JI, w_XIO, jnp.asarray(sizes_X, jnp.int32))

    def plain(x_JI: jax.Array, w_XIO: jax.Array) -> jax.Array:
        one_JX = jnp.asarray(expert_J[:, None] == np.arange(8), x_JI.dtype)
        return jnp.einsum("JX,JI,XIO->JO", one_JX, x_JI, w_XIO)

    def both(multiply: Any, x_JI: jax.Array, w_XIO: jax.Array, ct_JO: jax.Array) -> Any:
        out_JO, gradients = jax.vjp(multiply, x_JI, w_XIO)
        return out_JO, gradients(ct_JO)

    ours = jax.jit(partial(both, kernel))(x_JI, w_XIO, ct_JO)
    return apart(ours, _exactly(partial(both, plain), x_JI, w_XIO, ct_JO))


def few_tokens(dtype: str) -> float:
    """70 tokens and all experts of a layer; the experts are picked in the kernel, and for the reference by `route`."""
    from scope_jax.models.kernels.moe_tpu import few_tokens as kernel
    from scope_jax.models.kernels.moe_tpu import route_few

    width, feed = DENSE.width, PICKS
    shape = (feed.count, width, feed.width)
    x_ND, router_DX, gate_XDF, up_XDF, down_XFD = _rounded(
        dtype, (70, width), (width, feed.count), shape, shape, (shape[0], shape[2], shape[1])
    )
    gate_XDF, up_XDF, down_XFD = gate_XDF / 16, up_XDF / 16, down_XFD / 16

    def ours(
        x_ND: jax.Array, router_DX: jax.Array, gate_XDF: jax.Array, up_XDF: jax.Array, down_XFD: jax.Array
    ) -> jax.Array:
        picks = (jnp.int32(0), feed.count, feed.picked, feed.normalised)
        return kernel(x_ND, route_few(x_ND, router_DX, *picks), gate_XDF, up_XDF, down_XFD)

    def plain(x_ND: jax.Array, gate_XDF: jax.Array, up_XDF: jax.Array, down_XFD: jax.Array) -> jax.Array:
        hidden_XNF = jax.nn.silu(jnp.einsum("ND,XDF->XNF", x_ND, gate_XDF)) * jnp.einsum("ND,XDF->XNF", x_ND, up_XDF)
        return jnp.einsum("NX,XNF,XFD->ND", share_NX, hidden_XNF, down_XFD)

    weights_Nk, picked_Nk = jax.jit(partial(moe.route, feed, gradient=False))(x_ND, router_DX)
    share_NX = jnp.zeros((70, feed.count)).at[np.arange(70)[:, None], picked_Nk].set(weights_Nk)
    return apart(
        jax.jit(ours)(x_ND, router_DX, gate_XDF, up_XDF, down_XFD), _exactly(plain, x_ND, gate_XDF, up_XDF, down_XFD)
    )
