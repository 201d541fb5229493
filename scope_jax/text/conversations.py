"""Conversations in the forms of published data sets and protocols, as one canonical form.

Understood are OpenAI's messages (also of its older function calls), ShareGPT's `from` and `value`, and what trainers
write: content in parts, arguments as text or objects, thoughts under several names, weights and masks of messages.
What is not understood is an error; nothing is dropped.

A canonical message is an object with

    role               system, user, assistant, tool, or another role that a chat template knows
    content            text
    reasoning_content  of the assistant, where it has a thought beside the content
    tool_calls         of the assistant: [{"id", "type": "function", "function": {"name", "arguments": object}}]
    tool_call_id, name of a tool's result: the call that it answers
    weight             0: the message is not trained

and whatever else the data has for the chat template. Canonical conversations are returned as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scope_jax.text.calls import (
    CALLS,
    EMPTY,
    ConversationError,
    Message,
    calls_of,
    check_values,
    finish,
    parsed,
    with_results,
)
from scope_jax.text.strict_json import kind_of

ROLES: Mapping[str, str] = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model", "ai"), "assistant"),
    **dict.fromkeys(("function", "observation", "tool_response", "ipython"), "tool"),
    **dict.fromkeys(("function_response", "function-response"), "tool"),
    "developer": "system",
}
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought", "thoughts", "think")
WEIGHTS = ("weight", "loss_weight", "loss_mask", "train", "training", "trainable", "loss")
_WEIGHING = re.compile(r"mask|train|weight|loss|ignore|reasoning", re.IGNORECASE)  # keys of messages that must be known
_INLINE_THOUGHT = re.compile(r"\s*<think>")
_KNOWN = {"role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", "name"}
_READ = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name", "weight")


def messages(value: Any, name: str, tools: Sequence[Mapping[str, Any]] | None = None) -> list[Message]:
    """The canonical messages of a list, or of its JSON text. name: of the field, for errors. tools: canonical schemas;
    an argument that is null and that its function does not have is a gap of a table, and left out.

    Raises ConversationError.
    """
    listed = _list(value, name)
    if not isinstance(listed, list | tuple):
        raise ConversationError(f"`{name}` holds {kind_of(listed)}, not messages; write a list of objects.")
    if not listed:
        raise ConversationError(f"`{name}` is empty; fill it or remove the row.")
    read: list[Message] = []
    called = False
    for place, one in enumerate(listed):
        message = _message(one, f"{name}[{place}]")
        again, called = called, _role(one) in CALLS
        if called and again:  # one after the other, they are the calls of one message
            read[-1]["tool_calls"] += message["tool_calls"]
        else:
            read.append(message)
    for message in read:
        finish(message, tools, name)
    return with_results(read, name)


def same(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Whether canonical messages say the same, whatever else the data has about them."""
    return [[each.get(key) for key in _READ] for each in one] == [[each.get(key) for key in _READ] for each in other]


def tools(value: Any, name: str) -> list[dict[str, Any]] | None:
    """The canonical schemas of functions, {"type": "function", "function": {…}}, of a list of schemas or its JSON text;
    None if there are none. Raises ConversationError."""
    listed = _list(value, name)
    if listed in EMPTY:
        return None
    if not isinstance(listed, list | tuple):
        raise ConversationError(f"`{name}` holds {kind_of(listed)}, not the schemas of functions; write a list.")
    schemas = [_tool(one, f"{name}[{place}]") for place, one in enumerate(listed)]
    names = [schema["function"]["name"] for schema in schemas]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise ConversationError(f"`{name}` has two functions of the name {twice[:40]}; give each its own.")
    return schemas


def _tool(given: Any, name: str) -> dict[str, Any]:
    if isinstance(given, str):
        given = parsed(given, name)
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConversationError(
            f"`{name}` is not the schema of a function; write an object with name, description and parameters."
        )
    function = dict(function)
    if isinstance(function.get("parameters"), str):
        function["parameters"] = parsed(function["parameters"], f"{name}.parameters")
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {} if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        raise ConversationError(f"`{name}.parameters` is not a JSON schema of an object; write one.")
    function = _without_nulls(function)
    check_values(function, name)
    outer = {key: value for key, value in given.items() if value is not None} if "function" in given else {}
    return {"type": "function", **outer, "function": function}


def _without_nulls(schema: Any) -> Any:
    """A schema without the nulls that tables write for a gap."""
    if isinstance(schema, Mapping):
        kept = {key: value for key, value in schema.items() if value is not None or key in ("default", "const")}
        return {key: value if key == "enum" else _without_nulls(value) for key, value in kept.items()}
    return [_without_nulls(each) for each in schema] if isinstance(schema, list | tuple) else schema


# ------------------------------------------------------------------------------------------------------------ messages
def _role(given: Any) -> str:
    """The role that a message names, in small letters; "" if it names none."""
    said = given.get("role", given.get("from")) if isinstance(given, Mapping) else None
    return said.strip().lower() if isinstance(said, str) else ""


def _message(given: Any, name: str) -> Message:
    if not isinstance(given, Mapping):
        raise ConversationError(f"`{name}` holds {kind_of(given)}, not a message; write an object.")
    given = {key: value for key, value in given.items() if value is not None}  # tables have null for a gap
    said = _role(given)
    if not said:
        raise ConversationError(f"`{name}` has no role; write an object with role and content.")
    role = "assistant" if said in CALLS else ROLES.get(said, str(given.get("role", given.get("from"))).strip())
    message: Message = {"role": role}
    field = "value" if "content" not in given and "value" in given else "content"
    if field == "content" and given.get("value", "") not in ("", given.get("content")):
        raise ConversationError(f"`{name}` has a content and another value; keep one.")
    if declared := next((key for key in ("tools", "functions") if given.get(key, ()) not in ((), *EMPTY)), None):
        raise ConversationError(f"`{name}.{declared}` are tools of a message; write them in the row's `tools`.")
    content, thought = _content(given.get(field), f"{name}.{field}")
    calls = calls_of(given, content, said, name)
    if said in CALLS:
        content = ""
    if content is None and not calls and not thought and not _thought(given, name):
        raise ConversationError(f"`{name}.{field}` holds null, not text; write a string.")
    message["content"] = content or ""
    if thought := _only_thought(thought, _thought(given, name), name):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    if ("reasoning_content" in message or calls) and role != "assistant":
        raise ConversationError(f"`{name}` is the {role}'s; thoughts and calls are the assistant's.")
    if "reasoning_content" in message and _INLINE_THOUGHT.match(message["content"]):
        raise ConversationError(f"`{name}` has a thought in its content and another beside it; keep one.")
    if _untrained(given, role, name):
        message["weight"] = 0
    used = {*_KNOWN, *THOUGHTS, *WEIGHTS}
    message |= {key: value for key, value in given.items() if key not in used and value not in EMPTY}
    for key in ("tool_call_id", "name"):
        if given.get(key) not in EMPTY:
            message[key] = str(given[key])
    check_values(message, name)
    return message


def _content(value: Any, name: str) -> tuple[str | None, str]:
    """(text, thought) of a content that is text, null or a list of parts."""
    if value is None or isinstance(value, str):
        return value, ""
    if not isinstance(value, list | tuple):
        raise ConversationError(f"`{name}` holds {kind_of(value)}, not text; write a string.")
    texts: list[str] = []
    thoughts: list[str] = []
    for place, part in enumerate(value):
        kind = "text" if isinstance(part, str) else part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "thinking"):
            raise ConversationError(
                f"`{name}[{place}]` is a part of type {str(kind)[:40]!r}; only text can be trained: remove the row."
            )
        text = part if isinstance(part, str) else part.get(kind)
        if isinstance(text, list | tuple):  # Mistral's thoughts have parts of their own
            text = _content(text, f"{name}[{place}].{kind}")[0]
        if not isinstance(text, str):
            raise ConversationError(f"`{name}[{place}].{kind}` holds {kind_of(text)}, not text; write a string.")
        (texts if kind == "text" else thoughts).append(text)
    return "".join(texts), "".join(thoughts)


def _thought(given: Mapping[str, Any], name: str) -> str:
    """The thought beside the content, under whatever name."""
    thoughts = {key: given[key] for key in THOUGHTS if given.get(key) not in EMPTY}
    for key, value in thoughts.items():
        if not isinstance(value, str):
            raise ConversationError(f"`{name}.{key}` holds {kind_of(value)}, not text; write a string.")
    different = [value for value in dict.fromkeys(thoughts.values()) if value.strip()]
    if len(different) > 1:
        raise ConversationError(f"`{name}` has two thoughts, {' and '.join(thoughts)}; keep one.")
    return different[0] if different else ""


def _only_thought(inside: str, beside: str, name: str) -> str:
    if inside.strip() and beside.strip() and inside != beside:
        raise ConversationError(f"`{name}` has a thought in its content and another beside it; keep one.")
    return beside or inside


def _untrained(given: Mapping[str, Any], role: str, name: str) -> bool:
    """Whether a weight or mask says that a message is not trained."""
    known = {*_KNOWN, *THOUGHTS, *WEIGHTS}
    if unclear := next((key for key in given if key not in known and _WEIGHING.search(key)), None):
        raise ConversationError(
            f"`{name}.{unclear}` is not understood; write `weight`, 1 for a message that is trained, or else 0."
        )
    weights = {key: given[key] for key in WEIGHTS if key in given}
    for key, value in weights.items():
        if not isinstance(value, int | float) or value not in (0, 1):
            raise ConversationError(f"`{name}.{key}` is {str(value)[:40]}; a message is trained, 1, or not, 0.")
        if value and role != "assistant":
            raise ConversationError(f"`{name}.{key}` is {value} for the {role}; only the assistant is trained.")
    if len(set(map(bool, weights.values()))) > 1:
        raise ConversationError(f"`{name}` is trained by one of {', '.join(weights)}, and not by another; keep one.")
    return bool(weights) and not any(weights.values())


def _list(value: Any, name: str) -> Any:
    """A value, or the list of which it is the JSON text."""
    return parsed(value, name) if isinstance(value, str) and value.lstrip().startswith("[") else value
