"""Tensors that a checkpoint may hold beside those that a model declares, and what each must equal.

A config that calls a tensor redundant may be wrong (a head that was trained apart from the embeddings it is said to
share), so nothing is left out unread: values are compared with those that are used, block by block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.fields import WeightsError
from scope_jax.models.files import streaming
from scope_jax.models.files.tensorfile import READABLE, Checkpoint
from scope_jax.models.kernels.rope import Rope, frequencies

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FREQUENCIES = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")  # saved up to transformers 4.31


@dataclass(frozen=True)
class Redundant:
    """What may be stored besides. copies: tensor -> the one whose values it must have, and for which it stands in if
    that is not stored. buffers: name -> the values of which it must have one. unused: names of what has no part in the
    result (an encoder's heads), which is not read.
    """

    copies: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[tuple[re.Pattern[str], tuple[np.ndarray, ...]], ...] = ()
    unused: re.Pattern[str] = re.compile(r"(?!)")

    def allows(self, name: str) -> bool:
        """True for a tensor that may be stored besides."""
        buffer = any(pattern.fullmatch(name) for pattern, _ in self.buffers)
        return name in self.copies or buffer or self.unused.fullmatch(name) is not None


def of_decoder(cfg: ModelConfig, prefix: str = "model.") -> Redundant:
    """Of a decoder: the output table where config.json ties it to the embeddings, and rotary frequencies."""
    mixers = [cfg.layers[number].attention for number in cfg.attention_layers]
    heads = {(mixer.head_dim, mixer.rope) for mixer in mixers if mixer.rope is not None}
    heads |= {
        (dim, Rope(rope.theta, share=rope.share)) for dim, rope in heads
    }  # transformers' classes store them before or after scaling
    values = tuple(frequencies(rope, dim) for dim, rope in sorted(heads, key=repr))
    copies = {HEAD: prefix + TABLE.removeprefix("model.")} if cfg.tie_embeddings else {}
    return Redundant(copies, ((FREQUENCIES, values),))


def open_checked(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]], redundant: Redundant) -> None:
    """Raises WeightsError unless the files hold these tensors in these shapes, and besides only what is redundant.

    Afterwards a copy can be read under the name of the tensor for which it stands in.
    """
    for copy, name in redundant.copies.items():
        if name not in checkpoint.names and copy in checkpoint.names:
            checkpoint.rename(copy, name)
    checkpoint.check(shapes, {name for name in checkpoint.names if redundant.allows(name)} - set(shapes))


def compare(checkpoint: Checkpoint, redundant: Redundant) -> None:
    """Raises WeightsError if a redundant tensor has other values than what is used in its place.

    A process reads its share of the rows, of copies and of tensors that several files hold.
    """
    stored = checkpoint.names
    for copy, name in redundant.copies.items():
        if copy in stored and not _equal(checkpoint, copy, name):
            raise WeightsError(
                f"{checkpoint.folder}: {copy} has other values than {name}, but config.json says that they are one "
                "(tie_word_embeddings); set that to false there, or remove the tensor."
            )
    for again, name in checkpoint.repeated.items():
        if not _equal(checkpoint, again, name):
            raise WeightsError(f"{checkpoint.folder}: two files hold {name} with other values; copy the folder again.")
    for pattern, wanted in redundant.buffers:
        for name in sorted(filter(pattern.fullmatch, stored)):
            if not any(_close(checkpoint.values(name), values) for values in wanted):
                raise WeightsError(
                    f"{checkpoint.folder}: {name} has other values than config.json gives; correct config.json (for "
                    "rotary frequencies rope_theta and rope_scaling), or remove the tensor."
                )


def _shares(rows: int, width: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of this process's blocks of `rows` rows of `width` values."""
    index, processes = jax.process_index(), jax.process_count()
    first, last = rows * index // processes, rows * (index + 1) // processes
    step = max(1, streaming.BLOCK_BYTES // (4 * max(width, 1)))
    return ((start, min(start + step, last)) for start in range(first, last, step))


def _equal(checkpoint: Checkpoint, one: str, other: str) -> bool:
    """True if two tensors have the same shape and values, read as float32."""
    shape = checkpoint.shape(one)
    if checkpoint.shape(other) != shape:
        return False
    for cut in _shares(shape[0] if shape else 1, int(np.prod(shape[1:]))):
        parts = [np.empty((cut[1] - cut[0], *shape[1:]) if shape else (), np.float32) for _ in range(2)]
        for name, part in zip((one, other), parts, strict=True):
            checkpoint.read(name, (slice(*cut),) if shape else (), part)
        if not np.array_equal(parts[0], parts[1]):
            return False
    return True


def _close(stored: np.ndarray, wanted: np.ndarray) -> bool:
    """True if the stored values are the wanted ones, up to the rounding of their dtype."""
    if stored.size != wanted.size:
        return False
    half = stored.dtype in (READABLE["F16"], READABLE["BF16"])
    return np.allclose(
        stored.reshape(wanted.shape).astype(np.float64),
        wanted,
        rtol=float(jnp.finfo(stored.dtype).eps) if half else 1e-6,
        atol=float(jnp.finfo(stored.dtype).smallest_subnormal) if half else 0.0,
    )
