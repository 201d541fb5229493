"""Mathematical equality in a worker process, so that a slow comparison cannot hang the run."""

import time

import pytest

from scope_jax.errors import UserError
from scope_jax.play import math_answers
from scope_jax.play.math_answers import LONGEST, MathAnswers


@pytest.fixture(scope="module")
def answers():
    made = MathAnswers(seconds=10)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("said", "golds", "equal"),
    [
        ("1/2", ["0.5"], True),
        (r"\frac{1}{2}", ["0.5"], True),
        ("$x^2-1$", ["(x-1)(x+1)"], True),
        (r"\boxed{\sqrt{4}}", ["2"], True),
        ("1,234", ["1234"], True),
        (r"\dfrac{1}{3}", [r"\frac{1}{3}"], True),
        (r"{\$36}", [r"\$36"], True),
        ("$36", [r"\$36"], True),
        (r"\sqrt{8}", [r"2\sqrt{2}"], True),
        ("3", [r"\left( 3, \frac{\pi}{2} \right)"], False),  # not by the first number in a formula
        (r"\frac{1}{2}\cdot 3", ["3"], False),
        (r"The answer is \(\frac{1}{2}\).", ["0.5"], True),
        (r"3\sin(x)", ["3*sin(x)"], True),
        (r"\pi r^2", ["pi*r^2"], True),
        (r"e^{-kt}", ["exp(-k*t)"], True),
        (r"\frac{\ln 2}{k}", ["ln(2)/k"], True),
        (r"\alpha+x^2", ["x**2+alpha"], True),
        (r"\cos x", ["sin(x)"], False),
        (r"\arctan x", ["arctan(x)"], True),
        (r"\tanh(2x)", ["tanh(2*x)"], True),
        (r"\operatorname{arctan}(x)", [r"\arctan(x)"], True),
        (r"\mathrm{sin} x", ["sin(x)"], True),
        (r"\csc^2 x", ["csc(x)**2"], True),
        (r"\cos x", ["cosh(x)"], False),
        (r"\frac{\Delta H}{T}", ["Delta H/T"], True),
        (r"h\nu", ["h*nu"], True),
        ("3+4ix", ["3+4xi"], True),
        ("1e-3", ["0.001"], True),
        ("-2.5e3", ["-2500"], True),
        ("2e", ["2*e"], True),
        ("42", ["41", "42"], True),
        ("43", ["42"], False),
        ("(1,2)", ["(2,1)"], False),
        ("", [""], False),
        ("((((", ["4"], False),
        ("1" * (LONGEST + 1), ["1" * (LONGEST + 1)], False),
    ],
)
def test_equal(answers, said, golds, equal):
    assert answers.equal(said, golds) is equal


def test_a_slow_comparison_is_abandoned_and_the_next_one_works():
    answers = MathAnswers(seconds=10)
    assert answers.equal("2", ["2"])  # starts the worker, which loads its libraries
    answers.seconds = 0.5
    began = time.monotonic()
    assert not answers.equal("10^{10^{10^{10}}}", ["3"])
    assert time.monotonic() - began < 5
    assert answers.given_up == 1
    answers.seconds = 10
    assert answers.equal("3", ["3"])
    answers.close()


def test_a_worker_that_died_is_replaced():
    answers = MathAnswers(seconds=10)
    assert answers.equal("2", ["2"])
    assert answers._worker is not None
    answers._worker.kill()
    answers._worker.wait()
    assert answers.equal("2", ["2"]) or answers.equal("2", ["2"])
    answers.close()


def test_a_worker_that_does_not_start_ends_the_run_with_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(math_answers, "START_SECONDS", 0.0)
    answers = MathAnswers()
    with pytest.raises(UserError, match=r"did not start within 0 seconds; check .*\.$"):
        answers.equal("2", ["2"])
    assert answers._worker is None  # nothing is left running
