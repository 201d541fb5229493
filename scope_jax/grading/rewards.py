"""Exact match, reward formulas and credits by turn, shared by games, as pure functions."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scope_jax.learner.types import Datum
from scope_jax.rollouts.types import Completion

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]+")


def normalise(text: str) -> str:
    """`text` as exact match compares it: lower case, without ASCII punctuation and English articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub("", text.lower())).split())


def exact_match(prediction: str, golds: Sequence[str]) -> bool:
    """True if `prediction` equals one of the accepted answers after `normalise`.

    If nothing is left of both sides (answers that are only articles or punctuation, such as the letter "(A)"), they are
    compared with their articles, and without any word as they are.
    """
    bare = normalise(prediction)
    return any(bare == normalise(gold) and (bare != "" or _rest(prediction) == _rest(gold)) for gold in golds)


def _rest(text: str) -> str:
    return " ".join(_PUNCTUATION.sub("", text.lower()).split()) or text.strip().lower()


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; raises ValueError for no values."""
    if not values:
        raise ValueError("the mean of no values is undefined")
    return sum(values) / len(values)


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean of each entry; entries without values are left out."""
    return {name: mean(numbers) for name, numbers in values.items() if numbers}


def shares(prefix: str, values: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """The share of `values` that equal each name, as the metric `prefix` + name; {} without values."""
    return {f"{prefix}{name}": values.count(name) / len(values) for name in names if values}


def by_turn(completion: Completion, values: Sequence[float]) -> tuple[Datum, ...]:
    """The completion's rows with a credit for each token: the value of its sampled turn.

    values: one for each sampled turn, in order; they are added to the episode's advantage. Raises ValueError for
    another number of values.
    """
    sizes = [len(turn.ids) for turn in completion.turns if turn.kind == "sampled"]
    if len(values) != len(sizes):
        raise ValueError(f"the episode has {len(sizes)} sampled turns, but there are {len(values)} values for them.")
    datums = Datum.from_completion(completion)
    counts = [int(np.count_nonzero(datum.sampled_T)) for datum in datums]
    if sum(counts) != sum(sizes):
        raise ValueError(f"the turns have {sum(sizes)} sampled tokens, but the rows have {sum(counts)}.")
    parts = np.split(np.repeat(np.asarray(values, np.float32), sizes), np.cumsum(counts)[:-1])
    credited = []
    for datum, part in zip(datums, parts, strict=True):
        credit_T = np.zeros(len(datum.ids_T), np.float32)
        credit_T[datum.sampled_T] = part
        credited.append(replace(datum, credit_T=credit_T))
    return tuple(credited)


def learnability(pass_rate: float) -> float:
    """1 − p for a task that is answered correctly with probability p, 0 at p = 0 (Absolute Zero)."""
    return 1.0 - pass_rate if pass_rate > 0.0 else 0.0


def uncertainty(pass_rate: float) -> float:
    """1 − 2 |p − 1/2| for a task that is answered correctly with probability p (R-Zero)."""
    return 1.0 - 2.0 * abs(pass_rate - 0.5)
