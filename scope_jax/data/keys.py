"""Named random generators on the host, see `rollouts.keys`."""

from __future__ import annotations

import numpy as np

from rollouts.keys import key_data


def rng(*parts: int | str) -> np.random.Generator:
    """A host generator seeded by `parts`, for random choices of a game outside the model."""
    return np.random.default_rng(key_data(*parts).astype(np.uint64).tolist())
