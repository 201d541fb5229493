"""The exact match of `grading.rewards` without its imports, for environments that have peers' packages only."""

import re
import string
from collections.abc import Sequence

_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def exact_match(prediction: str, golds: Sequence[str]) -> bool:
    """True if the prediction equals one of the answers but for case, punctuation, articles and spaces."""
    return any(_bare(prediction) == _bare(gold) for gold in golds)


def _bare(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub("", text.lower())).split())
