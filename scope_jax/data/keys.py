"""Named random generators on the host, see `rollouts.keys`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from scope_jax.rollouts.keys import key_data

Item = TypeVar("Item")


def rng(*parts: int | str) -> np.random.Generator:
    """A host generator seeded by `parts`, for random choices of a game outside the model."""
    return np.random.default_rng(key_data(*parts).astype(np.uint64).tolist())


def drawn(items: Sequence[Item], count: int, rng: np.random.Generator) -> list[Item]:
    """`count` items drawn without replacement; all in random order if there are fewer."""
    return [items[int(place)] for place in rng.permutation(len(items))[:count]]
