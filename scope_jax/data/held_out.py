"""The part of a file of prompts that is held out of training, by a hash of each prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

SHARE = 0.1  # of all rows
FEWEST, MOST = 50, 500  # rows that are held out
ENOUGH = 100  # rows of which some can be held out


def held_out(prompts: Sequence[str]) -> list[bool]:
    """Whether each row is held out: a tenth of the rows, FEWEST to MOST; none of fewer than ENOUGH.

    A row is held out if the hash of its prompt, as a number in 0..1, is below SHARE: whatever other rows there are, and
    in any order. Where that takes fewer or more rows than the bounds allow, it is the rows with the lowest hashes up to
    the bound. Equal prompts are on one side.
    """
    if len(prompts) < ENOUGH:
        return [False] * len(prompts)
    rows: dict[float, int] = {}
    hashes = [_hash(prompt) for prompt in prompts]
    for value in hashes:
        rows[value] = rows.get(value, 0) + 1
    chosen: set[float] = set()
    count = 0
    for value in sorted(rows):
        if count >= FEWEST and (value >= SHARE or count + rows[value] > MOST):
            break
        if count + rows[value] <= MOST:  # a prompt of more rows stays in training
            chosen.add(value)
            count += rows[value]
    return [value in chosen for value in hashes]


def _hash(prompt: str) -> float:
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") / 2**64
