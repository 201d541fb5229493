"""Signs that a policy has collapsed: completions of one prompt that are identical, or ever shorter or longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from scope_jax.play.rewards import means


def identical_pairs(texts: Sequence[str]) -> float:
    """Share of the pairs of texts (i < j) that are equal apart from white space: 0 if all differ, 1 if none does.

    Raises ValueError for fewer than two texts, which make no pair.
    """
    if len(texts) < 2:
        raise ValueError("a share of pairs needs at least two texts")
    counts = Counter(" ".join(text.split()) for text in texts)
    return sum(n * (n - 1) for n in counts.values()) / (len(texts) * (len(texts) - 1))


def collapse_metrics(
    role: str, groups: Sequence[Sequence[str]], length: Callable[[str], int] = len
) -> dict[str, float]:
    """{"<role>/identical_pairs", "<role>/mean_length"} of a step's groups, each the texts that answer one prompt.

    identical_pairs: mean over the groups of at least two texts. mean_length: over all texts, in characters, or what
    `length` counts (`Tools.tokens`: tokens). A mean over nothing is left out. The third sign, the entropy of the
    sampled tokens' distributions, is a metric of the learner.
    """
    return means(
        {
            f"{role}/identical_pairs": [identical_pairs(texts) for texts in groups if len(texts) > 1],
            f"{role}/mean_length": [float(length(text)) for texts in groups for text in texts],
        }
    )
