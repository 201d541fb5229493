"""Majorities of answers: which of them are one answer, and which answer most of a group agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from scope_jax.grading.math_answers import Comparison
from scope_jax.grading.measures import same_text
from scope_jax.play.step import Step

Pair = tuple[str | None, str]  # an answer, None if it is missing, and one that it may equal


def equal(step: Step[Any], pairs: Sequence[Pair]) -> list[bool]:
    """Whether both answers of a pair are the same text, or equal mathematically; False for a missing one."""
    same = {pair: pair[0] is not None and same_text(pair[0], [pair[1]]) for pair in pairs}
    rest = {pair: Comparison(pair[0], (pair[1],)) for pair in same if pair[0] is not None and not same[pair]}
    verdicts = step.compare_math(list(rest.values()))
    same |= {pair: verdict == "equal" for pair, verdict in zip(rest, verdicts, strict=True)}
    return [same[pair] for pair in pairs]


def majorities(
    groups: Sequence[Sequence[str | None]], equal: Callable[[list[Pair]], list[bool]], unanswered_agree: bool
) -> list[tuple[str | None, float]]:
    """(answer, its share of all) of the majority of each group, (None, 0) without an answer; of equal shares the first.

    An answer joins the first class whose first member it equals. unanswered_agree: missing ones are a class, too.
    """
    heads: list[dict[str | None, str | None]] = [{None: None} for _ in groups]  # the first member of a text's class
    left = [list(dict.fromkeys(text for text in group if text is not None)) for group in groups]
    while any(left):
        pairs = [(place, text, texts[0]) for place, texts in enumerate(left) for text in texts]
        left = [[] for _ in groups]
        for (place, text, head), same in zip(pairs, equal([pair[1:] for pair in pairs]), strict=True):
            if same or text == head:
                heads[place][text] = head
            else:
                left[place].append(text)
    votes = []
    for group, head in zip(groups, heads, strict=True):
        counts = Counter(head[text] for text in group if unanswered_agree or text is not None)
        label, count = max(counts.items(), key=lambda item: item[1], default=(None, 0))
        votes.append((label, count / len(group)))
    return votes
