"""Majorities of answers by hand."""

from __future__ import annotations

import pytest

from scope_jax.play.votes import Pair, majorities


def same_length(pairs: list[Pair]) -> list[bool]:
    return [one is not None and len(one) == len(other) for one, other in pairs]


@pytest.mark.parametrize(
    ("answers", "agree", "vote"),
    [
        (["7", "7", "88", "7"], False, ("7", 0.75)),
        (["88", "7", "7", "88"], False, ("88", 0.5)),  # of equal shares the first
        (["7", None, None, None], False, ("7", 0.25)),
        (["7", None, None, None], True, (None, 0.75)),
        ([None, None], False, (None, 0.0)),
        ([None, None], True, (None, 1.0)),
        (["12", "34", "5", "678"], False, ("12", 0.5)),  # 12 and 34 are one answer, named by the first text
        (["5", "12", "34", "56"], False, ("12", 0.75)),
    ],
)
def test_the_majority(answers: list[str | None], agree: bool, vote: tuple[str | None, float]) -> None:
    assert majorities([answers], same_length, agree) == [vote]


def test_all_groups_are_compared_together_with_the_first_member_of_each_class() -> None:
    asked: list[list[Pair]] = []

    def equal(pairs: list[Pair]) -> list[bool]:
        asked.append(pairs)
        return same_length(pairs)

    votes = majorities([["1", "22", "3", "44"], ["5"], ["6", "77", "888"]], equal, False)
    assert votes == [("1", 0.5), ("5", 1.0), ("6", 1 / 3)]
    assert asked[1:] == [[("22", "22"), ("44", "22"), ("77", "77"), ("888", "77")], [("888", "888")]]
