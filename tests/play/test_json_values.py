"""JSON answers: the last value of a text, equal as data."""

import time

import pytest

from scope_jax.grading.json_values import NoValue, json_equal, last_value
from scope_jax.grading.measures import BY_TEXT

READ = [
    ('{"a": 1}', {"a": 1}),
    ("[1, 2]", [1, 2]),
    (" 42 ", 42),
    ("null", None),
    ('"text"', "text"),
    ('The answer is {"a": [1, {"b": 2}]}. Is it?', {"a": [1, {"b": 2}]}),
    ('{"a": 1} and then [2]', [2]),
    ('[2] and then {"a": 1}', {"a": 1}),
    ('```json\n{"a": 1}\n```', {"a": 1}),
    ("So:\n```json\n7\n```\nThat is it.", 7),
    ("```\n[1]\n```\nor\n```\n[2]\n```", [2]),
    ('I begin with {"a": 1}.\nSo it is\n\n-7.5\n', -7.5),
    ('One line\n"text"', "text"),
    ('Pretty:\n{\n  "a": [\n    1\n  ]\n}', {"a": [1]}),
    ('{"a": "}]"} [see note]', {"a": "}]"}),
    ('{"a": "say \\"x]\\""}', {"a": 'say "x]"'}),
    ('He said "no". {"a": 1} }', {"a": 1}),
    ('see [1 {"a": 1}', {"a": 1}),
]


@pytest.mark.parametrize(("text", "value"), READ)
def test_the_last_value_of_a_text(text, value):
    assert last_value(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I think 42",
        "{a: 1}",
        '{"a": 1',
        "NaN",
        "[NaN]",
        '{"a": NaN, "b": [1]}',
        '{"a": 1, "a": 1}',
        '{"a": [1], "a": [2]}',
        "[1e999]",
        "[" * 600 + "]" * 600,
    ],
)
def test_what_is_no_value(text):
    with pytest.raises(NoValue):
        last_value(text)
    assert not json_equal(text, [text])


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("1", "1.0", True),
        ("[1, 2.0]", "[1.0, 2]", True),
        ('{"a": 1, "b": [2]}', '{"b": [2.0], "a": 1.0}', True),
        ("[1, 2]", "[2, 1]", False),
        ("true", "1", False),
        ("false", "0", False),
        ("null", "false", False),
        ('"1"', "1", False),
        ('"a"', '"A"', False),
        ('{"a": 1}', '{"a": 1, "b": null}', False),
        ("[]", "{}", False),
        ("9007199254740993", "9007199254740992", False),
        ("9007199254740993", "9007199254740992.0", False),
        ('"\\u00e9"', '"é"', True),
    ],
)
def test_values_are_equal_as_data(one, other, equal):
    assert json_equal(one, [other]) is equal and json_equal(other, [one]) is equal


def test_one_of_several_golds_is_enough_and_a_gold_is_json_as_a_whole():
    assert BY_TEXT["json"]("It is [2].", ["[1]", "[2]"])
    assert not json_equal("[2]", ["It is [2]."]) and not json_equal("[2]", [])


def test_long_texts_take_no_long_time():
    texts = ["]" * 30_000, "[" * 30_000, '{"a": ' * 6_000, '"[' * 15_000 + "]" * 15_000]
    begun = time.process_time()
    assert not any(json_equal(text, ["1"]) for text in texts)
    assert time.process_time() - begun < 5
    deep = "[" * 400 + "]" * 400
    assert json_equal(f"x {deep}", [deep])
