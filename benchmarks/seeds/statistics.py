"""Means over seeds, their standard errors, differences paired by seed, and when a difference may be called one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LEAST = 3  # seeds below which nothing is said of a difference
CLAIM = 5  # seeds from which on a direction is claimed
BEYOND = 2.0  # standard errors that a difference must exceed


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values with its standard error s / √count (s with n − 1); None where one value has none."""

    mean: float
    error: float | None
    count: int


def estimate(values: Iterable[float]) -> Estimate | None:
    """The mean of the values; None of none."""
    listed = list(values)
    if not listed:
        return None
    error = statistics.stdev(listed) / math.sqrt(len(listed)) if len(listed) > 1 else None
    return Estimate(statistics.fmean(listed), error, len(listed))


def paired(by_seed: Mapping[int, float], baseline: Mapping[int, float]) -> Estimate | None:
    """The mean of the differences from the baseline over the seeds that both have; None if they share none.

    What a seed does to both (order of the data, what is drawn first) cancels, which two separate means would not show.
    """
    shared = sorted(by_seed.keys() & baseline.keys())
    return estimate(by_seed[seed] - baseline[seed] for seed in shared)


def verdict(difference: Estimate) -> str:
    """What the numbers carry: "higher" or "lower" takes five seeds and more than two standard errors."""
    if difference.error is None or difference.count < LEAST:
        return "n too small"
    if abs(difference.mean) <= BEYOND * difference.error:
        return "not distinguished"
    word = "higher" if difference.mean > 0 else "lower"
    return word if difference.count >= CLAIM else f"{word}, but n too small"
