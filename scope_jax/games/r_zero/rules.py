"""The rules of R-Zero: majority labels, the challenger's reward, clusters of questions, formats; pure functions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations

from scope_jax.games.r_zero.options import RZeroSection
from scope_jax.play.rewards import r_zero

Pair = tuple[str | None, str]  # an answer, and one that it may equal
has_value = re.compile(r"[\d\s+*()-]*\d[\d\s+*()-]*").fullmatch  # of sums, differences and products of numbers
_FORMAT = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)


def majorities(
    groups: Sequence[Sequence[str | None]], equal: Callable[[list[Pair]], list[bool]], unanswered_agree: bool
) -> list[tuple[str | None, float]]:
    """(label, p: its share of all answers) of each group, (None, 0) without an answer; of equal shares the first.

    An answer joins the first class whose first member it equals. unanswered_agree: missing ones are a class, too.
    """
    heads: list[dict[str | None, str | None]] = [{None: None} for _ in groups]  # the first member of a text's class
    left = [list(dict.fromkeys(text for text in group if text is not None)) for group in groups]
    while any(left):
        pairs = [(place, text, own[0]) for place, own in enumerate(left) for text in own]
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


def challenger_reward(share: float | None, repetition: float, card: RZeroSection) -> float:
    """w (1 − 2 |p − ½|) − λ · repetition; without a question (share is None) `invalid_reward` − λ · repetition."""
    base = card.invalid_reward if share is None else card.uncertainty_weight * r_zero(share)
    reward = base - card.repetition_weight * repetition
    return max(0.0, reward) if card.floor else reward


def solver_reward(agrees: bool, text: str, weight: float) -> float:
    """(1 − w) · agrees + w · format; format: a closed `<think>` begins the answer, and a box follows it."""
    formed = _FORMAT.fullmatch(re.sub(r"\s*([<>/])\s*", r"\1", text)) is not None
    return (1 - weight) * agrees + weight * formed


def cluster_shares(texts: Sequence[str], distance: float) -> list[float]:
    """For each text the share of all texts in its cluster: average linkage of 1 − BLEU, below `distance`."""
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import, and no other game needs it

    apart = [1.0 - bleu(one, other) for one, other in combinations(map(ngrams, texts), 2)]
    if not apart:
        return [1.0] * len(texts)
    labels = fcluster(linkage(apart, "average"), math.nextafter(distance, 0.0), "distance").tolist()
    return [labels.count(label) / len(labels) for label in labels]


def ngrams(text: str) -> list[set[tuple[object, int]]]:
    """The n-grams of its words, n = 1 … 4, each with the number of its occurrence."""
    words, seen = text.split(), Counter[object]()
    grams = [zip(*(words[k:] for k in range(n)), strict=False) for n in (1, 2, 3, 4)]
    return [{(gram, seen.update([gram]) or seen[gram]) for gram in own} for own in grams]


def bleu(one: Sequence[set[tuple[object, int]]], other: Sequence[set[tuple[object, int]]]) -> float:
    """BLEU (Papineni et al. 2002) of two texts by their `ngrams`; where none is common, 0.1 of one is (smoothing 1 of
    Chen & Cherry 2014), but it is 0 without a common word."""
    common = [len(a & b) for a, b in zip(one, other, strict=True)]
    if not common[0]:
        return 0.0
    logs = [math.log((count or 0.1) / max(len(own), 1)) for count, own in zip(common, one, strict=True)]
    return math.exp(sum(logs) / 4 + min(0.0, 1 - len(other[0]) / len(one[0])))
