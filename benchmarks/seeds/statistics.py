"""Means over seeds, standard errors, differences paired by seed, and when a difference may be claimed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LEAST = 3  # fewest seeds for any statement about a difference
CLAIM = 5  # fewest seeds to claim a direction
BEYOND = 2.0  # standard errors that a difference must exceed to be claimed


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values with its standard error s / √count (s with n − 1); None for a single value."""

    mean: float
    error: float | None
    count: int


def estimate(values: Iterable[float]) -> Estimate | None:
    """The mean of the values; None if there are none."""
    listed = list(values)
    if not listed:
        return None
    error = statistics.stdev(listed) / math.sqrt(len(listed)) if len(listed) > 1 else None
    return Estimate(statistics.fmean(listed), error, len(listed))


def paired(by_seed: Mapping[int, float], baseline: Mapping[int, float]) -> Estimate | None:
    """The mean difference from the baseline over the seeds that both have; None if they share none.

    Effects of a seed on both (data order, first samples) cancel, unlike in a comparison of two separate means.
    """
    shared = sorted(by_seed.keys() & baseline.keys())
    return estimate(by_seed[seed] - baseline[seed] for seed in shared)


def verdict(difference: Estimate) -> str:
    """The conclusion that the numbers support: "higher" or "lower" takes five seeds and over two standard errors."""
    if difference.error is None or difference.count < LEAST:
        return "n too small"
    if abs(difference.mean) <= BEYOND * difference.error:
        return "not distinguished"
    word = "higher" if difference.mean > 0 else "lower"
    return word if difference.count >= CLAIM else f"{word}, but n too small"
