"""MXFP4 (OCP Microscaling Formats 1.0), the format in which gpt-oss stores the matrices of its experts, as it is read.

A matrix [X, in, out] is stored transposed: "…_blocks" [X, out, in / 32, 16], bytes of two numbers each, the first in
the lower half, and "…_scales" [X, out, in / 32], the exponent of each block of 32 numbers plus 127. A number has a
sign, two bits of exponent and one of mantissa. All products fit bfloat16, so that reading rounds nothing.
"""

from __future__ import annotations

import numpy as np

BLOCKS, SCALES = "_blocks", "_scales"  # how the two names end
NUMBERS, BIAS = 32, 127  # numbers of a block; what is added to its exponent
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # E2M1
_VALUES = np.array([*_MAGNITUDES, *(-x for x in _MAGNITUDES)], np.float32)


def matrix_shape(blocks: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, ...] | None:
    """[X, in, out] of blocks and scales of these shapes; None if they do not belong together."""
    if len(blocks) != 4 or blocks[3] != NUMBERS // 2 or blocks[:3] != scales:
        return None
    return blocks[0], NUMBERS * blocks[2], blocks[1]


def matrices(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Float32 [..., in, out] of bytes [..., out, blocks, 16] and [..., out, blocks].

    A scale of 255 means NaN.
    """
    pairs = np.stack([_VALUES[blocks & 15], _VALUES[blocks >> 4]], axis=-1)
    numbers = pairs.reshape(*scales.shape, NUMBERS)
    with np.errstate(over="ignore"):
        exact = np.ldexp(numbers, scales.astype(np.int32)[..., None] - BIAS)
    exact = np.where(scales[..., None] == 255, np.nan, exact)
    return exact.reshape(*scales.shape[:-1], -1).swapaxes(-1, -2)
