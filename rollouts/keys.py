"""Keys of random numbers by name: what is drawn depends on the name of a choice, never on the order of calls."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def key_data(*parts: int | str | Sequence[int]) -> np.ndarray:
    """uint32[2] threefry key data from everything that names a choice.

    A hash rather than a chain of `fold_in`s: any two different tuples get unrelated keys, and no device is involved.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype="<u4").copy()
