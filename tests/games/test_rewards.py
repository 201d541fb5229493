from __future__ import annotations

import pytest

from scope_jax.games.ssp import rules
from scope_jax.learner.types import Episode
from scope_jax.play import rewards


@pytest.mark.parametrize(
    ("prediction", "golds", "right"),
    [
        ("The Beatles!", ("beatles",), True),
        ("  new   york ", ("New York",), True),
        ("U.S.A.", ("United States", "USA"), True),
        ("Paris, France", ("Paris",), False),
        ("Theodore", ("odore",), False),  # articles are removed as words, not as prefixes
        ("", ("Paris",), False),
        ("the", ("a",), False),  # both are empty after normalisation: no match
        ("The", ("the",), True),
        ("?", ("?",), True),
        ("*", ("?",), False),
        ("(A).", ("A",), True),  # a letter, not an article
        ("a cat", ("A",), False),
    ],
)
def test_exact_match(prediction: str, golds: tuple[str, ...], right: bool):
    assert rewards.exact_match(prediction, golds) is right


def test_proposer_rewards():
    assert rules.one_minus_mean([1.0, 0.0, 0.0, 1.0, 0.0]) == pytest.approx(0.6)  # 1 − 2/5, Eq. (7)
    assert rules.one_minus_mean([1.0]) == 0.0
    assert rules.intermediate([1.0, 0.0], 0.0, 1.0) == pytest.approx(1.0)  # 4 · ½ · ½
    assert rules.intermediate([1.0, 0.0, 0.0, 0.0], 0.0, 1.0) == pytest.approx(0.75)  # 4 · ¼ · ¾
    assert rules.intermediate([1.0, 0.0, 0.0, 0.0], 0.25, 0.75) == pytest.approx(1.0)  # 4 · ½ · ½
    assert rules.intermediate([1.0, 1.0], 0.5, 1.5) == 0.0
    assert rules.intermediate([0.0, 0.0], 0.5, 1.5) == 0.0
    with pytest.raises(ValueError, match="no values"):
        rules.one_minus_mean([])


def test_shares():
    assert rewards.shares("rejected/", ["a", "", "b", "a"], ("a", "b", "c")) == {
        "rejected/a": 0.5,
        "rejected/b": 0.25,
        "rejected/c": 0.0,
    }
    assert rewards.shares("rejected/", [], ("a",)) == {}


def test_rewards_and_their_parts_are_metrics_of_a_role_or_of_a_stage():
    episodes = [
        Episode("solver", "actor", "g", (), 2.0, {"format": 1.0, "rubric": 0.5, "gate": 0.0}),
        Episode("solver", "actor", "g", (), 1.0, {"format": 0.0}),
        Episode("challenger", "actor", "g", (), 9.0, {"format": 9.0}),
    ]
    values = {"reward": [2.0, 1.0], "format": [1.0, 0.0], "rubric": [0.5], "length": []}
    for prefix, chosen in (("", "solver"), ("estimate", "estimate")):
        parts = rewards.parts_of("solver", episodes, "format", "rubric", "length", prefix=prefix)
        assert parts == {f"{chosen}/{name}": numbers for name, numbers in values.items()}
