"""Random keys derived from names: a draw depends on the name of what is drawn, never on the order of calls."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def key_data(*parts: int | str | Sequence[int]) -> np.ndarray:
    """uint32[2] threefry key data derived from `parts`, which together name what is drawn.

    A hash rather than a chain of `fold_in`s: any two different tuples give unrelated keys, and no device is involved.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype="<u4").copy()


def stretch_key(key: np.ndarray, stretch: int) -> np.ndarray:
    """uint32[2] key data of a stretch of an episode: the request's own key for the first, a derived one for later ones.

    A token's random numbers follow from the key and the token's position in its row. Positions start over after a
    restart and are reused where tokens were dropped: with the same key the policy would draw the same numbers twice.
    """
    if not stretch:
        return key
    return key_data(key.tolist(), stretch)
