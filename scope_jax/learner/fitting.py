"""What `learner.micro_batch_rows` and `learner.remat` are where they are left to us ("auto")."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scope_jax.config import LearnerSection
from scope_jax.models.decoder.config import Layer, ModelConfig
from scope_jax.models.decoder.kinds import feed_of, mixer_of
from scope_jax.sharding import mesh as sharding

ROWS = 8  # of a micro-batch, over the whole mesh
MOST_ROWS = 64
# Last-level cache of a CPU, the same number wherever it runs: rows, and with them the rounding of sums, depend on it.
CACHE = 32 * 2**20


def fitted(
    section: LearnerSection, model: ModelConfig, platform: str, mesh: Mapping[str, int], itemsize: int
) -> LearnerSection:
    """The section with numbers. mesh: sizes of its axes. itemsize: bytes of a number in computation.

    On CPUs memory bandwidth is scarce: if what the backward pass needs of all layers fits the cache for one of the
    longest rows, nothing is computed again, and a micro-batch has as many rows as fit. Elsewhere, and for larger
    models, a micro-batch has ROWS rows, of whose layers only the input is kept.

    Speed of `benchmarks/learner.py` (16 rows of 192 tokens, 4 layers of width 256, two quiet cores) relative to plain
    torch: all 16 rows with "full" 0.84, 4 with "full" 0.91, 8 with "none" 1.06, 2 with "none" ("auto") 1.13.
    """
    rows, remat = ROWS, "full"
    if platform == "cpu":
        tokens = max(section.buckets) // mesh["context"]
        row = sum(layer_bytes(model, tokens, mesh["tensor"], itemsize))
        if row <= CACHE:
            shards = math.prod(mesh[name] for name in sharding.ROWS)
            rows, remat = shards * min(CACHE // row, MOST_ROWS), "none"
    chosen = {"micro_batch_rows": rows, "remat": remat}
    return section.model_copy(
        update={name: value for name, value in chosen.items() if getattr(section, name) == "auto"}
    )


def layer_bytes(model: ModelConfig, tokens: int, tensor: int, itemsize: int) -> list[int]:
    """Bytes of the intermediate values of each layer: norms and residuals, heads, the feed-forward layer."""

    def of(layer: Layer) -> int:
        parts = mixer_of(layer).values(layer.mixer) // tensor + feed_of(layer).values(layer.feed) // tensor
        vectors = 2 * (model.width + layer.inputs) if layer.inputs else 0
        return tokens * (4 * model.width + parts + vectors) * itemsize

    return [of(layer) for layer in model.layers]
