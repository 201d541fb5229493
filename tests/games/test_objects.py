"""The JSON object at the end of a reply."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.text.objects import last_object

PAIR = '{"question": "Who?", "answer": "Ada"}'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PAIR, {"question": "Who?", "answer": "Ada"}),
        (f"First I look at Table 3.\n\n```json\n{PAIR}\n```", {"question": "Who?", "answer": "Ada"}),
        (f"From {{x | x > 3}} and an open {{ follows:\n{PAIR}", {"question": "Who?", "answer": "Ada"}),
        (f"{PAIR} and that is all.", {"question": "Who?", "answer": "Ada"}),
        ('{"a": 1} {"a": 2}', {"a": 2}),  # the last one
        ('{"a": {"b": {"c": "}"}}}', {"a": {"b": {"c": "}"}}}),  # whole, braces in strings aside
        (r'{"a": "\"}{\\"}', {"a": '"}{\\'}),
        ('He said "yes{ and then {"a": 1}', {"a": 1}),  # quotes before the object do not count
        ("no object", None),
        ("", None),
        ("}", None),
        ("{", None),
        ('{"a": 1,}', None),  # a trailing comma is not JSON
        ("{'a': 1}", None),
        ('{"a": 1, "a": 2}', None),
        ('{"a": NaN}', None),
        ('{"a": 1e999}', None),
        ('{"a": ' + "1" * 5000 + "}", None),
        ('{"a": "\\ud800"}', None),  # a lone surrogate
        ('["a"]', None),
        (f"{PAIR} {{and a brace}}", None),  # no object at the end
        ('{"a":' * 5000 + "1" + "}" * 5000, None),  # too deep
        ('{"a":' * 501 + "1" + "}" * 501, None),
        ('{"a":' * 3 + "[" * 600 + "]" * 600 + "}" * 3, None),
        ('{"a": [' + "[]," * 600 + "1]}", {"a": [*[[]] * 600, 1]}),  # many, but not deep
    ],
)
def test_the_last_object(text: str, found: dict | None):
    assert last_object(text) == found


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec="utf-8")), st.dictionaries(st.text(max_size=6), VALUES, max_size=4), st.booleans())
def test_an_object_is_found_after_any_text(before: str, value: dict, ascii: bool):
    text = f"{before}\n{json.dumps(value, ensure_ascii=ascii)}\n```\n"
    assert last_object(text) == value


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(['{"a":', "{", "}", '"', "\\", '\\"', ",", ":", "[", "]", "1", "a", " "]), max_size=30))
def test_any_text_is_parsed_without_an_error(pieces: list[str]):
    found = last_object("".join(pieces))
    assert found is None or isinstance(found, dict)
