"""Exams of a model behind an endpoint whose agent has tools: native calls, run here, until a turn has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from scope_jax.config import JudgeSection, SamplingSection
from scope_jax.errors import UserError
from scope_jax.evaluation.endpoint import EndpointTools
from scope_jax.grading.judge_client import JudgeClient
from scope_jax.grading.math_answers import MathAnswers
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.tool_calls import tool
from scope_jax.text.messages import Messages
from tests.judge.endpoint import Answer, chat, endpoint

SAMPLING = SamplingSection(temperature=0.0, max_tokens=20)
opened: list[str] = []


@contextmanager
def counter(rng: np.random.Generator) -> Iterator[list[int]]:
    opened.append("open")
    yield [0]
    opened.append("closed")


@tool(open=counter)
def add(state: list[int], a: int) -> str:
    """Adds to what was added before."""
    state[0] += a
    if a == 13:
        raise RuntimeError("unlucky")
    return f"sum {state[0]}"


def calls(*arguments: str, name: str = "add", content: str | None = None) -> Answer:
    called = [
        {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": one}}
        for place, one in enumerate(arguments)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": called}
    return 200, {"choices": [{"message": message, "finish_reason": "tool_calls"}]}


def play(answers: Any, samples: int = 1, **fields: Any) -> tuple[Any, list[dict[str, Any]]]:
    with endpoint(answers) as (url, seen):
        client = JudgeClient(JudgeSection(url=url, model="m"), None, "the model")
        tools = EndpointTools(client, {}, None, 0, "exam", MathAnswers())
        agent = Agent("actor", SAMPLING, **{"max_turns": 4, "tools": (add,), **fields})
        (group,) = tools.play("eval", [Rollout("0", Messages("1 + 2?"))], agent, samples)
        client.close()
    return group, seen


def script(number: int, body: dict[str, Any]) -> Answer:
    turns = sum(message["role"] == "assistant" for message in body["messages"])
    if turns == 0:
        return calls('{"a": 1}', '{"a": 2}', content="I add.")
    if turns == 1:
        return calls('{"a": "x"}', '{"a"', name="add")
    return chat("It is 3.")


def test_calls_are_run_and_answered_until_a_turn_has_none() -> None:
    opened.clear()
    group, seen = play(script, samples=2)
    assert len(seen) == 6 and len({body["seed"] for body in seen}) == 6
    assert all(body["tools"] == [json.loads(json.dumps(add.schema))] for body in seen)
    for said in group:
        assert said.finish_reason == "eos" and said.turns[-1].text == "It is 3."
        assert [one.status for one in said.calls] == ["ok", "ok", "malformed", "malformed"]
        assert [one.text for one in said.calls[:2]] == ["sum 1", "sum 3"]  # each episode has its own sum
        assert [one.turn for one in said.calls] == [0, 0, 1, 1]
        assert 'must be integer, not the string "x"' in said.calls[2].text
    last = max(seen, key=lambda body: len(body["messages"]))["messages"]
    assert [message["role"] for message in last] == ["user", *["assistant", "tool", "tool"] * 2]
    assert last[1]["content"] == "I add." and [one["id"] for one in last[1]["tool_calls"]] == ["call_0", "call_1"]
    assert [message["tool_call_id"] for message in last[2:4]] == ["call_0", "call_1"] and last[3]["content"] == "sum 3"
    assert opened == ["open"] * 2 + ["closed"] * 2


def test_limits_final_tags_and_errors_of_tools() -> None:
    group, seen = play(lambda number, body: calls('{"a": 1}'), max_turns=2)
    assert group[0].finish_reason == "turns" and len(seen) == 2 and len(group[0].calls) == 1
    group, seen = play(lambda number, body: calls('{"a": 1}', content="<answer>3</answer>"), finals=("answer",))
    assert group[0].finish_reason == "eos" and len(seen) == 1 and not group[0].calls
    group, seen = play(script, calls="first")
    assert seen[0]["parallel_tool_calls"] is False and [one.text for one in group[0].calls][:1] == ["sum 1"]
    unlucky = play(lambda number, body: chat("end") if len(body["messages"]) > 1 else calls('{"a": 13}'))[0][0]
    assert [one.status for one in unlucky.calls] == ["error"] and "unlucky" in unlucky.calls[0].text
    refused = play(lambda number, body: (400, "too long"))[0][0]
    assert refused.finish_reason == "overflow" and not refused.turns


def halves(arguments: Any, several: bool) -> list[dict[str, str]]:
    return [{"word": part} for part in arguments["word"].split("|") if part] if several else [dict(arguments)]


@tool(strict=False, parts=halves)
def spell(word: str) -> str:
    """Spells."""
    return "-".join(word)


def once(*arguments: str, name: str = "add", content: str | None = None) -> Any:
    """Calls, until they have been answered."""
    return lambda number, body: (
        chat("end") if len(body["messages"]) > 1 else calls(*arguments, name=name, content=content)
    )


def test_rules_of_tools_and_agents_hold_as_in_rollouts() -> None:
    """Arguments that are left out, calls that stand for several, the first valid call, reminders, deep arguments."""
    group, seen = play(once('{"word": "ab|cd", "more": 1}', '{"word": "|"}', name="spell"), tools=(spell,))
    assert [(one.text, one.status) for one in group[0].calls[:2]] == [("a-b", "ok"), ("c-d", "ok")]
    assert group[0].calls[2].text == "error: the call of spell is empty"
    assert [message["content"] for message in seen[1]["messages"][2:]] == ["a-b\n---\nc-d", group[0].calls[2].text]
    group, seen = play(once('{"a": "x"}', '{"a": 2}', '{"a": 3}'), calls="first")
    assert [one.text for one in group[0].calls] == ["sum 2"]
    assert [call["id"] for call in seen[1]["messages"][1]["tool_calls"]] == ["call_1"]
    reminded: dict[str, Any] = {"malformed": "remind", "reminder": "Call add."}
    group, seen = play(once("{", content="Hm."), **reminded)
    assert seen[1]["messages"][1:] == [
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": "Call add."},
    ]
    group, _ = play(once("{", '{"a": 5}'), **reminded)
    assert [one.text for one in group[0].calls] == ["sum 5"]
    for depth, status in ((32, "ok"), (33, "malformed")):
        group, _ = play(once('{"value": ' + "[" * depth + "]" * depth + "}", name="take"), tools=(take,))
        assert [one.status for one in group[0].calls] == [status]


@tool
def take(value: list[Any]) -> str:
    """Takes."""
    return "taken"


def test_what_an_endpoint_cannot_play_is_refused() -> None:
    with pytest.raises(UserError, match="belongs to a game"):
        play(script, tools=("search",))
    with pytest.raises(UserError, match="answers without searches"):
        play(script, tools=())
