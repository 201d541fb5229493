from __future__ import annotations

import numpy as np
import pytest

from scope_jax.games.ssp import rules
from scope_jax.games.ssp.options import SSPSection
from scope_jax.grading import rewards
from scope_jax.learner.types import Episode
from scope_jax.rollouts.types import Completion, Row, Turn


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
    assert rules.proposer_reward(SSPSection(), 0.4) == pytest.approx(0.6)  # Eq. (7)
    assert rules.proposer_reward(SSPSection(), 1.0) == 0.0
    assert rules.proposer_reward(SSPSection(proposer_reward="intermediate"), 0.25) == pytest.approx(0.75)
    assert rules.intermediate(0.5, 0.0, 1.0) == pytest.approx(1.0)  # 4 · ½ · ½
    assert rules.intermediate(0.25, 0.0, 1.0) == pytest.approx(0.75)  # 4 · ¼ · ¾
    assert rules.intermediate(0.25, 0.25, 0.75) == pytest.approx(1.0)  # 4 · ½ · ½
    assert rules.intermediate(1.0, 0.5, 1.5) == 0.0
    assert rules.intermediate(0.0, 0.5, 1.5) == 0.0


def test_shares():
    assert rewards.shares("rejected/", ["a", "", "b", "a"], ("a", "b", "c")) == {
        "rejected/a": 0.5,
        "rejected/b": 0.25,
        "rejected/c": 0.0,
    }
    assert rewards.shares("rejected/", [], ("a",)) == {}


def test_a_value_for_each_turn_is_the_credit_of_its_tokens():
    """Two turns in one row, and a third after a new prompt, in a row of its own."""

    def turn(kind, count):
        return Turn(kind, np.zeros(count, np.int32), np.zeros(count, np.float32), "", None)

    def row(prompt, sampled):
        count = len(sampled)
        return Row(np.zeros(prompt, np.int32), np.zeros(count, np.int32), np.array(sampled, bool), np.zeros(count))

    rows = row(2, [1, 1, 0, 1]), row(3, [1, 1])
    turns = turn("sampled", 2), turn("observation", 1), turn("sampled", 1), turn("observation", 3), turn("sampled", 2)
    completion = Completion(rows, turns, "eos")
    first, second = rewards.by_turn(completion, [0.5, -1.0, 2.0])
    assert first.credit_T is not None and second.credit_T is not None
    assert first.credit_T.tolist() == [0, 0, 0.5, 0.5, 0, -1] and second.credit_T.tolist() == [0, 0, 0, 2, 2]
    fields = {"role": "solver", "policy": "actor", "group": "0", "reward": 0.0}
    episode = Episode.from_completion(completion, None, **fields, datums=(first, second))
    assert episode.datums == (first, second)
    with pytest.raises(ValueError, match="has 3 sampled turns, but there are 2 values"):
        rewards.by_turn(completion, [1.0, 2.0])
