"""Random numbers by name: what is drawn depends on the name of a choice, never on the order of calls."""

from __future__ import annotations

import hashlib

import numpy as np


def key_data(*parts: int | str) -> np.ndarray:
    """uint32[2] threefry key data for one request, from everything that names it.

    A hash rather than a chain of `fold_in`s: any two different tuples get unrelated keys, and no device is involved.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype="<u4").copy()


def rng(*parts: int | str) -> np.random.Generator:
    """A host generator named by `parts`, for choices that a game makes outside the model."""
    return np.random.default_rng(key_data(*parts).astype(np.uint64).tolist())
