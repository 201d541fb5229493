"""Programs that speak to OpenAI's API are agents: their requests are rows of a policy."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from scope_jax.config import SamplingSection
from scope_jax.environments.programs import program, prompt, reply
from scope_jax.errors import UserError
from scope_jax.learner.types import Datum
from scope_jax.play.rollouts import Agent, Context, Response
from scope_jax.rollouts.types import Turn
from scope_jax.text import dialects
from tests.games.harness import ScriptedTools, TurnContext
from tests.play.contexts import Record

DIALECT = dialects.load("xml")
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
AGENT = Agent("actor", SamplingSection(max_tokens=200), max_turns=8)


def script(context: TurnContext) -> str:
    if "You may call" in context.prompt and "\n5\n" not in context.prompt:
        return 'I add. <add>{"a": 2, "b": 3}</add>'
    return "five" if "\n5\n" in context.prompt else f"heard {len(context.prompt)} letters"


def calculator(context: Context, urls: Mapping[str, str]) -> Any:
    """Asks, runs the call, and asks again with its result; then asks another agent."""
    client = openai.OpenAI(base_url=urls["solver"], api_key="any", max_retries=0)
    messages: list[Any] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 3?"}]
    first = client.chat.completions.create(model="policy", messages=messages, tools=[ADD])
    call: Any = (first.choices[0].message.tool_calls or [None])[0]
    arguments = json.loads(call.function.arguments)
    messages += [
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": str(arguments["a"] + arguments["b"])},
    ]
    second = client.chat.completions.create(model="policy", messages=messages, tools=[ADD])
    other = openai.OpenAI(base_url=urls["critic"], api_key="any", max_retries=0)
    third = other.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Well?"}])
    return {"answer": second.choices[0].message.content, "critic": third.choices[0].message.content}


def test_requests_of_a_program_are_rows_of_its_agents() -> None:
    tools = ScriptedTools(script, turns="chat")
    rollout = program("one", ("solver", "critic"), calculator, DIALECT, seconds=30)
    ((played,),) = tools.interact("program", [rollout], {"solver": AGENT, "critic": AGENT})
    assert played.failed == "" and played.value == {"answer": "five", "critic": played.completions["critic"].text}
    solver = played.completions["solver"]
    assert len(solver.rows) == 2 and len(Datum.from_completion(solver)) == 2
    second = "".join(map(chr, solver.rows[1].prompt_ids))
    assert '<add>{"a": 2, "b": 3}</add>' in second and "<information>\n5\n</information>" in second
    assert played.completions["critic"].text.startswith("heard ")


def test_a_program_that_had_ended_is_played_from_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record()
    tools = ScriptedTools(script, turns="chat", record=record)
    rollout = program("one", ("solver", "critic"), calculator, DIALECT, seconds=30)
    ((played,),) = tools.interact("program", [rollout], {"solver": AGENT, "critic": AGENT})
    (line,) = record.written
    assert line["tool"] == "program" and len(json.loads(line["text"])["requests"]) == 3

    def never(context: Context, urls: Mapping[str, str]) -> Any:
        raise AssertionError("the program is not run")

    again = ScriptedTools(script, turns="chat", record=Record(record.written, closed=True))
    rollout = program("one", ("solver", "critic"), never, DIALECT, seconds=30)
    ((replayed,),) = again.interact("program", [rollout], {"solver": AGENT, "critic": AGENT})
    assert replayed.value == played.value
    for name, completion in played.completions.items():
        assert replayed.completions[name].ids_T.tolist() == completion.ids_T.tolist()


def test_a_program_that_raises_or_says_nothing_fails_its_rollout() -> None:
    def raises(context: Context, urls: Mapping[str, str]) -> Any:
        raise KeyError("task")

    def waits(context: Context, urls: Mapping[str, str]) -> Any:
        import time

        time.sleep(1)

    for run, sentence in ((raises, "ended with KeyError"), (waits, "neither asked nor ended within 0.1 s")):
        tools = ScriptedTools(script, turns="chat")
        ((played,),) = tools.interact("p", [program("one", ("a",), run, DIALECT, seconds=0.1)], {"a": AGENT})
        assert sentence in played.failed and played.value is None and not played.completions


def test_an_agent_without_turns_left_refuses_the_request() -> None:
    def asks(context: Context, urls: Mapping[str, str]) -> Any:
        client = openai.OpenAI(base_url=urls["a"], api_key="any", max_retries=0)
        said = []
        for _ in range(3):
            try:
                said.append(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}]).id)
            except openai.BadRequestError as error:
                return [len(said), error.code]
        return None

    tools = ScriptedTools(script, turns="chat")
    agent = Agent("actor", SamplingSection(max_tokens=200), max_turns=2)
    ((played,),) = tools.interact("p", [program("one", ("a",), asks, DIALECT, seconds=30)], {"a": agent})
    assert played.value == [2, "context_length_exceeded"]


@pytest.mark.parametrize("name", ["hermes", "llama", "function", "qwen-coder", "xml"])
def test_calls_and_results_in_a_conversation_are_those_of_the_dialect(name: str) -> None:
    dialect = dialects.load(name)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    messages = prompt(
        [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": "1 + 2?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "3"},
        ],
        [ADD],
        dialect,
    )
    *_, said = messages.before
    assert [each.arguments for each in dialect.read(said["content"], [ADD])] == [{"a": 1, "b": 2}]
    assert messages.system == "Be short." and "3" in messages.user and messages.role == dialect.results.role
    with pytest.raises(UserError, match="cannot be written"):
        prompt(
            [{"role": "assistant", "content": "", "tool_calls": [call | {"function": {"name": "add"}}]}], [], dialect
        )


@pytest.mark.parametrize("name", ["hermes", "llama", "function", "qwen-coder", "xml"])
def test_a_conversation_goes_on_after_results(name: str) -> None:
    dialect = dialects.load(name)
    calls = [
        {"id": id, "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}} for id in "ab"
    ]
    results = [{"role": "tool", "tool_call_id": id, "content": f"result {id}"} for id in "ba"]
    asked = [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    twice = [*asked, *asked[1:]]
    for conversation in (
        asked,
        twice,
        [*twice, {"role": "assistant", "content": "3"}, {"role": "user", "content": "?"}],
    ):
        messages = prompt(conversation, [ADD], dialect)
        text = "\n".join([*(each["content"] for each in messages.before), messages.user])
        assert text.index("result a") < text.index("result b")  # in the order of the calls
    thought = prompt([*asked[:1], {"role": "assistant", "content": "3", "reasoning": "hm"}, asked[0]], [], dialect)
    assert thought.before[1]["reasoning_content"] == "hm"


def read_by_program(text: str, tools: Any = (ADD,), finish: str = "eos") -> tuple[str, list[Any]]:
    ids = np.zeros(1, np.int32)
    turn = Turn("sampled", ids, np.zeros(1, np.float32), text, finish, thought=("<think>", "</think>"))
    told = reply(Response(text, turn.content, (turn,), finish=finish), tools, dialects.load("hermes"))
    return told.content, [dict(call.arguments) for call in told.calls]


def test_a_program_reads_what_a_client_of_a_server_would() -> None:
    """Valid calls of its functions; what is none is content; a cut turn is text."""
    good = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    odd = '<tool_call>{"name": "add", "arguments": {"a": "x"}}</tool_call>'
    unknown, broken = good.replace("add", "run"), "<tool_call>{</tool_call>"
    assert read_by_program(f"One. {good} Two.") == ("One.\nTwo.", [{"a": 1, "b": 2}])
    assert read_by_program(f"{broken}{good}") == (broken, [{"a": 1, "b": 2}])
    assert read_by_program(unknown) == (unknown, []) and read_by_program(f"<think>{good}</think>") == ("", [])
    assert read_by_program(good, finish="length") == (good, []) and read_by_program(good, ()) == (good, [])
    strict = ADD | {"function": ADD["function"] | {"strict": True}}
    assert read_by_program(odd) == ("", [{"a": "x"}]) and read_by_program(odd, (strict,)) == (odd, [])


def test_a_pattern_that_cannot_be_read_is_the_programs() -> None:
    word = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)y(?!z)\\1"}}}
    tool = {"type": "function", "function": {"name": "add", "parameters": word}}
    assert prompt([{"role": "user", "content": "2 + 3?"}], [tool], DIALECT).tools == (tool,)


def test_functions_of_a_program_have_no_form_in_harmony() -> None:
    with pytest.raises(UserError, match=r'not supported with model\.dialect = "harmony"'):
        prompt([{"role": "user", "content": "2 + 3?"}], [ADD], dialects.load("harmony"))
    assert prompt([{"role": "user", "content": "2 + 3?"}], [], dialects.load("harmony")).user == "2 + 3?"


USER = {"role": "user", "content": "2 + 3?"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}


def said(**fields: Any) -> dict[str, Any]:
    """A body whose assistant's message has these fields."""
    return {"messages": [USER, {"role": "assistant", "content": "", **fields}, USER], "tools": [ADD]}


def function(**fields: Any) -> dict[str, Any]:
    """A body with a function that has these fields."""
    return {"messages": [USER], "tools": [{"type": "function", "function": {**ADD["function"], **fields}}]}


WRONG: list[Any] = [
    *(5, "abc", [], [1], None, True, {}, {"messages": 5}, {"messages": {}}, {"messages": []}, {"messages": [5]}),
    *({"messages": [[]]}, {"messages": [None]}, {"messages": [{}]}, {"messages": "abc"}, {"messages": [{"role": 5}]}),
    *({"messages": [USER | {"content": wrong}]} for wrong in (5, {}, True, [5], ["a"], [{}], [{"text": 5}], [[]])),
    *({"messages": [USER | {"content": [{"type": wrong, "text": "a"}]}]} for wrong in (5, "image_url", [], {})),
    *({"messages": [USER | {"role": wrong}]} for wrong in ("robot", 5, ["user"], {}, "")),
    *(said(tool_calls=wrong) for wrong in (5, [1], "abc", {}, True, [[]], [{}], [None], [CALL, 5])),
    *(said(tool_calls=[CALL | {"function": wrong}]) for wrong in (5, [], "add", {}, {"name": "add"}, {"name": 5})),
    *(
        said(tool_calls=[CALL | {"function": {"name": "add", "arguments": wrong}}])
        for wrong in (5, {"a": 1}, [], "abc", "5", "[1]", "null", '{"a"', "[" * 99, '{"a": NaN}', '{"a": 1, "a": 2}')
    ),
    *(said(tool_calls=[CALL | {"id": wrong}]) for wrong in (5, [], {})),
    said(tool_calls=[CALL | {"type": "custom"}]),
    *({"messages": [USER], "tools": wrong} for wrong in (5, "abc", {}, [5], ["add"], [{}], [[]], [True])),
    *({"messages": [USER], "tools": [{"type": "function", "function": wrong}]} for wrong in (5, "add", [], {}, True)),
    {"messages": [USER], "tools": [{"function": 5}]},
    {"messages": [USER], "tools": [ADD, ADD]},
    *(function(name=wrong) for wrong in (5, [], {}, "", "a b", "<a>", "a" * 99)),
    *(function(parameters=wrong) for wrong in (5, "abc", [1], True, {"type": "array"}, {"properties": 5})),
    *(function(description=wrong) for wrong in (5, [1], {})),
    *({"messages": [USER], "stream_options": wrong} for wrong in ("x", 5, [1], True, {"include_usage": "x"})),
    *({"messages": [USER], "stream": wrong} for wrong in ("x", 5, [1], {})),
    *({"messages": [USER], "tool_choice": wrong} for wrong in ("required", 5, [1], {}, {"type": "function"})),
    *({"messages": [USER], "n": wrong} for wrong in (2, 0, "x", [1], {})),
    *({"messages": [USER], "model": wrong} for wrong in (5, [1], {})),
    *({"messages": [USER], "response_format": wrong} for wrong in ("x", 5, [1], {}, {"type": "json_object"})),
    {"messages": [USER], "logprobs": "x"},
    {"messages": [USER], "top_logprobs": 5},
    {"messages": [{"role": "assistant", "content": "a"}]},
    {"messages": [USER, {"role": "system", "content": "a"}, USER]},
]
RIGHT: list[Any] = [
    {"messages": [USER | {"name": None, "tool_calls": None}], "tools": None, "stream": None, "stream_options": None},
    {"messages": [USER], "tools": [], "n": 1, "logprobs": False, "response_format": {"type": "text"}, "unknown": {}},
    said(tool_calls=[], reasoning_content="hm", audio=None, annotations=[]),
    said(content=None, tool_calls=[CALL]),
    function(parameters=None, description=None),
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}], "temperature": 2},
]


@pytest.mark.parametrize("name", ["hermes", "llama", "function", "qwen-coder", "xml"])
def test_each_body_is_answered_or_refused_with_a_sentence(name: str) -> None:
    def sends(context: Context, urls: Mapping[str, str]) -> Any:
        with httpx.Client() as client:
            bodies = [json.dumps(body) for body in (*WRONG, *RIGHT)]
            address, headers = f"{urls['a']}/chat/completions", {"Content-Type": "application/json"}
            post = [client.post(address, content=body, headers=headers) for body in bodies]
        return [[answer.status_code, answer.json().get("error", {}).get("message", "")] for answer in post]

    agent = Agent("actor", SamplingSection(max_tokens=200), max_turns=20)
    tools = ScriptedTools(lambda context: "Yes.", turns="chat")
    ((played,),) = tools.interact("p", [program("one", ("a",), sends, dialects.load(name), seconds=60)], {"a": agent})
    assert played.failed == "" and len(WRONG) > 100
    expected = [400] * len(WRONG) + [200] * len(RIGHT)
    for body, right, (status, sentence) in zip((*WRONG, *RIGHT), expected, played.value, strict=True):
        assert status == right, (body, sentence)
        assert bool(sentence) == (status == 400) and "\n" not in sentence and sentence[-1:] in ".?)" * bool(sentence)


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def raising(error: BaseException) -> Any:
    def run(context: Context, urls: Mapping[str, str]) -> Any:
        raise error

    return run


def giving(value: Any) -> Any:
    return lambda context, urls: value


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (raising(SystemExit(1)), "the program ended with SystemExit: 1"),
        (raising(SystemExit("no")), "the program ended with SystemExit: no"),
        (raising(asyncio.CancelledError()), "the program ended with CancelledError"),
        (raising(RecursionError("deep")), "the program ended with RecursionError: deep"),
        (raising(OSError("a \ud83d b")), "the program ended with OSError: a \ufffd b"),
        (raising(TimeoutError("late")), "the program ended with TimeoutError: late"),
        (lambda context, urls: sys.exit(3), "the program ended with SystemExit: 3 (test_programs.py, line"),
        *((giving(value), "no plain data") for value in ({1}, object(), b"a", math.nan, [math.inf], deep(300))),
        *((giving(value), "no plain data") for value in (deep(5000), {(1, 2): 3}, len, 10**5000, 1j)),
    ],
)
def test_what_a_program_raises_or_gives_fails_its_rollout(run: Any, sentence: str) -> None:
    tools = ScriptedTools(script, turns="chat")
    ((played,),) = tools.interact("p", [program("one", ("a",), run, DIALECT, seconds=30)], {"a": AGENT})
    assert sentence in played.failed and played.value is None and "\n" not in played.failed


@pytest.mark.parametrize("error", [UserError("correct the card."), MemoryError()])
def test_what_the_user_has_to_mend_ends_the_run(error: Exception) -> None:
    with pytest.raises(type(error)):
        ScriptedTools(script, turns="chat").interact(
            "p", [program("one", ("a",), raising(error), DIALECT, seconds=30)], {"a": AGENT}
        )


def test_plain_data_comes_back_as_it_is_read_and_status_0_is_no_failure() -> None:
    for run, value in (
        (giving({"a": (1, 2.5, None, True), 3: "\ud83d\ude00 \ud83d"}), {"a": [1, 2.5, None, True], "3": "😀 \ufffd"}),
        (lambda context, urls: sys.exit(0), None),
    ):
        tools = ScriptedTools(script, turns="chat")
        ((played,),) = tools.interact("p", [program("one", ("a",), run, DIALECT, seconds=30)], {"a": AGENT})
        assert played.value == value and not played.failed
