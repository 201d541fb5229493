"""What `learner.micro_batch_rows`, `remat` and `logprob_chunk` are where they are left to us ("auto"), and the memory
of an optimiser step by arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from scope_jax.config import LearnerSection
from scope_jax.learner.batching import CHUNK, chunk_of, rows_per_shard
from scope_jax.learner.layout import Layout
from scope_jax.models.decoder import stacks
from scope_jax.models.decoder.config import Attention, Dense, Layer, ModelConfig
from scope_jax.models.decoder.kinds import feed_of, mixer_of
from scope_jax.sharding.mesh import row_shards
from scope_jax.sharding.program import device_bytes

ROWS = 8  # of a micro-batch, over the whole mesh
MOST_ROWS = 64
CPU_ROWS = 2  # of a micro-batch on each shard, where a row fits no cache
# Last-level cache of a CPU, the same number wherever it runs: rows, and with them the rounding of sums, depend on it.
CACHE = 32 * 2**20
# `learner.remat`, the fastest first. Everything kept costs an accelerator more traffic than it saves work.
FASTEST = {"cpu": ("none", "dots", "attention"), "gpu": ("dots", "attention"), "tpu": ("dots", "attention")}
# Where there is room: fewer and larger blocks of the vocabulary move fewer bytes (docs/reliability.md).
LARGE_CHUNK = {"gpu": 1024}  # `logprob_chunk`
ROUGH = 1.3  # times what `temporaries` says a step may need
# Of the intermediate values of a layer, see `temporaries`; compiled with Qwen3-0.6B's layers, with Atlas'.
UNROLLED, KEPT = 1.6, 3.0


@dataclass(frozen=True)
class Room:
    """Memory of a device in an update, and what else is there."""

    total: float
    """Bytes that a process may use."""
    policies: int
    """States that are there."""
    reference: bool
    """Reference weights are, too."""
    others: float = 0.0
    """Bytes of everything else."""

    def left(self, layout: Layout) -> float:
        """Bytes for a step's temporaries."""
        held = layout.abstract_state(self.reference)
        state = device_bytes(held.params) + device_bytes(held.opt_state)
        return self.total - self.others - self.policies * state - device_bytes(held.ref_params)


def fitted(section: LearnerSection, layout: Layout, room: Room | None) -> LearnerSection:
    """The section with numbers, the same for a card and hardware. room: None: it is not known.

    On CPUs memory bandwidth is scarce: if what the backward pass needs of all layers fits the cache for one of the
    longest rows, nothing is computed again, and a micro-batch has as many rows as fit. Otherwise it has CPU_ROWS on
    each shard there, elsewhere ROWS rows, and of the layers as much is kept as has room, of what is worth it (FASTEST),
    before blocks of the vocabulary become larger (LARGE_CHUNK); where the room is not known ROWS rows and their inputs
    alone.

    Speed of `benchmarks/learner.py` (16 rows of 192 tokens, 4 layers of width 256, two quiet cores) relative to plain
    torch: all 16 rows with "full" 0.84, 4 with "full" 0.91, 8 with "none" 1.06, 2 with "none" ("auto") 1.13. Processor
    seconds of four rows of 512 tokens, 4 layers of SmolLM2-135M, which fit no cache: 4 rows with "full" 4.1, 2 with
    "full" 3.5, 2 with "none" 3.4 (least of six, on a busy machine).
    """
    mesh, platform = layout.mesh.shape, layout.mesh.devices.flat[0].platform
    shards, rows = row_shards(layout.mesh), ROWS
    if platform == "cpu":
        tokens = max(section.buckets) // mesh["context"]
        row = sum(layer_bytes(layout.model, tokens, mesh["tensor"], layout.compute_dtype.itemsize))
        if row <= CACHE:
            return _with(section, shards * min(CACHE // row, MOST_ROWS), "none")
        rows = shards * CPU_ROWS if room is not None else ROWS
    least = _with(section, rows, "full")
    if room is None or section.micro_batch_rows == 0:  # all rows, whose number is known only when it runs
        return least
    wanted = [_with(section, rows, remat) for remat in FASTEST.get(platform, ())]
    found = next((choice for choice in wanted if _fits(layout, choice, room)), least)
    larger = _with(section, rows, found.remat, LARGE_CHUNK.get(platform, CHUNK))
    return larger if _fits(layout, larger, room) else found


def _fits(layout: Layout, section: LearnerSection, room: Room) -> bool:
    needed = sum(temporaries(layout, section, max(section.buckets)).values())
    return ROUGH * needed <= room.left(layout)


def _with(section: LearnerSection, rows: int, remat: str, chunk: int = CHUNK) -> LearnerSection:
    """The section with these where it says "auto"."""
    chosen = {"micro_batch_rows": rows, "remat": remat, "logprob_chunk": chunk}
    return section.model_copy(update={name: value for name, value in chosen.items() if vars(section)[name] == "auto"})


def layer_bytes(model: ModelConfig, tokens: int, tensor: int, itemsize: int) -> list[int]:
    """Bytes of the intermediate values of each layer: norms and residuals, heads, the feed-forward layer."""

    def of(layer: Layer) -> int:
        parts = mixer_of(layer).values(layer.mixer) // tensor + feed_of(layer).values(layer.feed) // tensor
        vectors = 2 * (model.width + layer.inputs) if layer.inputs else 0
        return tokens * (4 * model.width + parts + vectors) * itemsize

    return [of(layer) for layer in model.layers]


def temporaries(layout: Layout, section: LearnerSection, bucket: int) -> dict[str, float]:
    """Temporaries of an optimiser step over rows of `bucket` tokens without a compiler: a lower bound by arithmetic,
    bytes per device.

    gradients: accumulated in float32, beside those of one micro-batch. activations: the input of every layer and one
    layer's intermediate values (all layers' without rematerialisation), and what `learner.remat` keeps. gathered:
    weights of one layer and the output table on the device, none where they are there as they compute: the base of
    adapters, or those of one device in one dtype. logits: of one block of the vocabulary with their gradient.

    A CPU keeps of unrolled layers what they are computed from again, `UNROLLED` of their intermediate values, `KEPT` of
    layers of which nothing is computed again, and logits without a copy.
    """
    model, mesh = layout.model, layout.mesh
    tensor, size = mesh.shape["tensor"], layout.compute_dtype.itemsize
    tokens = rows_per_shard(section, row_shards(mesh)) * bucket // mesh.shape["context"]
    inside = layer_bytes(model, tokens, tensor, size)
    cpu = mesh.devices.flat[0].platform == "cpu"
    kept = (KEPT if cpu else 2.0) * sum(inside) if section.remat == "none" else 2.0 * max(inside)
    if cpu and layout.unstacked and section.remat != "none":
        kept = UNROLLED * sum(inside)
    kept += sum(_kept(layer, model.width, tensor, section.remat) for layer in model.layers) * tokens * size
    state = layout.abstract_state(reference=True)
    shapes, whole = state.params, state.ref_params
    gathered = largest(model, whole["layers"], numbers) / tensor
    table = model.table_rows * model.width / tensor
    there = layout.unstacked or (mesh.size == 1 and layout.param_dtype == layout.compute_dtype)
    vectors = 2 * model.num_layers * tokens * model.layers[0].inputs * size  # of each layer, and their gradients
    return {
        "gradients": 2.0 * device_bytes(shapes) * 4 / layout.param_dtype.itemsize,
        "activations": model.num_layers * tokens * model.width * size + vectors + kept,
        "gathered weights": 0.0 if there else 2 * gathered * size + 2 * table * size,
        "logits": (2.0 if cpu else 3.0) * min(chunk_of(section), tokens) * model.table_rows / tensor * 4,
    }


def _kept(layer: Layer, width: int, tensor: int, remat: str) -> int:
    """Numbers of a token that `remat` keeps of a layer beside its input; "none" is counted otherwise."""
    if remat in ("full", "none"):
        return 0
    found = layer.mixer.num_heads * layer.mixer.head_dim // tensor if isinstance(layer.mixer, Attention) else 0
    if remat in ("qkv", "dots"):
        found += mixer_of(layer).projected(layer.mixer) // tensor
    if remat == "dots" and isinstance(layer.feed, Dense):
        found += 2 * width + 2 * (feed_of(layer).values(layer.feed) // tensor) // 3
    return found


def numbers(tree: Any) -> int:
    """The numbers of all arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def largest(model: ModelConfig, layers: Any, size: Callable[[Any], float]) -> float:
    """The size of the largest layer of a tree of stacks, or of layers."""
    if not isinstance(layers, dict):
        return max(map(size, layers))
    own = zip(stacks.split(model, layers), stacks.stacks(model), strict=True)
    return max(size(stack) / len(places) for stack, places in own)
