"""Whether a conclusion names one answer, the right one: the rule for document QA, which a list of guesses fails."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scope_jax.play import words
from scope_jax.play.measures import as_printed

_HERE = "\0"  # stands for the answer
_YES_NO = ("yes", "no", "true", "false", "none")
_PART = re.compile(rf"[,;:()\[\]\n–—]|(?<={_HERE})-|-(?={_HERE})|\s-+\s|[.!?](?=\s)")
# alternatives, negations and doubts, wherever they are
_OTHERS = re.compile(
    r"[/|&+•→]|n't\b|\b(?:or|nor|vs|versus|either|neither|not|never|except|unlike|could|may\sbe|might|maybe|perhaps"
    r"|possibly|also|alternatively|else|instead|otherwise)\b"
)
_AND = re.compile(r"\band\b")
# how a remark about the answer begins, rather than another answer
_REMARK = re.compile(
    r"\W*(?:the|a|an|which|who|whose|where|when|because|since|as|in|at|of|on|from|by|with|for|during|according|based"
    r"|it|this|that|he|she|they)\s"
)
_LABEL = re.compile(rf"\b(?:step|point|part|item|option|example|question|no)\W+{_HERE}")


def concludes(conclusion: str, golds: Sequence[str]) -> bool:
    """True if the conclusion contains an accepted answer (`measures.cover_exact_match`) and no other candidate.

    Other candidates: an alternative ("Paris or London", "Paris/London"), a negation, a list ("Paris, London", "1. Paris
    2. London"), for a number any other number, for yes and no any other word, the number of a step ("Step 2: London").
    A remark about the answer may stand beside it: "Paris, the capital of France". What is not clear is not accepted:
    the verifier also reads it.
    """
    said = as_printed(conclusion)
    return any(_names(said, as_printed(gold)) for gold in golds)


def _names(said: str, gold: str) -> bool:
    found = list(words.spans(said, gold))
    if not found:
        return False
    rest = words.plain(said)
    for begin, end in sorted(found, reverse=True):
        rest = rest[:begin] + _HERE * (end - begin) + rest[end:]
    rest = re.sub(f"{_HERE}+", _HERE, rest)
    if _OTHERS.search(rest) or _LABEL.search(rest) or (words.numbers(gold) and words.numbers(rest)):
        return False
    return all(_fits(part, gold) for part in _PART.split(rest))


def _fits(part: str, gold: str) -> bool:
    """True if a part of the conclusion, cut at punctuation, holds the answer alone, a remark, or nothing."""
    if _HERE not in part:
        return not any(map(str.isalnum, part)) or _REMARK.match(part) is not None
    alone = words.plain(gold).strip() in _YES_NO
    return not _AND.search(part) and not (alone and any(map(str.isalnum, part)))
