"""Generators of the host by name, see `rollouts.keys`."""

from __future__ import annotations

import numpy as np

from rollouts.keys import key_data


def rng(*parts: int | str) -> np.random.Generator:
    """A host generator named by `parts`, for choices that a game makes outside the model."""
    return np.random.default_rng(key_data(*parts).astype(np.uint64).tolist())
