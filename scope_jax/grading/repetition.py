"""Texts of a batch that repeat each other: BLEU of two texts, and clusters of near ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

Grams = Sequence[set[tuple[object, int]]]  # n-grams, n = 1 … 4, each with the number of its occurrence


def cluster_shares(texts: Sequence[str], distance: float) -> list[float]:
    """For each text the share of all texts in its cluster: average linkage of 1 − BLEU, below `distance`.

    Of two texts the earlier one is the hypothesis.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import

    apart = [1.0 - bleu(one, other) for one, other in combinations(map(ngrams, texts), 2)]
    if not apart:
        return [1.0] * len(texts)
    labels = fcluster(linkage(apart, "average"), math.nextafter(distance, 0.0), "distance").tolist()
    return [labels.count(label) / len(labels) for label in labels]


def ngrams(text: str) -> Grams:
    """The n-grams of its words, by n."""
    words, seen = text.split(), Counter[object]()
    grams = [zip(*(words[k:] for k in range(n)), strict=False) for n in (1, 2, 3, 4)]
    return [{(gram, seen.update([gram]) or seen[gram]) for gram in by_n} for by_n in grams]


def bleu(hypothesis: Grams, reference: Grams) -> float:
    """BLEU (Papineni et al. 2002) of two texts by their `ngrams`; where none is common, 0.1 of one is (smoothing 1 of
    Chen & Cherry 2014), but it is 0 without a common word."""
    common = [len(a & b) for a, b in zip(hypothesis, reference, strict=True)]
    if not common[0]:
        return 0.0
    logs = [math.log((count or 0.1) / max(len(by_n), 1)) for count, by_n in zip(common, hypothesis, strict=True)]
    return math.exp(sum(logs) / 4 + min(0.0, 1 - len(reference[0]) / len(hypothesis[0])))
