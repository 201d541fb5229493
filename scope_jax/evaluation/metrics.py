"""The metrics of an evaluation set, from the records of its answers: pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scope_jax.grading.measures import BY_TEXT
from scope_jax.grading.rewards import mean
from scope_jax.learner.types import Metrics

BINARY = ("accuracy", *(name for name in BY_TEXT if name != "f1"), "math", "judge")  # measures that are 1 or 0


def set_metrics(kind: str, name: str, records: Sequence[Mapping[str, Any]]) -> Metrics:
    """`<kind>/<set>/<name>` for each measure and each count of the records of the set `name`.

    A measure is averaged over the samples of each question that have it, then over questions. `<measure>_se` is the
    standard error of that mean over questions. For 0/1 measures with several samples, also `<measure>_pass@<k>`,
    k = 2, 4 …
    """
    values = means(records) | totals(records)
    return {f"{kind}/{name}/{key}": value for key, value in values.items()}


def means(records: Sequence[Mapping[str, Any]]) -> Metrics:
    """Measures, standard errors and pass@k of the records, see `set_metrics`."""
    questions: list[list[Mapping[str, float]]] = []
    for record in records:
        if not record.get("sample"):
            questions.append([])
        questions[-1].append(record["measures"])
    metrics: Metrics = {}
    for name in dict.fromkeys(name for question in questions for sample in question for name in sample):
        samples = [values for question in questions if (values := [s[name] for s in question if name in s])]
        averages = [mean(values) for values in samples]
        metrics[name] = mean(averages)
        if (error := standard_error(averages)) is not None:
            metrics[f"{name}_se"] = error
        fewest, k = min(map(len, samples)), 2
        while name in BINARY and k <= fewest:
            metrics[f"{name}_pass@{k}"] = mean([pass_at_k(len(values), round(sum(values)), k) for values in samples])
            k *= 2
    return metrics


def totals(records: Sequence[Mapping[str, Any]]) -> Metrics:
    """The sum of each count."""
    names = dict.fromkeys(name for record in records for name in record["counts"])
    return {name: float(sum(record["counts"].get(name, 0) for record in records)) for name in names}


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Unbiased estimate of the probability that one of k answers is right: 1 − C(n−c, k)/C(n, k), from c right ones of
    n samples.

    Chen et al. 2021; SPELL Eq. (11). Raises ValueError unless 1 <= k <= samples and 0 <= right <= samples.
    """
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise ValueError(f"pass@{k} of {samples} samples, {right} of them right, is undefined")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean of independent values, s/√n with the unbiased deviation; None for fewer than two."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))
