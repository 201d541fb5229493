"""Which option an answer chooses: cases by kind, and every way to write options, once and together."""

from __future__ import annotations

from itertools import product

import pytest

from scope_jax.grading.letters import letter
from scope_jax.grading.measures import choice
from tests.play.letter_cases import CHOSEN, NONE

STYLES = [
    "{}. {}",
    "{}.{}",
    "{}: {}",
    "{} : {}",
    "{}:{}",
    "{} - {}",
    "{} – {}",
    "{}) {}",
    "{} ) {}",
    "({}) {}",
    "[{}] {}",
]
STYLES += [
    "{}] {}",
    "**{}.** {}",
    "**{}**: {}",
    "__{})__ {}",
    r"\text{{{}. }} {}",
    r"\textbf{{({})}}\ {}",
    "<b>{}.</b> {}",
]
JOINTS = [" ", "  ", ", ", "; ", "\n", "\n\n", " | ", r"\quad ", r" \\ ", " or ", " and "]
TEXTS = [
    ("foo", "bar", "baz", "qux"),
    ("5", "6", "7", "8"),
    ("Oslo", "Bergen", "Narvik", "Molde"),
    ("$5", "-6", "x", "(7)"),
]


@pytest.mark.parametrize("kind", NONE)
def test_several_options_or_none_choose_none(kind: str) -> None:
    wrong = {text: letter(text) for text in NONE[kind] if letter(text) is not None}
    assert wrong == {}
    assert not any(choice(text, [option]) for text in NONE[kind] for option in "ABCD")


@pytest.mark.parametrize("kind", CHOSEN)
def test_an_answer_chooses_its_option(kind: str) -> None:
    wrong = {text: letter(text) for text, option in CHOSEN[kind] if letter(text) != option}
    assert wrong == {}
    assert all(choice(text, [f"({option})"]) and not choice(text, ["Z"]) for text, option in CHOSEN[kind])


@pytest.mark.parametrize("style", STYLES)
def test_options_in_any_punctuation_choose_none_together_and_each_alone(style: str) -> None:
    for texts in TEXTS:
        options = [style.format(name, text) for name, text in zip("ABCD", texts, strict=True)]
        assert [letter(option) for option in options] == [*"ABCD"]
        for joint, (first, last) in product(JOINTS, [(0, 4), (0, 2), (2, 4), (0, 3)]):
            echoed = joint.join(options[first:last])
            assert letter(echoed) is None, echoed
            assert letter(f"Options: {echoed}") is None, echoed
            assert letter(f"Answer: {echoed}") is None, echoed
