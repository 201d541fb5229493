"""Routing, and all experts of a device, for few tokens: two Pallas kernels for TPUs; see `models.decoder.moe`.

When a batch decodes, almost every expert has tokens, but few: reading the experts' matrices is what takes the time, and
sorting the tokens for a grouped product only adds small operations to it. Here one expert's matrices are read while the
expert before computes. A product with zeros and ones picks an expert's tokens, ROWS at a time, and its transpose, with
the routing weights in place of the ones, adds their results to the output.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from scope_jax.sharding.chips import LANES

ROWS = 64  # tokens of an expert that are multiplied together
PLAIN, FIRST = (((1,), (0,)), ((), ())), (((0,), (0,)), ((), ()))  # products a b, and aᵀ b
WEIGHTS = 20 * 2**20  # bytes of matrices in the vector memory: one expert's, and the next one's
MEMORY = 48 * 2**20  # of the vector memory, which is 64 MiB or more in v5e, v5p and v6e


def _columns(width: int, ffn: int, dtype: Any) -> int:
    """Columns of the ffn that are read at a time: the most that divide it and leave room for the next ones."""
    per_column = 2 * 3 * width * jnp.dtype(dtype).itemsize
    return max(c for c in range(LANES, ffn + 1, LANES) if ffn % c == 0 and (c == LANES or c * per_column <= WEIGHTS))


def _product(a: jax.Array, b: jax.Array, dims: Any) -> jax.Array:
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)


class Routed(NamedTuple):
    """Tokens of a device's experts. The tokens are padded to a multiple of LANES; padding has no share of any."""

    share_XN: jax.Array  # float32: the routing weights, 0 where token n did not pick expert x
    count_X: jax.Array  # int32: tokens that picked the expert
    held_X: jax.Array  # int32: the last expert up to this one that has tokens, so that no other is read; 0 if none has


def routed_few(
    weights_Nk: Float[Array, "N k"], picked_Nk: Int[Array, "N k"], first: Int[Array, ""], own: int
) -> Routed:
    """What `models.decoder.moe.route` has given, as `route_few` gives it."""
    of_expert_XNk = picked_Nk == first + jnp.arange(own)[:, None, None]
    share_XN = jnp.sum(jnp.where(of_expert_XNk, weights_Nk, 0), axis=-1)
    share_XN = jnp.pad(share_XN, ((0, 0), (0, -len(weights_Nk) % LANES)))
    count_X = jnp.sum(share_XN > 0, axis=1, dtype=jnp.int32)
    return Routed(share_XN, count_X, lax.cummax(jnp.where(count_X > 0, jnp.arange(own, dtype=jnp.int32), 0)))


def route_few(
    x_ND: Float[Array, "N D"],
    router_DX: Float[Array, "D X"],
    first: Int[Array, ""],
    own: int,
    picks: int,
    normalised: bool,
    interpret: bool = False,
) -> Routed:
    """`models.decoder.moe.route` for the experts first to first + own - 1: softmax over all experts, the `picks`
    largest, ties to the lower index, divided by their sum if normalised.

    interpret: Pallas's interpreter runs the kernel, on any platform.
    """
    tokens, width = x_ND.shape
    experts = router_DX.shape[1]
    rows, columns = tokens + -tokens % LANES, experts + -experts % LANES
    scalars, arrays = (pl.BlockSpec(memory_space=space) for space in (pltpu.SMEM, pltpu.VMEM))
    share_XN, count_X, held_X = pl.pallas_call(
        partial(_route, tokens=tokens, experts=experts, picks=picks, normalised=normalised),
        in_specs=[scalars, arrays, arrays],
        out_specs=[arrays, scalars, scalars],
        out_shape=[
            jax.ShapeDtypeStruct((own, rows), jnp.float32),
            *(jax.ShapeDtypeStruct((own,), jnp.int32) for _ in range(2)),
        ],
        scratch_shapes=[pltpu.VMEM((columns, rows), jnp.float32)],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=MEMORY),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * width * columns,
            bytes_accessed=x_ND.nbytes + router_DX.nbytes,
            transcendentals=rows * columns,
        ),
        interpret=interpret,
        name="route_few_tokens",
    )(
        first[None],
        jnp.pad(x_ND, ((0, rows - tokens), (0, 0))),
        jnp.pad(router_DX, ((0, 0), (0, columns - experts))),
    )
    return Routed(share_XN, count_X, held_X)


def _route(
    first_ref: Any,
    x_ref: Any,
    router_ref: Any,
    share_ref: Any,
    count_ref: Any,
    held_ref: Any,
    all_ref: Any,
    *,
    tokens: int,
    experts: int,
    picks: int,
    normalised: bool,
) -> None:
    logits_XN = _product(x_ref[...], router_ref[...], PLAIN).T
    expert_XN = lax.broadcasted_iota(jnp.int32, logits_XN.shape, 0).astype(jnp.float32)
    logits_XN = jnp.where(expert_XN < experts, logits_XN, -jnp.inf)
    mass_XN = jnp.exp(logits_XN - jnp.max(logits_XN, axis=0, keepdims=True))
    probs_XN = mass_XN / jnp.sum(mass_XN, axis=0, keepdims=True)
    left_XN, share_XN = jnp.where(expert_XN < experts, probs_XN, -1), jnp.zeros_like(probs_XN)
    for _ in range(picks):
        best_1N = jnp.max(left_XN, axis=0, keepdims=True)
        lowest_1N = jnp.min(jnp.where(left_XN == best_1N, expert_XN, jnp.inf), axis=0, keepdims=True)
        share_XN = jnp.where(expert_XN == lowest_1N, probs_XN, share_XN)
        left_XN = jnp.where(expert_XN == lowest_1N, -1, left_XN)
    if normalised:
        share_XN = share_XN / jnp.sum(share_XN, axis=0, keepdims=True)
    real_XN = lax.broadcasted_iota(jnp.int32, share_XN.shape, 1) < tokens
    all_ref[...] = jnp.where(real_XN, share_XN, 0)

    def take(x: jax.Array, held: jax.Array) -> jax.Array:
        row_1N = all_ref[pl.ds(first_ref[0] + x, 1), :]
        share_ref[pl.ds(x, 1), :] = row_1N
        count = jnp.sum((row_1N > 0).astype(jnp.float32)).astype(jnp.int32)
        held = lax.select(count > 0, x, held)
        count_ref[x], held_ref[x] = count, held
        return held

    lax.fori_loop(0, count_ref.shape[0], take, jnp.int32(0))


def few_tokens(
    x_ND: Float[Array, "N D"],
    routed: Routed,
    gate_XDF: Float[Array, "X D F"],
    up_XDF: Float[Array, "X D F"],
    down_XFD: Float[Array, "X F D"],
    interpret: bool = False,
) -> Float[Array, "N D"]:
    """Σ over experts x of share_XN[x, n] · (silu(x_n W_gate) ⊙ x_n W_up) W_down.

    D and F are multiples of LANES. Matrices of experts that no token picked are not read. A token that is not finite
    leaves the others alone. interpret: Pallas's interpreter runs the kernel, on any platform.
    """
    tokens, width = x_ND.shape
    experts, _, ffn = gate_XDF.shape
    parts = 2 if experts % 2 == 0 else 1  # one for each of a v5p chip's two cores
    each, columns = experts // parts, _columns(width, ffn, gate_XDF.dtype)
    last = ffn // columns - 1
    rows = routed.share_XN.shape[1]

    def matrix(p: Any, i: Any, f: Any, held: Any, count: Any) -> tuple[Any, Any]:
        expert = p * each + i
        return held[expert], lax.select(count[expert] > 0, f, last)

    def wide(*at: Any) -> tuple[Any, Any, Any]:
        expert, f = matrix(*at)
        return expert, 0, f

    def tall(*at: Any) -> tuple[Any, Any, Any]:
        return *matrix(*at), 0

    def whole(*_: Any) -> tuple[int, int]:
        return 0, 0

    out_pND = pl.pallas_call(
        partial(_kernel, each=each),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(parts, each, last + 1),
            in_specs=[
                pl.BlockSpec((rows, width), whole),
                pl.BlockSpec((experts, rows), whole),
                pl.BlockSpec((None, width, columns), wide),
                pl.BlockSpec((None, width, columns), wide),
                pl.BlockSpec((None, columns, width), tall),
            ],
            out_specs=pl.BlockSpec((None, rows, width), lambda p, *_: (p, 0, 0)),
            scratch_shapes=[pltpu.VMEM((rows, width), x_ND.dtype), pltpu.VMEM((rows, width), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((parts, rows, width), x_ND.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=MEMORY
        ),
        cost_estimate=pl.CostEstimate(
            flops=experts * ROWS * 6 * width * ffn,
            bytes_accessed=3 * gate_XDF.nbytes + (1 + parts) * rows * width * x_ND.dtype.itemsize,
            transcendentals=experts * ROWS * ffn,
        ),
        interpret=interpret,
        name="experts_of_few_tokens",
    )(
        *(routed.held_X, routed.count_X, jnp.pad(x_ND, ((0, rows - tokens), (0, 0))), routed.share_XN),
        *(gate_XDF, up_XDF, down_XFD),
    )
    total_ND = out_pND[0].astype(jnp.float32)
    if parts == 2:  # a sum over the axis takes XLA longer
        total_ND += out_pND[1].astype(jnp.float32)
    return total_ND[:tokens].astype(x_ND.dtype)


def _kernel(
    held_ref: Any,
    count_ref: Any,
    x_ref: Any,
    share_ref: Any,
    gate_ref: Any,
    up_ref: Any,
    down_ref: Any,
    o_ref: Any,
    finite_ref: Any,
    sum_ref: Any,
    *,
    each: int,
) -> None:
    del held_ref  # it is for the block specifications
    expert = pl.program_id(0) * each + pl.program_id(1)
    dtype = x_ref.dtype

    @pl.when((pl.program_id(1) == 0) & (pl.program_id(2) == 0))
    def _() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)
        x_ND = x_ref[...]
        finite_ref[...] = jnp.where(jnp.abs(x_ND) < jnp.inf, x_ND, 0)  # 0 · ∞ would be in the sums of other tokens

    share_1N = share_ref[pl.ds(expert, 1), :]
    mine_1N = share_1N > 0
    tokens = share_1N.shape[1]
    before_NN = lax.broadcasted_iota(jnp.int32, (tokens, tokens), 0) < lax.broadcasted_iota(
        jnp.int32, (tokens, tokens), 1
    )
    place_1N = _product(mine_1N.astype(jnp.bfloat16), before_NN.astype(jnp.bfloat16), PLAIN)

    def add(block: jax.Array, _: None) -> None:
        row_B1 = block * ROWS + lax.broadcasted_iota(jnp.int32, (ROWS, 1), 0)
        picks_BN = (place_1N.astype(jnp.int32) == row_B1) & mine_1N
        x_BD = _product(picks_BN.astype(dtype), finite_ref[...], PLAIN).astype(dtype)
        gate_BF = _product(x_BD, gate_ref[...], PLAIN)
        up_BF = _product(x_BD, up_ref[...], PLAIN)
        out_BD = _product((jax.nn.silu(gate_BF) * up_BF).astype(dtype), down_ref[...], PLAIN).astype(dtype)
        sum_ref[...] += _product(jnp.where(picks_BN, share_1N, 0).astype(dtype), out_BD, FIRST)

    lax.fori_loop(0, (count_ref[expert] + ROWS - 1) // ROWS, add, None)

    @pl.when((pl.program_id(1) == each - 1) & (pl.program_id(2) == pl.num_programs(2) - 1))
    def _() -> None:
        o_ref[...] = sum_ref[...].astype(o_ref.dtype)
