"""Compares answers with the accepted ones: pure functions.

Every comparison takes the text of an answer, already extracted from the reply by the game's parser, and the accepted
answers. An empty answer is never correct.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import Any

from scope_jax.grading.json_values import json_equal
from scope_jax.grading.letters import letter
from scope_jax.grading.rewards import exact_match, normalise
from scope_jax.grading.words import contains

TOLERANCE = 0.0015  # relative, for numbers (SPELL App. E: 0.15 %)
_SCALES = {"hundred": 1e2} | {
    name: scale
    for names, scale in (
        (("thousand", "k"), 1e3),
        (("million", "mn", "m"), 1e6),
        (("billion", "bn", "b"), 1e9),
        (("trillion", "tn", "t"), 1e12),
    )
    for name in names
}
_NUMBER = re.compile(
    r"(?P<open>\()?\s*(?P<sign>[-−+]|(?<!\w)–(?=[$€£¥.\d])|\b(?:minus|negative)\b)?\s*[$€£¥]?\s*(?P<sign2>[-−])?"
    r"(?P<digits>(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?P<power>[eE][-+]?\d{1,3})?"
    r"(?P<close>\))?\s*(?P<unit>%|per\s?cent\b|hundred\b|thousand\b|million\b|billion\b|trillion\b|(?:[mbt]n|[kmbt])\b)?",
    re.IGNORECASE,
)
_LATEX = re.compile(r"\\([%$ ])|\\[,;!:]|\{,\}|~")  # of numbers: an escaped sign, spaces, a comma between thousands
_DRESS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathsf|mbox)\s*+\{([^{}]*+)\}")
_QUOTES = " \"'`“”‘"
_BOX = re.compile(r"\\f?box(?:ed)?\s*+\{([^{}]*+)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*+\{(\d++)\}\s*+\{(\d++)\}")


def undressed(text: str) -> str:
    """`text` without LaTeX font commands and without dollar signs."""
    return _DRESS.sub(r"\1", text).replace("$", "").strip()


def same_text(prediction: str, golds: Sequence[str]) -> bool:
    """True if `prediction` is an accepted answer, ignoring case, white space, and a full stop or quotes around it.

    Unlike `exact_match` it keeps signs, decimal points and symbols: "-5" is not "5", "C++" is not "C".
    """
    bare = _bare(prediction)
    return bool(bare) and any(bare == _bare(gold) for gold in golds)


def _bare(text: str) -> str:
    text = undressed(text).replace("’", "'")
    inner = text.lstrip(_QUOTES)
    closing = " " if inner == text else _QUOTES  # without an opening quote it is a prime: A' is not A
    return " ".join(inner.rstrip(closing).rstrip(". ").rstrip(closing).lower().split())


def cover_exact_match(prediction: str, golds: Sequence[str]) -> bool:
    r"""True if `prediction` contains one of the accepted answers, as whole words (SPELL §4.2; `words.contains`).

    LaTeX is read as it looks: \boxed{Paris} contains Paris, \frac{3}{4} does not contain 4.
    """
    return any(contains(as_printed(prediction), as_printed(gold)) for gold in golds)


def as_printed(text: str) -> str:
    """`text` without LaTeX boxes, font commands and spaces; fractions of numbers as 3/4."""
    text = _BOX.sub(r" \1 ", _DRESS.sub(r"\1", _FRACTION.sub(r" \1/\2 ", text)))
    return _LATEX.sub(lambda mark: mark[1] or ("," if mark[0] == "{,}" else "\N{THIN SPACE}"), text)


def f1(prediction: str, golds: Sequence[str]) -> float:
    """SQuAD's F1 (0 … 1) between the normalised words of `prediction` and of the best-matching accepted answer."""
    return max((_f1(normalise(prediction).split(), normalise(gold).split()) for gold in golds), default=0.0)


def _f1(predicted: Sequence[str], wanted: Sequence[str]) -> float:
    common = sum((Counter(predicted) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


# ------------------------------------------------------------------------------------------------------------ numbers
def readings(text: str) -> tuple[tuple[float, ...], bool] | None:
    """(possible values of the only number in `text`, whether it has a scale); None without exactly one number.

    "12 %" is .12 or, in a table of percentages, 12; "3.5 million" and "3.5M" are 3.5e6 or, in a table of millions, 3.5.
    Accounting brackets make a number negative: "(1,234)" is -1234. Commas are those between thousands: "3,4" is two
    numbers. LaTeX is read as it looks.
    """
    plain = _LATEX.sub(lambda mark: mark[1] or ("," if mark[0] == "{,}" else ""), undressed(text))
    # stop at two matches; collapse white space, which the pattern would otherwise scan repeatedly
    found = list(islice(_NUMBER.finditer(" ".join(plain.split())), 2))
    if len(found) != 1:
        return None
    match = found[0]
    value = float(match["digits"].replace(",", "") + (match["power"] or ""))
    bracketed = match["open"] and match["close"] and not (match["sign"] or match["sign2"])
    if bracketed or (match["sign"] or "+") != "+" or match["sign2"]:
        value = -value
    if not math.isfinite(value):
        return None
    unit = (match["unit"] or "").lower()
    if not unit:
        return (value,), False
    scale = _SCALES.get(unit, 0.01)
    return (value * scale, value), True


def numeric(prediction: str, golds: Sequence[str], tolerance: float = TOLERANCE) -> bool:
    """True if `prediction` has exactly one number, equal to that of an accepted answer within a relative tolerance.

    The sign counts. A scale word or per cent sign on one side may be implied on the other; if both sides have one, the
    scaled values are compared.
    """
    predicted = readings(prediction)
    if predicted is None:
        return False
    for gold in golds:
        wanted = readings(gold)
        if wanted is None:
            continue
        both = predicted[1] and wanted[1]
        pairs = [(predicted[0][0], wanted[0][0])] if both else product(predicted[0], wanted[0])
        if any(math.isclose(a, b, rel_tol=tolerance, abs_tol=0.0) for a, b in pairs):
            return True
    return False


# ------------------------------------------------------------------------------------------------------------ choices
def choice(prediction: str, golds: Sequence[str]) -> bool:
    """True if `prediction` chooses the letter of an accepted answer."""
    chosen = letter(prediction)
    return chosen is not None and any(letter(gold) == chosen for gold in golds)


# -------------------------------------------------------------------------------------------------------------- facts
def states(answer: str, statement: str, value: str) -> bool:
    """True if the first occurrence of `statement` in `answer` is followed by `value`.

    False if the answer lacks the statement or gives another value first. Compares whole words, ignoring case and white
    space: states("The mouth of  Seine is Channel.", "the mouth of Seine is", "Channel").
    """
    found = re.search(rf"(?<!\w){_spaced(statement)}(?!\w)", answer, re.IGNORECASE)
    return found is not None and bool(re.match(rf"\s*{_spaced(value)}(?!\w)", answer[found.end() :], re.IGNORECASE))


def _spaced(text: str) -> str:
    """A regular expression for the words of `text` with any white space between them."""
    return r"\s+".join(map(re.escape, text.split()))


def facts_stated(answer: str | None, rubric: Sequence[Mapping[str, Any]]) -> float | None:
    """Weighted share of a rubric's facts (criteria with `fact`: statement and value) that `answer` states.

    SCOPE Eq. (1) over these criteria, with an exact rule as the judge; None if the rubric has no facts.
    """
    facts = [(item["weight"], *item["fact"]) for item in rubric if item.get("fact")]
    if not facts:
        return None
    met = sum(weight for weight, statement, value in facts if states(answer or "", statement, value))
    return met / sum(weight for weight, _, _ in facts)


BY_TEXT = {
    "exact-match": exact_match,
    "cover-exact-match": cover_exact_match,
    "f1": f1,
    "numeric": numeric,
    "choice": choice,
    "same-text": same_text,
    "json": json_equal,
}  # measures that need only the two texts
