"""Random conversations whose every text is a mark of its own, and the forms in which data sets write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

Message = dict[str, Any]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Looks up {name}.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Where."}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "trains")
]


def conversation(rng: np.random.Generator, *, thoughts: bool, calls: int, system: bool) -> list[Message]:
    """A canonical conversation. calls: most calls of one message; 0: none."""
    marks = (f"zq{number}x" for number in count())
    messages: list[Message] = [{"role": "system", "content": next(marks)}] if system else []
    for _ in range(int(rng.integers(1, 4))):
        messages.append({"role": "user", "content": f"{next(marks)} Zürich?"})
        for _ in range(int(rng.integers(0, 3)) if calls else 0):
            messages += _called(rng, marks, int(rng.integers(1, calls + 1)), thoughts)
        messages.append(_said(rng, marks, thoughts))
    return messages


def _said(rng: np.random.Generator, marks: Iterator[str], thoughts: bool) -> Message:
    message: Message = {"role": "assistant", "content": f"{next(marks)}\nYes."}
    if thoughts and rng.random() < 0.7:
        message["reasoning_content"] = f"{next(marks)} perhaps"
    return message


def _called(rng: np.random.Generator, marks: Iterator[str], calls: int, thoughts: bool) -> Iterator[Message]:
    message: Message = {"role": "assistant", "content": ""}
    if thoughts and rng.random() < 0.5:
        message["reasoning_content"] = next(marks)
    message["tool_calls"] = [
        {
            "id": f"call{number:05d}",
            "type": "function",
            "function": {
                "name": str(rng.choice(["weather", "trains"])),
                "arguments": {"city": next(marks), "days": int(rng.integers(9)), **_nested(rng, marks)},
            },
        }
        for number in range(calls)
    ]
    yield message
    for call in message["tool_calls"]:
        yield {"role": "tool", "content": next(marks), "name": call["function"]["name"], "tool_call_id": call["id"]}


def _nested(rng: np.random.Generator, marks: Iterator[str]) -> dict[str, Any]:
    return {"via": [next(marks), 3], "by": {"train": next(marks), "now": True}} if rng.random() < 0.5 else {}


# --------------------------------------------------------------------------------------------------------------- forms
def openai(messages: list[Message]) -> Message:
    """Arguments as text, content null where there is none, nulls for what a message has not, long ids."""

    def written(message: Message) -> Message:
        calls = [
            {**call, "id": f"call_{call['id']}abc", "function": _texts(call["function"])}
            for call in message.get("tool_calls", [])
        ]
        shown = {"refusal": None, "audio": None, **message, "content": message["content"] or None}
        if "tool_call_id" in message:
            shown["tool_call_id"] = f"call_{message['tool_call_id']}abc"
        return {**shown, "tool_calls": calls or None}

    return {"messages": [written(message) for message in messages]}


def trl(messages: list[Message]) -> Message:
    """Calls without ids, results by name, empty lists of calls."""

    def written(message: Message) -> Message:
        calls = [{"type": "function", "function": call["function"]} for call in message.get("tool_calls", [])]
        kept = {key: value for key, value in message.items() if key != "tool_call_id"}
        return {**kept, "tool_calls": calls}

    return {"messages": [written(message) for message in messages]}


def other_thought(name: str) -> Callable[[list[Message]], Message]:
    """Thoughts under another name."""

    def form(messages: list[Message]) -> Message:
        renamed = [
            {name if key == "reasoning_content" else key: value for key, value in one.items()} for one in messages
        ]
        return {"conversation": renamed}

    return form


def parts(messages: list[Message]) -> Message:
    """Content as parts, thoughts among them; the developer's role."""

    def written(message: Message) -> Message:
        shown = [{"type": "text", "text": message["content"]}] if message["content"] else []
        if "reasoning_content" in message:
            shown.insert(0, {"type": "thinking", "thinking": message["reasoning_content"]})
        role = "developer" if message["role"] == "system" else message["role"]
        kept = {key: value for key, value in message.items() if key != "reasoning_content"}
        return {**kept, "role": role, "content": shown}

    return {"messages": [written(message) for message in messages]}


def json_text(messages: list[Message]) -> Message:
    """The list as text, as tables keep it."""
    return {"messages": json.dumps(messages)}


def sharegpt(messages: list[Message]) -> Message:
    """`from` and `value`, calls and results as roles; results in another order with their ids are not known here."""
    names = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}

    def written(message: Message) -> Message:
        if calls := message.get("tool_calls"):
            called = [{"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in calls]
            return {"from": "function_call", "value": json.dumps(called[0] if len(called) == 1 else called)}
        return {"from": names[message["role"]], "value": message["content"]}

    return {"conversations": [written(message) for message in messages]}


def shuffled(messages: list[Message]) -> Message:
    """The results of a message's calls in another order."""
    ordered: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            waiting.insert(0, message)
            continue
        ordered += [*waiting, message]
        waiting = []
    return {"messages": [*ordered, *waiting]}


def _texts(function: Message) -> Message:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


FORMS: dict[str, Callable[[list[Message]], Message]] = {
    "openai": openai,
    "trl": trl,
    "reasoning": other_thought("reasoning"),
    "thinking": other_thought("thinking"),
    "parts": parts,
    "json": json_text,
    "shuffled": shuffled,
}
