"""Schemas and patterns of others: what they accept, and that no answer takes more than a bounded number of steps."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from scope_jax.errors import UserError
from scope_jax.play.tool_calls import Tool
from scope_jax.text import dialects, validation
from scope_jax.text.dialects import Call
from scope_jax.text.patterns import LINEAR, PatternError, compiled
from scope_jax.text.schemas import accepts, fault
from scope_jax.text.turns import refusal
from scope_jax.text.validation import COMPILING, STEPS
from tests.play.freezing_schemas import CASES, DRAFT_4, DRAFT_7, DRAFT_2019, FIRST, doubled, nested, of

CALLS = 100  # of functions of Python and C, for one step
START, ENDLESS = "The tool f: the", "cannot be followed to its end"


def tool(parameters: Any) -> Tool:
    return Tool("f", str, {"name": "f", "parameters": parameters})


def answer(parameters: Any, arguments: Any) -> str:
    """What the user or the policy reads."""
    try:
        return refusal("f", arguments, [tool(parameters).schema])
    except UserError as error:
        return str(error)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is spent from here on."""
    spent, spend = [], validation.spend

    def counted(more: int) -> None:
        spent.append(min(more, STEPS))  # the last one may want more than it gets
        spend(more)

    monkeypatch.setattr(validation, "spend", counted)
    return spent


SAID = {  # a part of what is said of some; "" is nothing
    "pattern (a+)+": "does not match '^(a+)+$'",
    "patternProperties": "",  # the name does not match
    "patternProperties beside additionalProperties": "Additional properties are not allowed",
    "propertyNames": "does not match",
    "pattern below another $schema": "does not match",
    "pattern under a name that is no keyword": "does not match",
    "pattern of many classes": "which is too large; change it.",
    "uniqueItems of objects": "",
    "uniqueItems of numbers that hash alike": "",
    "const that is large for many items": "",
    "oneOf of consts": "is too large; simplify it.",
    "anyOf doubled by $ref": ENDLESS,
    "anyOf doubled below the argument": 'error: the argument "" of f is wrong: its schema cannot be followed',
    "$ref to itself": ENDLESS,
    "multipleOf of a huge number": "a number is too large",
}


# Like another case, and longer.
ALIKE = ("anyOf of types for a large value", "anyOf of consts", "many names that are not allowed")
ALIKE += ("a chain of references", "anyOf of false for a large value", "patternProperties, many patterns and names")
ALIKE += ("oneOf doubled by $ref", "unevaluatedProperties doubled", "a schema with many names that are no keywords")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else []) for name in CASES]
)
def test_a_schema_that_freezes_others_is_answered_in_a_bounded_number_of_steps(name: str, steps: list[int]) -> None:
    said = answer(*CASES[name])
    assert said == "" or (said.startswith(("error: ", START)) and len(said) < 400 and "\n" not in said)
    assert said == "" if SAID.get(name) == "" else SAID.get(name, "") in said
    assert sum(steps) < COMPILING + 4 * STEPS


@pytest.mark.parametrize(
    "name",
    [
        *("const that is large for many items", "dependentRequired", "uniqueItems of mixed values"),
        *("unevaluatedItems", "multipleOf for many huge numbers"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("enum for many items", "anyOf of false for a large value")
        ),
    ],
)
def test_a_step_is_a_bounded_number_of_calls(name: str, steps: list[int]) -> None:
    calls = 0

    def profile(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        answer(*CASES[name])
    finally:
        sys.setprofile(None)
    assert calls < 200_000 + CALLS * sum(steps)


# ------------------------------------------------------------------------------------------------------------ patterns
@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [  # as node.js says it with the flag u
        (r"^\d+$", ["3"], ["٣", ""]),
        (r"^\w$", ["a", "_"], ["é", "ß"]),
        (r"^\s$", [" ", "\u00a0", "\ufeff", "\u2028"], ["\x85", "\u200b"]),
        (r"^\S$", ["a", "\u200b"], ["\u00a0", "\n"]),
        (r"^[\s\S]$", ["\n", "\u00a0", "a"], ["aa"]),
        (r"^[^\S]$", ["\u00a0"], ["a"]),
        (r"^.$", ["a", "\x85", "😀"], ["\n", "\r", "\u2028", "\u2029"]),
        (r"a$", ["ba"], ["a\n"]),  # Python's $ lets a line end follow
        (r"^a", ["ab"], ["\na"]),
        (r"^\u00e9$", ["é"], ["e"]),
        (r"^\u{1f600}$", ["😀"], [""]),
        (r"^[\ud83d\ude00a]$", ["😀", "a"], ["b"]),
        (r"^\p{L}+$", ["αβγ", "é"], ["3"]),
        (r"^\p{Letter}$", ["é"], ["3"]),
        (r"^\p{Script=Greek}+$", ["αβ"], ["a"]),
        (r"^[\p{Lu}\P{L}]$", ["A", "3"], ["a"]),
        (r"^[]$", [], ["", "a"]),
        (r"^[^]$", ["\n", "a"], [""]),
        (r"^[[:a]$", ["[", ":", "a"], ["b"]),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^[(?=]$", ["(", "?", "="], [")"]),
        (r"\bfoo\b", ["a foo b"], ["foob"]),
        (r"^\cA\x41\0$", ["\x01A\x00"], ["A"]),
        (r"(?<year>\d{4})", ["in 2024"], ["24"]),
        (r"^(?=.*[A-Z])(?=.*\d).{3,}$", ["Ab1"], ["ab1", "AB", "A1"]),
        (r"^(?!\.)(?!.*\.\.)[\w.]+@\w+$", ["a.b@c"], [".a@c", "a..b@c"]),
        (r"^(?!.*[)]).*$", ["a("], ["a)"]),
        (r"^(?!(a|b))c", ["cd"], ["ac"]),
        (r"^(?!a)(b|c)$", ["b"], ["a"]),
        ("", ["", "a"], []),
        (r"\A\w+\Z", ["ab"], ["a b"]),  # Python's
    ],
)
def test_patterns_are_those_of_ecma(pattern: str, matches: list[str], others: list[str]) -> None:
    assert [compiled(pattern).search(text) for text in matches + others] == [True] * len(matches) + [False] * len(
        others
    )


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        *[(pattern, LINEAR) for pattern in (r"(a)\1", r"(?<n>a)\k<n>", r"a(?=b)", r"(?<!a)b", r"(?<=a)b", r"(?=a)b")],
        *[(pattern, LINEAR) for pattern in (r"^(?=a)|b", r"^(?!a|b)c|d", r"^(?=a)?b", r"^(a(?!b))", r"[\1]")],
        *[
            (pattern, "cannot be read")
            for pattern in ("(", ")", "[", "a**", "[z-a]", "\\", r"\e", r"\p{Foo}", "(?>a)", "a++")
        ],
        *[(pattern, "cannot be read") for pattern in ("a{1001}", "(x{100}){100}", "(?x) a", r"\Q")],
        (r"\p{L}{1,1000}", "is too large"),
        ("a" * 4097, "more than 4096 characters"),
        ("^" + "(?!a)" * 20, "more than 16 lookaheads"),
        ("\ud800", "half a character"),
    ],
)
def test_a_pattern_that_is_not_read_refuses_the_tool_with_one_sentence(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason.replace("(", r"\(")):
        compiled(pattern)
    for parameters, _ in (
        of({"pattern": pattern}, ""),
        of({"patternProperties": {pattern: {}}}, ""),
        of({"propertyNames": {"pattern": pattern}}, ""),
        of({"$ref": "#/more"}, "", more={"items": [{"pattern": pattern}]}, **{"$schema": DRAFT_7}),
    ):
        with pytest.raises(UserError) as told:
            tool(parameters)
        assert reason in str(told.value) and str(told.value).startswith("The tool f: the parameters have the pattern")
        assert str(told.value).endswith("; change it.") and "\n" not in str(told.value)


def test_what_a_pattern_costs_is_known_before_the_search() -> None:
    """A search takes at most the program's size times the length of the text."""
    parameters, _ = of({"pattern": "^(?:a?){900}a{900}$"}, "")
    assert fault({"x": "a" * 900}, parameters) is None
    wrong = fault({"x": "a" * 10_000_000}, parameters)
    assert wrong is not None and ENDLESS in wrong.message


# ------------------------------------------------------------------------------------------------------------- schemas
@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"$schema": 5}, "are of a dialect, $schema, that is not an address"),
        ({"$schema": []}, "are of a dialect, $schema, that is not an address"),
        ({"$schema": {}}, "are of a dialect, $schema, that is not an address"),
        ({"$schema": "http://[::1"}, "are not JSON of a usual depth"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "draft 3"),
        ({"properties": {"a": {"$schema": 5}}}, "are not a JSON schema"),
        ({"properties": {"a": {"$ref": "#/x"}}, "x": {"type": 5}}, "are not a JSON schema"),
        ({"properties": {"a": {"$ref": "#/title"}}, "title": "t"}, "are not a JSON schema"),
        ({"properties": {"a": {"$ref": "#/x"}}, "x": {"$ref": "#/y"}, "y": {"required": 1}}, "are not a JSON schema"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "refer to '#/nowhere', which is not in them"),
        ({"properties": {"a": {"$ref": "#a"}}}, "refer to '#a', which is not in them"),
        ({"properties": {"a": {"$id": "x:", "$ref": "y"}}}, "which is not in them"),
        ({"$schema": DRAFT_4, "properties": {"a": {"$ref": 5}}}, "have a reference that is not text"),
        ({"$defs": {"a": {"x": "y" * 600_000}}}, "have more than 524288 characters"),
        ({"type": "object", "properties": nested("a", 2000, 1)}, "are not JSON of a usual depth"),
    ],
)
def test_what_is_no_schema_is_refused_at_the_start(parameters: Any, sentence: str) -> None:
    with pytest.raises(UserError) as told:
        tool(parameters)
    assert str(told.value).startswith("The tool f: the parameters") and sentence in str(told.value)


ROOTS = {"4": {"$schema": DRAFT_4}, "7": {"$schema": DRAFT_7}, "2019": {"$schema": DRAFT_2019}}
LEFT_OVER = {"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": {"const": 1}}


@pytest.mark.parametrize(
    ("argument", "root", "right", "wrong"),
    [
        ({"uniqueItems": True}, {}, [[1, "1", [1], {"a": 1}, True], [0, False]], [[1, 1.0], [{"a": 1}, {"a": 1.0}]]),
        ({"$schema": DRAFT_7, "prefixItems": [False]}, {}, [], [[1]]),  # one dialect, that of the whole
        ({"items": True, "additionalItems": False}, ROOTS["7"], [[1, 2]], []),
        ({"items": False, "additionalItems": True}, ROOTS["7"], [[]], [[1]]),
        ({"items": True, "unevaluatedItems": False}, ROOTS["2019"], [[1]], []),
        ({"$ref": "#/$defs/a", "type": "null"}, {"$defs": {"a": {}}}, [None], [1]),
        ({"$ref": "#/definitions/a", "type": "null"}, {"definitions": {"a": {}}, **ROOTS["7"]}, [1], []),
        ({"enum": [{"$ref": "nowhere"}]}, {}, [{"$ref": "nowhere"}], [1]),  # a value, no reference
        ({"properties": {"$schema": {"type": "string"}}}, {}, [{"$schema": "a"}], [{"$schema": 1}]),
        ({"minimum": 1, "exclusiveMinimum": True}, ROOTS["4"], [2], [1]),
        (LEFT_OVER, {}, [{"a": None, "b": 1}], [{"a": 1}, {"b": 2}]),
        ({"unevaluatedProperties": False, "properties": {"a": {}}}, {}, [{"a": 1}], [{"b": 1}]),
    ],
)
def test_values_are_compared_as_json_schema_has_it(
    argument: Any, root: Any, right: list[Any], wrong: list[Any]
) -> None:
    parameters, _ = of(argument, 0, **root)
    tool(parameters)
    for value in right:
        assert fault({"x": value}, parameters) is None and accepts(value, "x", parameters)
    for value in wrong:
        assert fault({"x": value}, parameters) is not None and not accepts(value, "x", parameters)


def test_messages_of_large_values_are_short() -> None:
    parameters, _ = of({"type": "string"}, 0)
    wrong = fault({"x": [["a" * 10_000] * 1000]}, parameters)
    assert wrong is not None and wrong.message == "[[…]] is not of type 'string'"
    wrong = fault({"x": "a" * 1000}, of({"enum": list(range(100))}, 0)[0])
    assert wrong is not None and wrong.message == f"'{'a' * 80}'… is not one of [0, 1, 2, 3, 4, 5, 6, 7, …]"


def test_a_turn_has_one_budget_for_all_of_its_calls(steps: list[int]) -> None:
    """However many arguments and calls need all of it."""
    argument = {"properties": {"y": {"items": FIRST}}}
    parameters = {"properties": {"x": argument, "z": argument}, "$defs": doubled("anyOf", 25, {"type": "string"})}
    functions = [tool({"type": "object", **parameters}).schema]
    coder = dialects.load("qwen-coder")
    text = coder.write(Call("f", {"x": {"y": [1]}, "z": {"y": [1]}}), functions) * 50
    steps.clear()
    assert len(coder.read(text, functions)) == 50
    assert sum(steps) < 2 * STEPS


@pytest.mark.parametrize(
    "dialect", [None, DRAFT_4, *(pytest.param(one, marks=pytest.mark.slow) for one in (DRAFT_2019, DRAFT_7))]
)
def test_a_large_schema_is_read_and_a_larger_one_refused(dialect: str | None) -> None:
    """The check of a schema is counted too, in every dialect: else the larger one would be read."""
    properties = {f"p{number}": {"type": "string"} for number in range(1000)}
    assert refusal("f", {"p7": "a"}, [tool({"properties": properties}).schema]) == ""
    more = {} if dialect is None else {"$schema": dialect}
    with pytest.raises(UserError, match="too large"):
        tool({"properties": {f"p{number}": {"type": "string"} for number in range(15_000)}, **more})
