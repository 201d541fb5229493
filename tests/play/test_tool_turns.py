"""Calls in every dialect: what is written is read, what is no call is none, and which calls are answered."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scope_jax.config import SamplingSection
from scope_jax.errors import UserError
from scope_jax.play.rollouts import Agent
from scope_jax.play.searching import FIRST
from scope_jax.play.tool_calls import SEARCH, Tool
from scope_jax.play.tool_turns import neutralised, read_turn, stops
from scope_jax.text import dialects, parsing
from scope_jax.text.dialects import Call
from scope_jax.text.dialects.values import DEPTH
from scope_jax.text.turns import refusal
from tests.games.harness import sampled_turn

NAMES = dialects.names()
EVERY = pytest.mark.parametrize("name", NAMES)


def schema(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "description": "d", "parameters": {"type": "object", "properties": arguments}}


PYTHON = schema("python", code={"type": "string"})
ANY = schema("any.thing", value={}, more={"type": ["string", "null"]}, text={"type": "string"}, n={"type": "number"})
NOTHING = schema("nothing")
SCHEMAS = (SEARCH, PYTHON, ANY, NOTHING)
TOOLS = tuple(Tool(one.get("function", one)["name"], str, one) for one in SCHEMAS)

# Text with what has a meaning in some dialect.
PIECES = [
    *("<tool_call>", "</tool_call>", "<function_calls>", "</function_calls>", "<function=any.thing>", "</function>"),
    *("<parameter=value>", "</parameter>", "<python>", "</python>", "<search>", "</search>", "<any.thing>", "&lt;"),
    *("</any.thing>", "&amp;", "amp;", "lt;", "/python>", "<|python_tag|>", '"', "'", "\\", "\n", "\t", "\x00", "\x7f"),
    *("{", "}", "[", "]", ",", ":", "=", "(", ")", "\\u", "\\ud83d", "\u2028", "é", "😀", "1", "null", " ", "-", "a"),
]
WORDS_FOR_NULL = ("null", "None")
RESULTS = [*PIECES, "<answer>", "</answer>", "<|im_end|>", "<tool_response>", "</tool_response>", "<information>"]
TEXT = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
NUMBER = st.one_of(st.integers(), st.integers(-(10**300), 10**300), st.floats(allow_nan=False, allow_infinity=False))
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)
CALLS = st.one_of(
    TEXT.map(lambda text: Call("python", {"code": text})),
    st.fixed_dictionaries(
        {}, optional={"value": VALUE, "more": st.one_of(st.none(), TEXT), "text": TEXT, "n": NUMBER}
    ).map(lambda arguments: Call("any.thing", arguments)),
    st.just(Call("nothing", {})),
)


def same(one: Any, other: Any) -> bool:
    """Equal with equal types: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other and (not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, other))


SAID = st.sampled_from(["", "I call. ", "a < b\n"])


@EVERY
@settings(max_examples=40, deadline=None)
@given(calls=st.lists(CALLS, min_size=1, max_size=3), said=SAID)
def test_what_is_written_is_read(name, calls, said):
    check_is_read(name, calls, said)


@pytest.mark.slow
@EVERY
@settings(max_examples=1000, deadline=None)
@given(calls=st.lists(CALLS, min_size=1, max_size=3), said=SAID)
def test_much_that_is_written_is_read(name, calls, said):
    check_is_read(name, calls, said)


def check_is_read(name: str, calls: list[Call], said: str) -> None:
    dialect = dialects.load(name)
    if name == "llama":
        calls, said = calls[:1], "\n"
    if name == "harmony":  # a call ends the turn, and what is said before it is a message of its own
        calls, said = calls[:1], f"<|channel|>analysis<|message|>{said}<|end|><|start|>assistant"
    if name == "qwen-coder":  # which writes text without quotes: where null is allowed, too, null it is
        assume(all(call.arguments.get("more") not in WORDS_FOR_NULL for call in calls))
    written = [dialect.write(call, SCHEMAS) for call in calls]
    turn = said + "\n".join(written) + " "
    found = dialect.read(turn, SCHEMAS)
    assert [call.error for call in found] == [""] * len(calls)
    for call, other, text in zip(calls, found, written, strict=True):
        assert call.name == other.name and same(dict(call.arguments), dict(other.arguments))
        assert turn[other.start : other.end].removeprefix("<|start|>assistant") == text
        assert other.closed == other.end


@EVERY
def test_values_are_as_deep_as_they_may_be(name):
    dialect = dialects.load(name)

    def nested(depth: int) -> Any:
        return [nested(depth - 1)] if depth else "a"

    for depth, valid in ((DEPTH, True), (DEPTH + 1, name == "qwen-coder")):
        call = Call("any.thing", {"value": nested(depth)})
        (found,) = dialect.read(dialect.write(call, SCHEMAS), SCHEMAS)
        assert found.valid == valid
        if depth > DEPTH:
            assert "nested deeper" in found.error or found.arguments["value"] == json.dumps(nested(depth))


def valid_json(text: str) -> bool:
    """An independent reader: the object of a mutated call, unless a key is repeated or a value is no JSON."""
    try:
        json.loads(text, parse_constant=lambda name: 1 / 0, object_pairs_hook=_once)
    except (ValueError, ZeroDivisionError, RecursionError):
        return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


MUTATIONS = [
    *PIECES,
    "NaN",
    "Infinity",
    "1e999",
    "0" * 20,
    "9" * 5000,
    "__import__('os')",
    "f''",
    "+",
    "True",
    '"a": 1,',
]


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice([0, 0, 1, 1, 2, 5, 20]))
        text = text[:start] + rng.choice(["", *MUTATIONS, text[start:end] * 2]) + text[end:]
    return text


@EVERY
@pytest.mark.parametrize("count", [800, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_calls_raise_nothing_and_run_only_what_was_written(name, count):
    """A call that is read as valid is one: written again, and read again, it is the same, and its tool takes it."""
    dialect, rng = dialects.load(name), random.Random(name)
    calls = [
        Call("python", {"code": "print('<b>')\n\"x\""}),
        Call("any.thing", {"value": [1, -2.5e3, None, True, {"a": "b", "c": []}], "more": None, "text": "t", "n": 3}),
        Call("nothing", {}),
        Call("search", {"query": "Aare"}),
    ]
    counts = {"read": 0, "malformed": 0, "refused": 0}
    for _ in range(count):
        text = mutated(dialect.write(rng.choice(calls), SCHEMAS), rng)
        for call in dialect.read(text, SCHEMAS):
            assert 0 <= call.start <= call.end <= call.closed <= len(text)
            if not call.valid:
                assert call.error.startswith("error: ") and len(call.error) <= 300 and not call.arguments
                counts["malformed"] += 1
                continue
            if name in ("hermes", "llama"):
                inside = text[call.start : call.end].removeprefix("<tool_call>").removesuffix("</tool_call>")
                assert valid_json(inside.removeprefix("<|python_tag|>"))
            sentence = refusal(call.name, call.arguments, SCHEMAS)
            counts["refused" if sentence else "read"] += 1
            if not sentence:
                (again,) = dialect.read(dialect.write(call, SCHEMAS), SCHEMAS)
                assert again.name == call.name and same(dict(again.arguments), dict(call.arguments))
    assert all(counts.values()), counts


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        (
            "hermes",
            '<tool_call>{"name": "python", "arguments": {"code": 1, "code": 2}}</tool_call>',
            "key 'code' twice",
        ),
        ("hermes", '<tool_call>{"name": "python", "arguments": {"code": NaN}}</tool_call>', "holds NaN"),
        ("hermes", '<tool_call>{"name": "python", "parameters": {}}</tool_call>', '"arguments" must be an object'),
        ("hermes", "<tool_call>[]</tool_call>", 'an object with "name" and "arguments" is needed'),
        ("hermes", '<tool_call>{"name": "python"', "</tool_call> is missing"),
        ("function", "<function_calls>python(code='a', code='b')</function_calls>", 'holds "code" twice'),
        ("function", "<function_calls>python(code=open('x'))</function_calls>", "a value is needed"),
        ("function", "<function_calls>python(code='a' 'b')</function_calls>", "a comma or ) is needed"),
        ("function", "<function_calls>python(code={'a': 1, 'a': 2})</function_calls>", 'holds "a" twice'),
        ("function", "<function_calls>python(code=1e999)</function_calls>", "a number is too large"),
        ("function", "<function_calls>python('a')</function_calls>", "after"),
        ("llama", '{"name": "python", "parameters": {"code": "a"}} and', "it is not JSON (Extra data"),
        ("llama", "<|python_tag|>print(1)", "it is not JSON"),
        ("qwen-coder", "<tool_call><function=python><parameter=code>a</function></tool_call>", "code> is not closed"),
        ("qwen-coder", "<tool_call><function=python>a</function></tool_call>", "only </function> may follow"),
        ("qwen-coder", '<tool_call>{"name": "python"}</tool_call>', "<function=name> is needed"),
        ("xml", "<any.thing>[1]</any.thing>", "a JSON object with its arguments is needed"),
        ("xml", "<python>print(1)", "error: the call of python cannot be read: </python> is missing"),
    ],
)
def test_why_a_call_is_malformed(name, text, error):
    (call,) = dialects.load(name).read(text, SCHEMAS)
    assert error in call.error and not call.valid


def test_llama_calls_are_whole_turns_and_other_objects_are_answers():
    llama = dialects.load("llama")
    call = Call("python", {"code": "a"})
    for text in (llama.write(call, SCHEMAS), "<|python_tag|>" + llama.write(call, SCHEMAS) + "\n"):
        assert llama.read(text, SCHEMAS) == [call]
    typed = '{"type": "function", "name": "python", "parameters": {"code": "a"}}'
    assert llama.read(typed, SCHEMAS) == [call]
    for text in ('{"answer": 1}', "I say " + typed, "", "{", '{"name": "Ann", "age": 3}'):
        assert [one.valid for one in llama.read(text, SCHEMAS)] in ([], [False])
    assert llama.read('{"answer": 1}', SCHEMAS) == []


def test_text_becomes_a_value_of_the_arguments_schema_in_qwen_coder():
    coder = dialects.load("qwen-coder")

    def argument(key: str, content: str) -> Any:
        text = (
            f"<tool_call>\n<function=any.thing>\n<parameter={key}>\n{content}\n</parameter>\n</function>\n</tool_call>"
        )
        (call,) = coder.read(text, SCHEMAS)
        return call.arguments[key]

    assert argument("n", "5") == 5 and argument("n", "five") == "five"
    assert argument("text", "5") == "5" and argument("text", '"5"') == '"5"' and argument("text", "a\n") == "a\n"
    assert argument("more", "null") is None and argument("more", "5") == "5" and argument("more", "abc") == "abc"
    assert argument("value", "[1]") == [1] and argument("unknown", "5") == "5"
    assert "must be number" in refusal("any.thing", {"n": argument("n", "five")}, SCHEMAS)


def test_in_xml_other_tools_tags_are_text_inside_a_call():
    xml = dialects.load("xml")
    text = "<python>print('<search>x</search>')</python> <search> y </search> <other>z</other>"
    assert xml.read(text, SCHEMAS) == [
        Call("python", {"code": "print('<search>x</search>')"}),
        Call("search", {"query": " y "}),
    ]
    unclosed = xml.read("<python> <search>x</search>", SCHEMAS)
    assert [(call.name, call.valid) for call in unclosed] == [("python", False), ("search", True)]


# ---------------------------------------------------------------------------------------------------------------- turns
XML = dialects.load("xml")
RUN, LOOK, WRONG = "<python>1</python>", "<search>a</search>", "<any.thing>{</any.thing>"


def names(text: str, finish: str = "eos", opened: bool = False, **options: Any) -> list[str]:
    agent = Agent("", SamplingSection(), finals=("answer",), **options)
    found = read_turn(sampled_turn(text, finish, opened), TOOLS, XML, agent)
    return [call.name if call.valid else "!" for call in found]


def test_which_calls_of_a_turn_are_answered():
    assert names(f"{RUN} {WRONG} {LOOK}") == ["python", "!", "search"]
    assert names(f"{RUN} {WRONG} {LOOK}", malformed="end") == ["python", "search"]
    assert names(WRONG, malformed="end") == [] and names(WRONG) == ["!"] and names("nothing") == []
    assert names(f"<think>{RUN}</think>{LOOK}") == ["search"] and names(f"{RUN}</think>{LOOK}", opened=True) == [
        "search"
    ]
    assert names(f"<think>{RUN}") == []
    assert names(f"{RUN} <answer>x</answer>") == names(f"<answer>{RUN}</answer>") == []
    assert names("<python>print('<answer>x</answer>')</python>") == ["python"]
    assert names(f"</answer> {RUN} <answer>x</answer>") == [] and names(f"</answer> {RUN} <answer>") == ["python"]
    assert names(f"{WRONG} {LOOK}", malformed="remind") == ["search"] and names(WRONG, malformed="remind") == ["!"]
    for finish in ("length", "overflow"):
        assert names(RUN, finish) == [] and names(f"{RUN} and", finish, calls="first") == ["python"]
    assert names(f"{WRONG} {LOOK} {RUN}", calls="first") == ["search"] and names(f"{WRONG} {WRONG}", calls="first") == [
        "!",
        "!",
    ]
    assert names(f"{LOOK} <answer>x</answer>", calls="first") == ["search"]
    assert names(f"<answer>x</answer> {LOOK}", calls="first") == []
    (call,) = read_turn(sampled_turn(f"a {LOOK} b"), TOOLS, XML, FIRST)
    assert f"a {LOOK} b"[: call.closed] == f"a {LOOK}"
    (call,) = read_turn(sampled_turn("<search>a</search>"), TOOLS[1:], XML, FIRST) or [None]
    assert call is None  # no tool of that name: plain text


def test_errors_of_arguments_are_those_of_the_tool():
    hermes = dialects.load("hermes")
    text = hermes.write(Call("python", {"cod": "1"}), SCHEMAS)
    (call,) = read_turn(sampled_turn(text), TOOLS, hermes, Agent("", SamplingSection()))
    assert call.error == 'error: python has no argument "cod"; it takes code'


def test_stop_strings():
    assert stops(TOOLS[:2], XML) == ("</search>", "</python>")
    assert stops(TOOLS, dialects.load("hermes")) == ("</tool_call>",)
    assert stops(TOOLS, dialects.load("llama")) == ()


@EVERY
def test_results_are_joined_in_order_and_recovered(name):
    dialect = dialects.load(name)
    results = ["one\n---\ntwo", "", "three"]
    text = dialect.observations(results)
    assert dialect.results_of(text) == results
    messages = dialect.messages(text)
    assert len(messages) == (3 if dialect.results.each else 1)
    assert {message["role"] for message in messages} == {dialect.results.role}
    if dialect.results.each:
        assert [message["content"] for message in messages] == ["one\n----\ntwo", "", "three"]


@EVERY
@settings(max_examples=50, deadline=None)
@given(results=st.lists(st.lists(st.sampled_from(RESULTS), max_size=10).map("".join), min_size=1, max_size=3))
def test_no_result_can_write_a_call_an_answer_or_another_result(name, results):
    dialect = dialects.load(name)
    calls = [dialect.write(Call("python", {"code": "x"}), SCHEMAS), dialect.write(Call("any.thing", {}), SCHEMAS)]
    safe = [neutralised(one, TOOLS, dialect, ("answer",)) for one in [*results, *calls]]
    text = dialect.observations(safe)
    assert name == "llama" or not dialect.read(text, SCHEMAS)
    assert dialect.results_of(text) == safe and [neutralised(one, TOOLS, dialect, ("answer",)) for one in safe] == safe
    assert (parsing.first([text], "answer") is None and "<|" not in parsing._MARK.sub("", text)) or "|>" not in text


def test_a_call_that_a_format_cannot_express_is_refused():
    with pytest.raises(UserError, match="python takes only the text code"):
        XML.write(Call("python", {"code": 1}), SCHEMAS)
    with pytest.raises(UserError, match="is text in this format"):
        dialects.load("qwen-coder").write(Call("python", {"code": 1}), SCHEMAS)
