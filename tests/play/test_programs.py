"""Programs that speak to OpenAI's API are agents: their requests are rows of a policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai
import pytest

from scope_jax.config import SamplingSection
from scope_jax.errors import UserError
from scope_jax.learner.types import Datum
from scope_jax.play.programs import program, prompt
from scope_jax.play.rollouts import Agent, Context
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
    assert played.failed == "" and played.value == {"answer": "five", "critic": played.completions["critic"].written}
    solver = played.completions["solver"]
    assert len(solver.rows) == 2 and len(Datum.from_completion(solver)) == 2
    second = "".join(map(chr, solver.rows[1].prompt_ids))
    assert '<add>{"a": 2, "b": 3}</add>' in second and "<information>\n5\n</information>" in second
    assert played.completions["critic"].written.startswith("heard ")


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


def test_functions_of_a_program_have_no_form_in_harmony() -> None:
    with pytest.raises(UserError, match=r'not supported with model\.dialect = "harmony"'):
        prompt([{"role": "user", "content": "2 + 3?"}], [ADD], dialects.load("harmony"))
    assert prompt([{"role": "user", "content": "2 + 3?"}], [], dialects.load("harmony")).user == "2 + 3?"
