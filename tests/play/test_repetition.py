"""BLEU and clusters of texts by hand."""

from __future__ import annotations

import math

import pytest

from scope_jax.grading import repetition


def test_bleu_by_hand() -> None:
    one, other, short, none = map(repetition.ngrams, ("a b c d e", "a b c x e", "a b", ""))
    # 4 of 5 words, 2 of 4 pairs, 1 of 3 triples, 0.1 of 2 fours
    assert repetition.bleu(one, other) == pytest.approx((4 / 5 * 2 / 4 * 1 / 3 * 0.1 / 2) ** 0.25)
    # both words and the pair, 0.1 of what has no n-gram; shorter by 3 of 2
    assert repetition.bleu(short, one) == pytest.approx((1 * 1 * 0.1 * 0.1) ** 0.25 * math.exp(1 - 5 / 2))
    assert repetition.bleu(one, short) == pytest.approx((2 / 5 * 1 / 4 * 0.1 / 3 * 0.1 / 2) ** 0.25)
    assert repetition.bleu(none, one) == repetition.bleu(one, none) == repetition.bleu(none, none) == 0.0
    twice, thrice = map(repetition.ngrams, ("a a b", "a a a"))
    assert repetition.bleu(thrice, twice) == pytest.approx(
        (2 / 3 * 1 / 2 * 0.1 * 0.1) ** 0.25
    )  # a word counts as often as there


def test_shares_of_clusters() -> None:
    row = "one two three four five six"
    assert repetition.cluster_shares([row, row, "something else entirely here", row], 0.5) == [0.75, 0.75, 0.25, 0.75]
    assert repetition.cluster_shares(["", ""], 0.5) == [0.5, 0.5]  # replies without a question are alone
    assert repetition.cluster_shares([row], 0.5) == [1.0] and repetition.cluster_shares([], 0.5) == []


def test_average_linkage_joins_by_the_mean() -> None:
    """Distances 0.2 (a, b), 0.4 (b, c), 0.7 (a, c): c joins a and b at the mean 0.55, not at the least, 0.4."""
    table = {("a", "b"): 0.8, ("a", "c"): 0.3, ("b", "c"): 0.6}
    patch = pytest.MonkeyPatch()
    with patch.context() as at:
        at.setattr(repetition, "ngrams", lambda text: text)
        at.setattr(repetition, "bleu", lambda one, other: table[one, other])
        assert repetition.cluster_shares("abc", 0.5) == [2 / 3, 2 / 3, 1 / 3]
        assert repetition.cluster_shares("abc", 0.56) == [1.0, 1.0, 1.0]
        table["a", "b"] = 0.5
        assert repetition.cluster_shares("ab", 0.5) == [0.5, 0.5]  # at the threshold they stay apart
