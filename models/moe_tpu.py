"""All experts of a device for few tokens, as one Pallas kernel for TPUs; see `models.moe`.

When a batch decodes, almost every expert has tokens, but few: reading the experts' matrices is what takes the time, and
sorting the tokens for a grouped product only adds small operations to it. Here one expert's matrices are read while the
expert before computes. A product with zeros and ones picks an expert's tokens, ROWS at a time, and its transpose, with
the routing weights in place of the ones, adds their results to the output.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from sharding.chips import LANES

ROWS = 64  # tokens of an expert that are multiplied together
WEIGHTS = 20 * 2**20  # bytes of matrices in the vector memory: one expert's, and the next one's
MEMORY = 48 * 2**20  # of the vector memory, which is 64 MiB or more in v5e, v5p and v6e


def _columns(width: int, ffn: int, dtype: Any) -> int:
    """Columns of the ffn that are read at a time: the most that divide it and leave room for the next ones."""
    per_column = 2 * 3 * width * jnp.dtype(dtype).itemsize
    return max(c for c in range(LANES, ffn + 1, LANES) if ffn % c == 0 and (c == LANES or c * per_column <= WEIGHTS))


def few_tokens(
    x_ND: Float[Array, "N D"],
    share_NX: Float[Array, "N X"],
    gate_XDF: Float[Array, "X D F"],
    up_XDF: Float[Array, "X D F"],
    down_XFD: Float[Array, "X F D"],
    interpret: bool = False,
) -> Float[Array, "N D"]:
    """Σ over experts x with share_NX > 0 of share_NX[n, x] · (silu(x_n W_gate) ⊙ x_n W_up) W_down.

    share_NX: float32, 0 where token n did not pick expert x. D and F are multiples of 128. Matrices of experts that no
    token picked are not read. A token that is not finite leaves the others alone. interpret: Pallas's interpreter runs
    the kernel, on any platform.
    """
    tokens, width = x_ND.shape
    experts, _, ffn = gate_XDF.shape
    padding = ((0, -tokens % LANES), (0, 0))
    share_XN = jnp.pad(share_NX, padding).T
    count_X = jnp.sum(share_XN > 0, axis=1, dtype=jnp.int32)
    # The expert whose matrices are there at each step: without tokens, still those of the last one that had some.
    number_X = jnp.arange(experts, dtype=jnp.int32)
    held_X = jnp.max(jnp.where((number_X <= number_X[:, None]) & (count_X > 0), number_X, 0), axis=1)
    parts = 2 if experts % 2 == 0 else 1  # one for each of a v5p chip's two cores
    each, columns = experts // parts, _columns(width, ffn, gate_XDF.dtype)
    last = ffn // columns - 1
    rows = x_ND.shape[0] + padding[0][1]

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
            bytes_accessed=gate_XDF.nbytes + up_XDF.nbytes + down_XFD.nbytes,
            transcendentals=experts * ROWS * ffn,
        ),
        interpret=interpret,
        name="experts_of_few_tokens",
    )(held_X, count_X, jnp.pad(x_ND, padding), share_XN, gate_XDF, up_XDF, down_XFD)
    return jnp.sum(out_pND, axis=0, dtype=jnp.float32)[:tokens].astype(x_ND.dtype)


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
    product = partial(
        lax.dot_general,
        precision=lax.Precision.HIGHEST if dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    plain, first = (((1,), (0,)), ((), ())), (((0,), (0,)), ((), ()))

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
    place_1N = product(mine_1N.astype(jnp.bfloat16), before_NN.astype(jnp.bfloat16), plain, precision=None)

    def add(block: jax.Array, _: None) -> None:
        row_B1 = block * ROWS + lax.broadcasted_iota(jnp.int32, (ROWS, 1), 0)
        picks_BN = (place_1N.astype(jnp.int32) == row_B1) & mine_1N
        x_BD = product(picks_BN.astype(dtype), finite_ref[...], plain).astype(dtype)
        gate_BF = product(x_BD, gate_ref[...], plain)
        up_BF = product(x_BD, up_ref[...], plain)
        out_BD = product((jax.nn.silu(gate_BF) * up_BF).astype(dtype), down_ref[...], plain).astype(dtype)
        sum_ref[...] += product(jnp.where(picks_BN, share_1N, 0).astype(dtype), out_BD, first)

    lax.fori_loop(0, (count_ref[expert] + ROWS - 1) // ROWS, add, None)

    @pl.when((pl.program_id(1) == each - 1) & (pl.program_id(2) == pl.num_programs(2) - 1))
    def _() -> None:
        o_ref[...] = sum_ref[...].astype(o_ref.dtype)
