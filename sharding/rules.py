"""Which mesh axes each logical axis of a weight is sharded over."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scope_jax.sharding.mesh import SHARDED

Rules = tuple[tuple[str, tuple[str, ...]], ...]

# fsdp stands for all axes of SHARDED, context among them.
# Dimensions are assigned from the left and each mesh axis is used once, so that the ROW dimension of a matrix gets fsdp
# and the column dimension only what remains: sharding columns over fsdp makes shards narrower than a TPU lane, and XLA
# then replaces reduce-scatter by all-reduce. Where rows are tensor-sharded too, tensor comes first (tp-major): a gather
# over fsdp then yields one contiguous tensor shard. Stacked experts are rows of a taller matrix: fsdp distributes whole
# experts, tensor splits the width of each.
TRAIN: Rules = (
    ("layers", ()),
    ("vocab", ("tensor", *SHARDED)),
    ("width", SHARDED),
    ("heads", ("tensor", *SHARDED)),
    ("kv_heads", ("tensor", *SHARDED)),
    ("ffn", ("tensor", *SHARDED)),
    ("experts", SHARDED),
    ("head_bias", ("tensor",)),
    ("inputs", SHARDED),
)

# Generation keeps a full copy of the weights in each tensor group: a gather per token would cost more than the matmul.
DECODE: Rules = (
    ("layers", ()),
    ("vocab", ("tensor",)),
    ("width", ()),
    ("heads", ("tensor",)),
    ("kv_heads", ("tensor",)),
    ("ffn", ("tensor",)),
    ("experts", ()),
    ("head_bias", ("tensor",)),
    ("inputs", ()),
)


def expert_axes(experts: int, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes that whole experts are distributed over in decoding, outermost first: the innermost ones whose
    devices divide the experts, as many as possible, without those of size 1. sizes: of the axes, outermost first."""
    names = list(sizes)
    for first in range(len(names)):
        devices = math.prod(sizes[name] for name in names[first:])
        if experts and experts % devices == 0:
            return tuple(name for name in names[first:] if sizes[name] > 1)
    return ()


def decode_rules(experts: int, sizes: Mapping[str, int]) -> Rules:
    """DECODE with whole experts distributed over `expert_axes`: they are read for every token, and the tokens of all
    devices are far fewer bytes."""
    return tuple((name, expert_axes(experts, sizes) if name == "experts" else axes) for name, axes in DECODE)
