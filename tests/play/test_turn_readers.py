"""Rollouts, `serve`, programs of agents and exams of endpoints agree on what a text calls."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.config import SamplingSection
from scope_jax.environments.programs import reply
from scope_jax.errors import UserError
from scope_jax.evaluation.calling import Talk, Unrecorded, execution
from scope_jax.grading.judge_client import CallingReply
from scope_jax.play.rollouts import Agent, Response
from scope_jax.play.tool_calls import Tool, clients_tools
from scope_jax.play.tool_execution import MalformedCall, RolloutCalls, ToolCall
from scope_jax.play.tool_turns import answered, read_calls, read_turn
from scope_jax.rollouts.types import ToolResult, Turn
from scope_jax.serving.functions import Functions, ReplyReader
from scope_jax.text import dialects, openai, parsing, turns
from scope_jax.text.dialects import Call

NAMES = dialects.names()
EVERY = pytest.mark.parametrize("name", NAMES)
MARKS = {"harmony": parsing.ANALYSIS, "gemma": parsing.CHANNEL}


def schema(name: str, *, strict: bool, **arguments: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": arguments}
    return {"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}}


def schemas(strict: bool) -> list[dict[str, Any]]:
    text, number = {"type": "string"}, {"type": "integer"}
    return [schema("python", strict=strict, code=text), schema("add", strict=strict, a=number, b=number)]


TOOLS = tuple(Tool(one["function"]["name"], str, one) for one in schemas(True))
CALLS = st.sampled_from(
    [
        Call("python", {"code": "print('<b>')\n"}),
        Call("add", {"a": 1, "b": 2}),
        Call("add", {"a": "1"}),
        Call("add", {"a": 1, "c": 2}),
        Call("nothing", {}),
    ]
)
WORDS = st.sampled_from(["Well. ", "a < b\n", "{", "[", "]", "\n\n", '"', "<answer>", "</tool_call>", "<add>", "é"])


def written(dialect: dialects.Dialect, call: Call) -> str:
    try:
        return dialect.write(call, schemas(True))
    except UserError:  # the format has no types
        return ""


KINDS = st.sampled_from(["call", "call", "cut", "changed", "pair", "begin", "end", "words"])
PARTS = st.lists(st.tuples(KINDS, CALLS, CALLS, st.integers(0, 80), WORDS), max_size=5)


def text_of(parts: list[tuple[str, Call, Call, int, str]], name: str) -> str:
    """Calls that are whole, cut, changed, in a thought, or several in a pair of tags, between words and marks."""
    dialect, (begin, end) = dialects.load(name), MARKS.get(name, parsing.THOUGHT)
    pieces = []
    for kind, call, other, place, words in parts:
        whole = written(dialect, call)
        pair = whole.removesuffix("</function_calls>") + "\n"
        forms = {
            "call": whole,
            "cut": whole[:place],
            "changed": whole[:place] + words + whole[place + 1 :],
            "pair": pair + written(dialect, other).removeprefix("<function_calls>"),
            "words": words,
            "begin": begin,
            "end": end,
        }
        start = "<|start|>assistant" if name == "harmony" and kind not in ("begin", "end") else ""
        pieces.append(start + forms[kind])
    return "".join(pieces)


def sampled(text: str, name: str, opened: bool, finish: str = "eos") -> Turn:
    thought = MARKS.get(name, parsing.THOUGHT)
    return Turn("sampled", np.zeros(3, np.int32), np.zeros(3, np.float32), text, finish, opened=opened, thought=thought)


def agent(**rules: Any) -> Agent:
    return Agent("actor", SamplingSection(), max_turns=9, tools=TOOLS, **rules)


def of_rollout(turn: Turn, name: str) -> list[Call]:
    return read_calls(turn.content, TOOLS, dialects.load(name), agent())


def of_serve(turn: Turn, name: str, strict: bool, pace: int) -> tuple[str, list[Call]]:
    given = tuple(schemas(strict))
    functions = Functions(given, clients_tools(given), dialects.load(name), single=False)
    reader = ReplyReader(functions, turn.thought, turn.opened, channels=name == "harmony")
    shown = "".join(reader.feed(turn.text[place : place + pace]) for place in range(0, len(turn.text), pace))
    rest, calls = reader.finish()
    return shown + rest, calls


def of_program(turn: Turn, name: str) -> tuple[str, list[Call]]:
    response = Response(turn.text, turn.content, (turn,), finish=turn.finish)
    told = reply(response, schemas(True), dialects.load(name))
    return told.content, [*told.calls]


class Asked(RolloutCalls):
    """Runs nothing, and keeps what was to be run or answered."""

    def __init__(self) -> None:
        super().__init__(execution(None, print), lambda tool: np.random.default_rng(0), Unrecorded())
        self.asked: list[ToolCall | MalformedCall] = []

    def run(self, agent: str, turn: int, calls: Any) -> list[ToolResult]:
        self.asked += calls
        return [ToolResult(turn, agent, "", {}, "result", "ok") for _ in calls]


def of_exam(called: list[Call], **rules: Any) -> list[ToolCall | MalformedCall]:
    """What is run or answered of calls that an endpoint gives in OpenAI's form."""
    calls = Asked()
    Talk("0", [], agent(**rules), TOOLS, calls).take(CallingReply("", calls=tuple(openai.tool_calls(called))))
    return calls.asked


def whole_pairs(calls: list[Call], counts: Any, name: str) -> list[Call]:
    """Those of pairs of tags in which all count; a turn in harmony has one call."""
    groups = (list(inside) for _, inside in groupby(calls, lambda call: (call.opened, call.closed)))
    kept = [call for group in groups if all(map(counts, group)) for call in group]
    return kept[:1] if name == "harmony" else kept


@EVERY
@settings(max_examples=60, deadline=None)
@given(parts=PARTS, opened=st.booleans(), pace=st.integers(1, 30))
def test_the_four_readers_agree(name: str, parts: Any, opened: bool, pace: int) -> None:
    turn = sampled(text_of(parts, name), name, opened and name not in MARKS)
    found = of_rollout(turn, name)
    valid = whole_pairs(found, lambda call: call.valid, name)
    content, served = of_serve(turn, name, True, pace)
    assert served == valid
    said, programs = of_program(turn, name)
    if name != "harmony":  # in which a program has no functions
        assert programs == valid
        if turn.content == turn.text:
            assert said == content.strip()
    readable = whole_pairs(
        found, lambda call: "cannot be read" not in call.error and "there is no tool" not in call.error, name
    )
    _, loose = of_serve(turn, name, False, pace)
    assert [(call.name, call.arguments) for call in loose] == [(call.name, call.arguments) for call in readable]
    tools = {tool.name: tool for tool in TOOLS}
    assert of_exam(loose) == [
        ToolCall(tools[call.name], call.arguments) if call.valid else MalformedCall(call.name, call.error)
        for call in readable
    ]


@EVERY
@settings(max_examples=30, deadline=None)
@given(parts=PARTS, opened=st.booleans())
def test_calls_of_a_turn_that_was_cut(name: str, parts: Any, opened: bool) -> None:
    """They count for clients of `serve`, who are told that it was cut; nothing is run of them here, and nobody else
    can be told in time."""
    turn = sampled(text_of(parts, name), name, opened and name not in MARKS, "length")
    found = of_rollout(turn, name)
    assert answered(turn, found, agent()) == []
    said, programs = of_program(turn, name)
    assert not programs and said == dialects.load(name).shown(turn.content).strip()
    assert of_serve(turn, name, True, 5)[1] == whole_pairs(found, lambda call: call.valid, name)


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(CALLS, min_size=1, max_size=3), rule=st.sampled_from(["all", "first"]))
def test_rules_of_an_exam_are_those_of_a_rollout(calls: list[Call], rule: Any) -> None:
    hermes = dialects.load("hermes")
    turn = sampled("\n".join(hermes.write(call, schemas(True)) for call in calls), "hermes", False)
    for malformed in ("answer", "end"):
        rules: dict[str, Any] = {"calls": rule, "malformed": malformed}
        wanted = read_turn(turn, TOOLS, hermes, agent(**rules))
        asked = [
            (one.tool.name, "") if isinstance(one, ToolCall) else (one.name, one.problem)
            for one in of_exam(calls, **rules)
        ]
        assert asked == [(call.name, call.error) for call in wanted]


def test_one_call_at_most_ends_a_turn() -> None:
    hermes = dialects.load("hermes")
    text = "\n".join(hermes.write(call, schemas(True)) for call in [Call("add", {"a": 1, "b": 2})] * 2)
    found = read_calls(text, TOOLS, hermes, agent())
    assert [len(turns.delivered(f"Well. {text}", found, single)[1]) for single in (False, True)] == [2, 1]


@pytest.mark.parametrize("name", ["1", "null", "[]"])
def test_a_name_that_is_no_text_is_a_malformed_call(name: str) -> None:
    mistral = dialects.load("mistral")
    (call,) = read_calls(f'[TOOL_CALLS][{{"name": {name}, "arguments": {{}}}}]', TOOLS, mistral, agent())
    assert not call.valid and 'an object with "name" and "arguments" is needed' in call.error
