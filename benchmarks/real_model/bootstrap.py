"""Exams of several seeds on the same rows: means and differences with errors over rows and seeds together.

    python -m benchmarks.real_model.bootstrap SET MEASURE RUN … [--before RUN …]

Prints the first and the last exam of the runs, one for each seed, and their difference; with `--before` (one run for
each seed, or one for all) the difference of the last exams of both.

Rows and seeds are drawn with replacement, both at once: rows, as others might have been asked; seeds, as another run
would have come out otherwise. What is compared has the same rows, so that their difficulty cancels.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from scope_jax.errors import UserError
from scope_jax.run.files import EXAMS, read_records

DRAWS = 4000
Scores = Float[np.ndarray, "seeds rows"]


@dataclass(frozen=True)
class BootstrapEstimate:
    """A mean over rows and seeds."""

    mean: float
    """Of the scores themselves."""
    error: float
    """The standard deviation of the mean over the draws."""
    low: float
    """2.5 % of the draws are below."""
    high: float
    """2.5 % of the draws are above."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate(scores: Scores, draws: int = DRAWS) -> BootstrapEstimate:
    """The mean of scores, or of their differences. The draws are always the same."""
    seeds, rows = scores.shape
    rng = np.random.default_rng(0)
    means = np.empty(draws)
    for draw in range(draws):
        drawn = scores[rng.integers(seeds, size=seeds)][:, rng.integers(rows, size=rows)]
        means[draw] = drawn.mean()
    low, high = np.quantile(means, [0.025, 0.975])
    return BootstrapEstimate(float(scores.mean()), float(means.std(ddof=1)), float(low), float(high))


def exams(run: Path, name: str, measure: str) -> dict[int, dict[tuple[int, str], float]]:
    """The scores of a set's questions by the step of the exam, in order. Raises UserError if the run has none."""
    steps: dict[int, dict[tuple[int, str], float]] = {}
    for record in read_records(run / EXAMS):
        if record["set"] == name and measure in record["measures"]:
            key = (record["question"], record["of"])
            steps.setdefault(record["step"], {})[key] = record["measures"][measure]
    if not steps:
        raise UserError(f"{run} has no exam {name!r} with the measure {measure!r}; name one that its report shows.")
    return dict(sorted(steps.items()))


def table(runs: Sequence[Path], name: str, measure: str, place: int) -> Scores:
    """The scores of one exam of each run. place: 0 for the first, -1 for the last. Raises UserError if the runs were
    asked other questions."""
    by_run = [list(exams(run, name, measure).values())[place] for run in runs]
    for run, scores in zip(runs, by_run, strict=True):
        if scores.keys() != by_run[0].keys():
            raise UserError(
                f"{run} was asked other questions in {name!r} than {runs[0]}; compare runs of the same set."
            )
    return np.asarray([[scores[key] for key in by_run[0]] for scores in by_run])


def main() -> None:
    """Prints the estimates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set")
    parser.add_argument("measure")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--before", nargs="+", type=Path)
    given = parser.parse_args()
    after = table(given.runs, given.set, given.measure, -1)
    before = table(given.before or given.runs, given.set, given.measure, -1 if given.before else 0)
    for words, scores in (("before", before), ("after", after), ("difference", after - before)):
        print(f"{words:<10} {estimate(scores)}")


if __name__ == "__main__":
    main()
