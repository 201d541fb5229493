"""The workers that compare mathematical answers: limits, crashes, several at once."""

import signal

import pytest

from scope_jax.errors import UserError
from scope_jax.grading import math_answers
from scope_jax.grading.math_answers import LONGEST, Comparison, MathAnswers

TOWER = Comparison("10^{10^{10^{10}}}", ("3",))


@pytest.fixture
def answers():
    """Started and stopped with the test."""
    answers = MathAnswers()
    yield answers
    answers.close()


def test_a_comparison_is_ended_by_its_cpu_time_and_the_next_one_works(answers: MathAnswers):
    assert answers.verdicts([TOWER, Comparison("3", ("3.0",))], seconds=0.5) == ["timeout", "equal"]


def test_what_is_not_compared(answers: MathAnswers):
    long = "1" * (LONGEST + 1)
    assert answers.verdicts([Comparison(long, (long,)), Comparison(" ", ("",))]) == ["unreadable"] * 2
    assert not answers.equal("", [""]) and answers.equal("1/2", ["0.5"])


def test_many_comparisons_are_divided_over_workers_and_keep_their_order(
    answers: MathAnswers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(math_answers, "SHARE", 4)
    monkeypatch.setattr(answers, "_cores", 2)
    pairs = [Comparison(f"{number}+0", (f"{number if number % 3 else -1}",)) for number in range(16)]
    expected = ["equal" if number % 3 else "unequal" for number in range(16)]
    assert answers.verdicts(pairs) == expected and len(answers._started) == 2
    assert answers.verdicts(pairs + pairs) == expected + expected


def test_a_worker_that_something_else_ended_is_replaced_without_a_wrong_verdict(answers: MathAnswers):
    assert answers.equal("2", ["2.0"])
    process = answers._started[0]._worker._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    assert answers.equal("2", ["2.0"])


def test_a_worker_that_does_not_start_ends_the_run_with_one_sentence(
    answers: MathAnswers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(math_answers, "START_SECONDS", 0.0)
    with pytest.raises(UserError, match=r"did not start within 0 seconds; check .*\.$"):
        answers.equal("2", ["2"])
    assert answers._started[0]._worker._process is None  # nothing is left running
