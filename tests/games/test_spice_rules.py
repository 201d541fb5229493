"""SPICE's rewards, sub-sampling and grading, on hand-computed cases."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from scope_jax.data.keys import rng
from scope_jax.games.spice import reasoner, rules
from scope_jax.games.spice.records import MULTIPLE_CHOICE, Attempt, Document, Task, Tried
from scope_jax.text.messages import Messages
from tests.games.harness import ScriptedTools
from tests.games.spice_world import card


@pytest.mark.parametrize(
    ("rate", "variance", "absolute_zero", "threshold", "r_zero"),
    [
        (0.0, 0.0439369336, 0.0, 0.0, 0.0),  # Var = 0: exp(−0.0625/0.02) = exp(−3.125), above the penalty
        (0.125, 0.3720341859, 0.875, 1.0, 0.25),  # Var = 7/64: exp(−(9/64)²/0.02)
        (0.25, 0.8225775623, 0.75, 1.0, 0.5),  # Var = 3/16: exp(−(1/16)²/0.02)
        (0.375, 0.9878671723, 0.625, 1.0, 0.75),  # Var = 15/64: exp(−(1/64)²/0.02)
        (0.5, 1.0, 0.5, 1.0, 1.0),
        (0.75, 0.8225775623, 0.25, 1.0, 0.5),
        (1.0, 0.0439369336, 0.0, 0.0, 0.0),
    ],
)
def test_rewards_of_a_challenger(rate, variance, absolute_zero, threshold, r_zero):
    wanted = {"variance": variance, "absolute-zero": absolute_zero, "threshold": threshold, "r-zero": r_zero}
    assert {name: rules.reward(name, rate, 0.01) for name in wanted} == pytest.approx(wanted, abs=1e-9)


def test_the_width_of_the_variance_reward():
    assert rules.reward("variance", 0.0, 0.0625 / 2) == pytest.approx(np.exp(-1), abs=1e-12)
    with pytest.raises(ValueError, match="name is 'gauss'"):
        rules.reward("gauss", 0.5, 0.01)


@pytest.mark.parametrize(
    ("valid", "total", "size", "wanted"),
    [
        (5, 10, 8, 4),
        (7, 10, 8, 6),  # 5.6
        (3, 16, 8, 2),  # 1.5: halves round up
        (1, 16, 8, 1),  # 0.5
        (15, 16, 8, 8),  # 7.5
        (1, 1024, 8, 1),  # 0.008, but at least one valid attempt is kept
        (1023, 1024, 8, 8),
        (0, 1024, 8, 0),
        (1024, 1024, 8, 8),
        (3, 5, 8, 3),  # all are kept
        (0, 3, 8, 0),
        (0, 0, 8, 0),
        (1, 9, 1, 1),
    ],
)
def test_how_many_of_a_subsample_are_valid(valid, total, size, wanted):
    assert rules.valid_share(valid, total, size) == wanted


def attempts(pattern: str) -> list[Attempt]:
    """Attempts from a word of v (valid) and i (invalid)."""
    document, task = Document(0, "d", "text"), Task("integer", "How many?", "7")
    return [
        Attempt(document, n, (), task if c == "v" else None, "" if c == "v" else "no_answer")
        for n, c in enumerate(pattern)
    ]


@pytest.mark.parametrize(
    ("pattern", "size", "valid", "invalid"),
    [
        ("vviivviivi", 4, 2, 2),
        ("iiiiiiiiiv", 4, 1, 3),
        ("iiiiiiiiii", 4, 0, 4),  # no valid one
        ("vvvvvvvvvv", 4, 4, 0),  # no invalid one
        ("vi", 4, 1, 1),
        ("", 4, 0, 0),
    ],
)
def test_a_subsample_keeps_the_ratio_and_the_order_of_the_attempts(pattern, size, valid, invalid):
    own = attempts(pattern)
    kept = rules.subsample(own, size, rng("test", 1))
    assert Counter(one.valid for one in kept) == Counter({True: valid, False: invalid})
    numbers = [one.number for one in kept]
    assert numbers == sorted(set(numbers))
    assert kept == rules.subsample(own, size, rng("test", 1))


def test_valid_and_invalid_attempts_are_each_sampled_uniformly():
    own, drawn = attempts("vviivviivi"), Counter()
    for seed in range(2000):
        drawn.update(one.number for one in rules.subsample(own, 4, rng("test", seed)))
    assert all(abs(drawn[one.number] / 2000 - 0.4) < 0.05 for one in own)  # 2 of 5 each, about 4.5 standard errors


@pytest.mark.parametrize(
    ("kind", "answer", "prediction", "wanted"),
    [
        (MULTIPLE_CHOICE, "B", "B", True),
        (MULTIPLE_CHOICE, "B", r"\text{(B)}", True),
        (MULTIPLE_CHOICE, "B", "B) 149,600,000 km", True),
        (MULTIPLE_CHOICE, "B", "149,600,000 km", False),  # the letter is required
        (MULTIPLE_CHOICE, "B", "A or B", False),
        (MULTIPLE_CHOICE, "A", "A river", False),
        ("string", "Newton", r"\text{newton}", True),
        ("string", "-5", "5", False),
        ("string", "3/4", "0.75", False),  # text, not a value
        ("boolean", "true", "True", True),
        ("boolean", "true", "false", False),
        ("integer", "42", "42", True),
        ("expression", "x+1", None, False),
        ("integer", "42", "", False),
    ],
)
def test_answers_that_need_no_comparison_of_values(kind, answer, prediction, wanted):
    assert rules.right(Task(kind, "q", answer), prediction) is wanted


@pytest.mark.parametrize("kind", ["integer", "float", "expression"])
def test_values_are_compared_where_the_texts_differ(kind):
    task = Task(kind, "q", "42")
    assert rules.needs_mathematics(task, "84/2")
    assert not rules.needs_mathematics(task, "42") and not rules.needs_mathematics(task, None)
    assert not rules.needs_mathematics(Task("string", "q", "42"), "84/2")
    assert rules.right(task, "84/2", "equal") and not rules.right(task, "84/2", "unreadable")


def test_answers_are_graded_by_value():
    document = Document(0, "d", "text")
    cases = [
        ("expression", "x^2 - 1", [r"(x-1)(x+1)", "x^2 + 1", None]),
        ("float", "0.5", [r"\frac{1}{2}", "5", "0.50"]),
    ]
    tried = [
        Tried(Attempt(document, n, (), task, ""), task, f"{n}", Messages("?"), (), tuple(said))
        for n, (kind, answer, said) in enumerate(cases)
        for task in [Task(kind, "q", answer)]
    ]
    graded, counts = reasoner.grade(card(), ScriptedTools(lambda turn: ""), tried)
    assert [one.correct for one in graded] == [(True, False, False), (True, False, True)]
    assert counts == {"math/given_up": 0, "math/unreadable": 0}
    assert graded[0].pass_rate == pytest.approx(1 / 3)
