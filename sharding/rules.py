"""Which mesh axes each logical axis of a weight is sharded over."""

from __future__ import annotations

Rules = tuple[tuple[str, tuple[str, ...]], ...]

# Dimensions are assigned from the left and each mesh axis is used once, so that the ROW dimension of a matrix gets fsdp
# and the column dimension only what remains: sharding columns over fsdp makes shards narrower than a TPU lane, and XLA
# then replaces reduce-scatter by all-reduce. Where rows are tensor-sharded too, tensor comes first (tp-major): a gather
# over fsdp then yields one contiguous tensor shard. Stacked experts are rows of a taller matrix: fsdp distributes whole
# experts, tensor splits the width of each.
TRAIN: Rules = (
    ("layers", ()),
    ("vocab", ("tensor", "fsdp")),
    ("width", ("fsdp",)),
    ("heads", ("tensor", "fsdp")),
    ("kv_heads", ("tensor", "fsdp")),
    ("ffn", ("tensor", "fsdp")),
    ("experts", ("fsdp",)),
    ("head_bias", ("tensor",)),
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
)
