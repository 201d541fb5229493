"""What the signs of collapse say, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from scope_jax.run.processes import decoded, encoded
from scope_jax.run.signs import Signs


def said(*steps: Mapping[str, float | None]) -> list[list[str]]:
    """The sentences after each step."""
    signs = Signs()
    return [signs.add({"step": number, **step}) for number, step in enumerate(steps, 1)]


def of(name: str, *values: float | None) -> list[list[str]]:
    return said(*({name: value} for value in values))


def test_means_of_the_first_and_the_latest_steps_are_compared() -> None:
    lines = [{"solver/response_tokens": float(10 * step), "solver/response_tokens_se": 3.0} for step in range(1, 21)]
    (sign,) = Signs.after(lines)
    assert (sign.who, sign.name, sign.steps) == ("solver", "response_tokens", 5) and not sign.share
    assert (sign.first, sign.last) == (30.0, 180.0)
    assert sign.errors == (pytest.approx(3 / math.sqrt(5)), pytest.approx(3 / math.sqrt(5)))
    assert sign.sentence == "replies of the solver are 6.0 times as long as in the first steps (30 → 180 tokens)."
    (calm,) = Signs.after([{"solver/response_tokens": value} for value in (10.0, 10.0, 15.0, 15.0)])
    assert (calm.level, calm.sentence) == (0, "")
    (early,) = Signs.after(lines[:3])
    assert (early.steps, early.first, early.last, early.level) == (1, 10.0, 30.0, 0)  # too few steps to say anything


def test_each_sign_has_its_bounds() -> None:
    assert of("solver/response_tokens", 100, 100, 199, 199) == [[], [], [], []]
    assert of("solver/response_tokens", 100, 100, 40, 50)[-1] == [
        "replies of the solver are only 45 % as long as in the first steps (100 → 45 tokens)."
    ]
    assert of("a+b/entropy", 0.8, 0.8, 0.3, 0.3)[-1] == []
    assert of("a+b/entropy", 0.8, 0.8, 0.1, 0.1)[-1] == [
        "the entropy of a token in the update of the a+b has fallen from 0.8 to 0.1 nats."
    ]
    assert of("solver/entropy", 0.5, 0.5, 2.0, 2.0)[-1] == [
        "the entropy of a token in the update of the solver has risen from 0.5 to 2 nats."
    ]
    assert of("solver/cut_off", 0.15, 0.15, 0.22, 0.22)[-1] == [] == of("solver/cut_off", 0.0, 0.0, 0.19, 0.19)[-1]
    assert of("solver/cut_off", 0.0, 0.04, 0.31, 0.31)[-1] == ["31 % of the replies of the solver are cut (2 → 31 %)."]
    assert of("solver/identical_pairs", 0.45, 0.45, 0.5, 0.5)[-1] == []
    assert of("solver/identical_pairs", 0.1, 0.1, 0.5, 0.5)[-1] == [
        "50 % of the pairs of replies of the solver to one prompt are identical (10 → 50 %)."
    ]
    assert of("solver/valid", 0.7, 0.7, 0.51, 0.51)[-1] == []
    assert of("eval/a/valid", 0.7, 0.7, 0.1, 0.1)[-1] == [] == of("solver/trained", 1.0, 1.0, 0.0, 0.0)[-1]


def test_the_reason_that_rose_most_is_named() -> None:
    """The figures of a demo in which nothing else was said; `parse` comes up in the last step only."""
    steps: list[dict[str, float | None]] = [
        {"proposer/valid": 0.71, "proposer/rejected_verify_wrong": 0.11, "proposer/rejected_short": 0.18},
        {"proposer/valid": 0.71, "proposer/rejected_verify_wrong": 0.11, "proposer/rejected_short": 0.18},
        {"proposer/valid": 0.39, "proposer/rejected_verify_wrong": 0.42, "proposer/rejected_short": 0.19},
        {"proposer/valid": 0.39, "proposer/rejected_verify_wrong": 0.22, "proposer/rejected_parse": 0.39},
    ]
    assert said(*steps)[-1] == [
        "only 39 % of the episodes of the proposer are valid (71 → 39 %); "
        "more are rejected for verify_wrong (11 → 32 %)."
    ]
    rejected = {sign.name: (sign.first, sign.last) for sign in Signs.after(steps) if sign.name.startswith("rejected")}
    assert rejected == {
        "rejected_verify_wrong": pytest.approx((0.11, 0.32)),
        "rejected_short": pytest.approx((0.18, 0.095)),  # not named in the last step: nothing was rejected for it
        "rejected_parse": pytest.approx((0.0, 0.195)),
    }


def test_a_sign_speaks_again_only_when_it_is_worse() -> None:
    """Twice as long from step 4 on, then back, then twice as long again, then four times."""
    values = [100.0] * 5 + [230.0] * 5 + [100.0] * 5 + [230.0] * 5 + [450.0] * 5
    when = [step for step, sentences in enumerate(of("solver/response_tokens", *values), 1) if sentences]
    assert when == [9, 24]  # where the means of the latest 4 steps, 230, and of the latest 5, 406, are there
    missing = of("solver/cut_off", None, math.nan, 0.0, 0.0, 0.3, 0.3)
    assert missing == [[]] * 5 + [["30 % of the replies of the solver are cut (0 → 30 %)."]]


def test_values_of_a_damaged_file_are_no_error() -> None:
    found = of("solver/response_tokens", *[1e-300] * 5, *[1e308] * 4, 10**400)
    assert "times as long" in found[5][0] and found[-1] == []
    assert of("solver/entropy", 0.0, 0.0, math.inf, -1.0, -1.0) == [[]] * 5
    assert said(*({"solver/valid": "x", "solver/cut_off": True} for _ in range(5)))[-1] == []  # type: ignore[dict-item]


def test_a_resumed_run_says_what_an_uninterrupted_one_does() -> None:
    steps = [{"solver/response_tokens": 10.0 * 1.3**step, "solver/cut_off": step / 20} for step in range(20)]
    whole = said(*steps)
    assert sum(map(len, whole)) > 4
    for cut in (3, 9, 15):
        signs = Signs(decoded(encoded(Signs.after(steps[:cut]).state)))  # as another process gets it
        assert [signs.add(step) for step in steps[cut:]] == whole[cut:]
