"""Comparison of answers with accepted ones on hand-computed cases."""

import pytest

from scope_jax.grading.measures import (
    cover_exact_match,
    f1,
    facts_stated,
    numeric,
    readings,
    same_text,
    states,
)


@pytest.mark.parametrize(
    ("said", "golds", "right"),
    [
        ("It is the Eiffel Tower, in Paris.", ["Eiffel tower"], True),
        ("Paris", ["The Paris!"], True),
        ("Parisian", ["Paris"], False),
        ("Eiffel", ["Eiffel Tower"], False),  # a part of the accepted answer is not enough
        ("", ["Paris"], False),
        ("anything", [""], False),
        ("Lyon or Paris", ["Rome", "Paris"], True),
        (r"\boxed{Paris}.", ["Paris"], True),
        (r"$\boxed{\text{The Eiffel Tower}}$", ["Eiffel Tower"], True),
        (r"\textbf{Parisian}", ["Paris"], False),
        (r"\text{Paris}", [r"\text{Paris}"], True),
        ("Paris", [r"\text{Paris}"], True),
        ("(A)", ["A"], True),  # as ("(B)", ["B"]), though A is an article
        ("It is a river", ["A"], False),
    ],
)
def test_cover_exact_match(said, golds, right):
    assert cover_exact_match(said, golds) is right


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("Seine: The mouth of Seine is Channel.", True),
        ("It flows north, and the mouth  of\nSeine is\tchannel", True),
        ("The mouth of Seine is Rhine.", False),  # another value
        ("Seine ends in the Channel.", False),  # does not state it
        ("The mouth of Seine is Rhine. The mouth of Seine is Channel.", False),  # both: the first one counts
        ("The mouth of Seine is Channel. The mouth of Seine is Rhine.", True),
        ("The mouth of Seine is Channels.", False),
        ("The mouth of Seine isn't Channel.", False),
        ("Bathe mouth of Seine is Channel.", False),
        ("The mouth of Seine is", False),
        ("", False),
    ],
)
def test_an_answer_states_a_fact_another_value_or_nothing(said, right):
    assert states(said, "The mouth of Seine is", "Channel") is right


def test_the_share_of_a_rubrics_facts_that_an_answer_states():
    rubric = [
        {"criterion": "a", "weight": 2.0, "fact": ["The mouth of Seine is", "Channel"]},
        {"criterion": "b", "weight": 1.0, "fact": ["The capital of France is", "Paris"]},
        {"criterion": "Is well written.", "weight": 5.0},
    ]
    assert facts_stated("The mouth of Seine is Channel.", rubric) == pytest.approx(2 / 3)
    assert facts_stated("The capital of France is Paris.", rubric) == pytest.approx(1 / 3)
    assert facts_stated(None, rubric) == 0.0
    assert facts_stated("Anything.", rubric[2:]) is None


@pytest.mark.parametrize(
    ("said", "gold", "right"),
    [
        ("TCP/IP", "tcp/ip", True),
        (r"\text{Newton's  third law}.", "“Newton’s third law”", True),
        ("$5", "5", True),
        ("-5", "5", False),
        ("3.14", "314", False),
        (".5", "5", False),
        ("C++", "C", False),
        ("A'", "A", False),  # a complement
        ("f''.", "f'", False),
        ("f’’", "f''", True),
        ("'A'.", "A", True),
        ('"A."', "A", True),
        ("the Nile", "Nile", False),
        ("", "", False),
        ("''", ".", False),
    ],
)
def test_same_text(said, gold, right):
    assert same_text(said, [gold]) is right
    assert same_text(said, ["something else", gold]) is right


@pytest.mark.parametrize(
    ("said", "golds", "value"),
    [
        ("the cat sat", ["cat sat"], 1.0),  # articles do not count
        ("a b c d", ["b c"], 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # "a" is an article: 3 words, 2 of them common
        ("b b c", ["b c c"], 2 / 3),  # a word counts as often as both have it
        ("x", ["y", "x z"], 2 / 3),  # the best of the accepted answers
        ("", ["x"], 0.0),
        ("x", [], 0.0),
    ],
)
def test_f1(said, golds, value):
    assert f1(said, golds) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("said", "gold", "right"),
    [
        ("1234.5", "1,234.5", True),
        ("about $1,234.5 in all", "1234.5", True),
        ("100.15", "100", True),  # 0.15 per cent
        ("100.16", "100", False),
        ("99.84", "100", False),
        ("-5", "5", False),
        ("−5", "-5", True),
        ("$-5", "-5", True),
        ("(1,234)", "-1234", True),
        ("(1,234)", "1234", False),
        ("12%", "0.12", True),
        ("12 percent", "12", True),
        ("12%", "12 per cent", True),
        ("0.12%", "12%", False),
        ("3.5 million", "3500000", True),
        ("3.5 million", "3.5", True),  # the question may have asked for millions
        ("3.5 million", "3.5 thousand", False),  # but not thousands if it says millions
        ("3.5", "3500", False),  # no scale is given
        ("$3.5bn", "3,500 million", True),
        ("3.5 bn", "3.5 mn", False),
        ("-12%", "12%", False),
        ("-12%", "-0.12", True),
        ("1,234 thousand", "1.234 million", True),
        ("1e3", "1000", True),
        ("3,4", "34", False),  # two numbers, or a decimal comma
        ("1,23,456", "123456", True),
        ("12,345,67", "1234567", False),
        ("3.5B", "3.5 million", False),
        ("$3.5B", "3,500 million", True),
        ("12k", "12000", True),
        ("3.5 m", "3.5", True),  # metres
        ("minus 5", "5", False),
        ("negative 5", "-5", True),
        ("–5", "5", False),  # with a dash for the sign
        (r"\boxed{12.5\%}", "0.125", True),
        (r"$1{,}234.5$", "1234.5", True),
        (r"\$3.5\text{ million}", "3500000", True),
        (r"1\,234\,\text{km}", "1,234", True),
        ("0", "0", True),
        ("0", "0.0001", False),
        ("between 3 and 5", "5", False),  # two numbers are not an answer
        ("none", "5", False),
        ("5", "five", False),
        ("1" + "0" * 400, "5", False),  # more than a float holds
    ],
)
def test_numeric(said, gold, right):
    assert numeric(said, [gold]) is right


def test_a_long_run_of_spaces_is_read_quickly():
    assert readings("(" + " " * 300_000 + "5)" + " " * 300_000) == ((-5.0,), False)


def test_the_scale_is_part_of_a_parsed_number():
    assert readings("2.5 billion") == ((2.5e9, 2.5), True)
    assert readings("50%") == ((0.5, 50.0), True)
    assert readings("7") == ((7.0,), False)
    assert readings("7 and 8") is None
