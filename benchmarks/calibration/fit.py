"""Fits the assumptions of `scope_jax.plan.assumptions` to the rows that are not held out.

    python -m benchmarks.calibration.fit [--leave-out]

What is minimised is the mean of |log(predicted / measured)| over those rows, and a little for every assumption's
distance from what one would expect without any measurement, so that one which no row depends on stays there. The search
changes one assumption at a time by a few per cent. Prints the assumptions, and the errors of both parts of the rows.
With --leave-out: of all rows, each system on each hardware predicted with what is fitted to all the others.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scope_jax.plan.hardware import ABSENT

if __name__ == "__main__":
    os.environ |= ABSENT

from benchmarks.calibration.rows import Row, error, hardware_of, predicted, rows
from scope_jax.plan.assumptions import Assumptions

EXPECTED = {
    "gpu": Assumptions(0.6, 0.6, 0.4, 0.8, 0.8, 0.8, 0.8, 0.8, 1e-5, 1e-7, 2e-5),
    "tpu": Assumptions(0.6, 0.6, 0.4, 0.8, 0.8, 0.8, 0.8, 0.8, 1e-5, 1e-6, 5e-6),
}
DISTANCE = 0.002  # of the objective, for a factor of e
STEPS = (0.5, 0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.25, 2.0)
SECONDS = ("layer", "slot", "collective")


def objective(some: Sequence[Row], platform: str, assumed: Assumptions) -> float:
    """Of one platform's rows."""
    errors = [abs(math.log(predicted(row, {platform: assumed}) / row.measured)) for row in some]
    away = [abs(math.log(vars(assumed)[name] / value)) for name, value in vars(EXPECTED[platform]).items()]
    return sum(errors) / len(errors) + DISTANCE * sum(away)


def fitted(platform: str, some: Sequence[Row]) -> Assumptions:
    """From what is expected: the assumptions, to two digits, that no single step improves for those of these rows that
    are of the platform."""
    some = [row for row in some if hardware_of(row.hardware).platform == platform]
    best = EXPECTED[platform]
    least, moved = objective(some, platform, best), True
    while moved:
        moved = False
        for name, value in vars(best).items():
            for step in STEPS:
                new = float(f"{value * step:.2g}")
                tried = replace(best, **{name: new if name in SECONDS else min(new, 0.95)})
                if (found := objective(some, platform, tried)) < least - 1e-6:
                    best, least, moved = tried, found, True
    return best


def left_out(work: str) -> tuple[int, float]:
    """(number of rows, median error) of decoding or updates: each system on each hardware under assumptions that are
    fitted to all the others."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows():
        groups.setdefault((row.system, row.hardware), []).append(row)
    errors = []
    for group in groups.values():
        platform = hardware_of(group[0].hardware).platform
        found = {platform: fitted(platform, [row for row in rows() if row not in group])}
        errors += [error([row], found) for row in group if row.work == work]
    return len(errors), math.exp(statistics.median(errors))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--leave-out", action="store_true")
    if options.parse_args().leave_out:
        for work in ("decode", "update"):
            number, times = left_out(work)
            print(f"left out in turn: {work} {number} {times:.2f}")
        return
    found = {platform: fitted(platform, [row for row in rows() if not row.held_out]) for platform in EXPECTED}
    for platform, assumed in found.items():
        print(platform, assumed)
    for held in (False, True):
        for works in (("decode",), ("update",), ("decode", "update")):
            some = [row for row in rows() if row.held_out == held and row.work in works]
            print("held out" if held else "fitted", *works, len(some), f"{math.exp(error(some, found)):.2f}")


if __name__ == "__main__":
    main()
