"""Exact match and reward formulas shared by games, as pure functions."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]+")


def normalise(text: str) -> str:
    """`text` as exact match compares it: lower case, without ASCII punctuation and English articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub("", text.lower())).split())


def exact_match(prediction: str, golds: Sequence[str]) -> bool:
    """True if `prediction` equals one of the accepted answers after `normalise`.

    If nothing is left of both sides (answers that are only articles or punctuation), the raw texts are compared.
    """
    bare = normalise(prediction)
    for gold in golds:
        other = normalise(gold)
        if bare == other and (bare or prediction.strip().lower() == gold.strip().lower()):
            return True
    return False


def contains_words(text: str, words: str) -> bool:
    """True if the normalised words of `words` occur consecutively in `text`."""
    needle = normalise(words)
    return bool(needle) and f" {needle} " in f" {normalise(text)} "


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; raises ValueError for no values."""
    if not values:
        raise ValueError("the mean of no values is undefined")
    return sum(values) / len(values)


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean of each entry; entries without values are left out."""
    return {name: mean(numbers) for name, numbers in values.items() if numbers}


def one_minus_mean(rewards: Sequence[float]) -> float:
    """Proposer's reward 1 − (1/n) Σⱼ rⱼ over the solver's attempts at its question (SSP Eq. (7))."""
    return 1.0 - mean(rewards)


def absolute_zero(pass_rate: float) -> float:
    """1 − p for a task that is answered correctly with probability p, 0 at p = 0 (Absolute Zero)."""
    return 1.0 - pass_rate if pass_rate > 0.0 else 0.0


def r_zero(pass_rate: float) -> float:
    """1 − 2 |p − 1/2| for a task that is answered correctly with probability p (R-Zero)."""
    return 1.0 - 2.0 * abs(pass_rate - 0.5)


def intermediate(rewards: Sequence[float], left: float, right: float) -> float:
    """4 (left + s)(right − s) for a success rate 0 < s < 1, else 0 (released SSP code); s = (1/n) Σⱼ rⱼ."""
    success = mean(rewards)
    return 4.0 * (left + success) * (right - success) if 0.0 < success < 1.0 else 0.0
