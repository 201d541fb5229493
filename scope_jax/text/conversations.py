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

from scope_jax.errors import UserError
from scope_jax.retrieval.rows import is_text, kind_of
from scope_jax.text.dialects.values import Malformed, from_json

Message = dict[str, Any]

ROLES: Mapping[str, str] = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model", "ai", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("function", "observation", "tool_response", "function_response", "ipython"), "tool"),
    "developer": "system",
}
CALLS = ("function_call", "tool_call")  # roles whose content is a call
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought", "thoughts")
WEIGHTS = ("weight", "loss_weight", "loss_mask", "train", "training", "trainable", "loss")
UNCLEAR = ("mask", "masked", "train_detail", "reasoning_details")  # read in several ways, or finer than messages
ANSWERS = "a result answers one of the calls of the assistant's message before it"
EMPTY: tuple[Any, ...] = (None, "", [], {})
_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")  # what Mistral's templates want
_INLINE_THOUGHT = re.compile(r"\s*<think>")
_KNOWN = {"role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", "name"}


class ConversationError(UserError):
    """A conversation that is not understood: one sentence that names the field, and what to do."""


def call_id(place: int) -> str:
    """The identifier of a message's call; Mistral's templates want nine letters and digits."""
    return f"call{place:05d}"


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
    read = [_message(one, f"{name}[{place}]") for place, one in enumerate(listed)]
    if tools is not None:
        for message in read:
            _drop_gaps(message, tools)
    return _with_results(read, name)


def tools(value: Any, name: str) -> list[dict[str, Any]] | None:
    """The canonical schemas of functions, {"type": "function", "function": {…}}, of a list of schemas or its JSON text;
    None if there are none. Raises ConversationError."""
    listed = _list(value, name)
    if listed in EMPTY:
        return None
    if not isinstance(listed, list | tuple):
        raise ConversationError(f"`{name}` holds {kind_of(listed)}, not the schemas of functions; write a list.")
    return [_tool(one, f"{name}[{place}]") for place, one in enumerate(listed)]


def _tool(given: Any, name: str) -> dict[str, Any]:
    if isinstance(given, str):
        given = _parsed(given, name)
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConversationError(
            f"`{name}` is not the schema of a function; write an object with name, description and parameters."
        )
    function = dict(function)
    if isinstance(function.get("parameters"), str):
        function["parameters"] = _parsed(function["parameters"], f"{name}.parameters")
    if not isinstance(function.get("parameters", {}) or {}, Mapping):
        raise ConversationError(f"`{name}.parameters` is not a JSON schema; write an object.")
    _check_text(function, name)
    outer = {key: value for key, value in given.items() if value is not None} if "function" in given else {}
    return {"type": "function", **outer, "function": function}


# ------------------------------------------------------------------------------------------------------------ messages
def _message(given: Any, name: str) -> Message:
    if not isinstance(given, Mapping):
        raise ConversationError(f"`{name}` holds {kind_of(given)}, not a message; write an object.")
    given = {key: value for key, value in given.items() if value is not None}  # tables have null for a gap
    said = given.get("role", given.get("from"))
    if not isinstance(said, str) or not said.strip():
        raise ConversationError(f"`{name}` has no role; write an object with role and content.")
    role = ROLES.get(said.strip().lower(), said.strip())
    message: Message = {"role": role}
    field = "value" if "content" not in given and "value" in given else "content"
    content, thought = _content(given.get(field), f"{name}.{field}")
    calls = _calls(given, content, said, name)
    if said.strip().lower() in CALLS:
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
        if isinstance(given.get(key), str) and given[key]:
            message[key] = given[key]
    _check_text(message, name)
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
    if unclear := next((key for key in UNCLEAR if given.get(key) not in EMPTY), None):
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


# --------------------------------------------------------------------------------------------------------------- calls
def _calls(given: Mapping[str, Any], content: str | None, role: str, name: str) -> list[dict[str, Any]]:
    """The calls of a message: `tool_calls`, the older `function_call`, or ShareGPT's role of a call."""
    listed, field = given.get("tool_calls"), "tool_calls"
    if listed in EMPTY and given.get("function_call") not in EMPTY:
        listed, field = given["function_call"], "function_call"
    if role.strip().lower() in CALLS:
        listed, field = content, "value" if "value" in given else "content"
    if listed in EMPTY and field == "tool_calls":
        return []
    if isinstance(listed, str):
        listed = _parsed(listed, f"{name}.{field}")
    if isinstance(listed, Mapping):
        listed = [listed]
    if not isinstance(listed, list | tuple) or not listed:
        raise ConversationError(f"`{name}.{field}` holds {kind_of(listed)}, not calls; write a list of objects.")
    calls = [_call(one, f"{name}.{field}[{place}]", place) for place, one in enumerate(listed)]
    ids = [call["id"] for call in calls]
    if len(set(ids)) < len(ids):
        raise ConversationError(f"two calls of `{name}.{field}` have the same id; give each its own.")
    return calls


def _call(given: Any, name: str, place: int) -> dict[str, Any]:
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConversationError(f"`{name}` is not a call; write an object with the function's name and arguments.")
    if given.get("type") not in (None, "function"):
        raise ConversationError(f"`{name}` is of type {str(given['type'])[:40]!r}; only functions can be called.")
    arguments = function.get("arguments", function.get("parameters"))
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    why = ""
    if isinstance(arguments, str):
        try:
            arguments = from_json(arguments)
        except Malformed as error:
            why = f" ({error})"
    if not isinstance(arguments, Mapping):
        raise ConversationError(f"`{name}`: the arguments are no JSON object{why}; correct them.")
    known = given.get("id")
    return {
        "id": known if isinstance(known, str) and known else call_id(place),
        "type": "function",
        "function": {"name": function["name"], "arguments": dict(arguments)},
    }


def _drop_gaps(message: Message, tools: Sequence[Mapping[str, Any]]) -> None:
    """Leaves out arguments that are null and that the function does not have."""
    known = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    for call in message.get("tool_calls", ()):
        function = call["function"]
        properties = known.get(function["name"], {}).get("properties")
        if isinstance(properties, Mapping):
            function["arguments"] = {
                key: value for key, value in function["arguments"].items() if value is not None or key in properties
            }


def _with_results(read: Sequence[Message], name: str) -> list[Message]:
    """The messages with the results of each message's calls in the order of the calls, which they name."""
    ordered: list[Message] = []
    asked: Message = {}
    results: dict[str, Message] = {}
    for place, message in enumerate(read):
        if message["role"] == "tool":
            results[f"{name}[{place}]"] = message
            continue
        ordered += _answers(asked, results)
        ordered.append(message)
        asked, results = message, {}
    return [*ordered, *_answers(asked, results)]


def _answers(asked: Message, results: Mapping[str, Message]) -> list[Message]:
    """The results, by their names, of the calls of a message, which get ids that every template takes."""
    calls = asked.get("tool_calls", [])
    ids = [call["id"] for call in calls]
    if not calls:  # its calls are in its text
        if named := next((where for where, result in results.items() if "tool_call_id" in result), None):
            raise ConversationError(f"`{named}.tool_call_id`: {ANSWERS}.")
        return [*results.values()]
    if not all(map(_CALL_ID.fullmatch, ids)):
        for place, call in enumerate(calls):
            call["id"] = call_id(place)
    answers: dict[int, Message] = {}
    for order, (where, result) in enumerate(results.items()):
        id = result.get("tool_call_id")
        if order >= len(calls):
            raise ConversationError(f"`{where}` is one more result than there are calls; {ANSWERS}.")
        if id is not None and id not in ids:
            raise ConversationError(f"`{where}.tool_call_id` is {id[:40]!r}, which no call has; {ANSWERS}.")
        number = order if id is None else ids.index(id)
        if number in answers:
            raise ConversationError(f"`{where}` answers a call that has a result already; {ANSWERS}.")
        function = calls[number]["function"]
        answers[number] = {**result, "name": function["name"], "tool_call_id": calls[number]["id"]}
    return [answers[number] for number in sorted(answers)]


# ---------------------------------------------------------------------------------------------------------------- text
def _list(value: Any, name: str) -> Any:
    """A value, or the list of which it is the JSON text."""
    return _parsed(value, name) if isinstance(value, str) and value.lstrip().startswith("[") else value


def _parsed(text: str, name: str) -> Any:
    """The value of a JSON text."""
    try:
        return from_json(text, around=8)
    except Malformed as error:
        raise ConversationError(f"`{name}` holds text that is no JSON object or list: {error}.") from None


def _check_text(value: Any, name: str) -> None:
    """Raises ConversationError for half of a surrogate pair anywhere in a value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str) and not is_text(one):
            raise ConversationError(f"`{name}` holds half of a surrogate pair, not text; fix or remove the row.")
        if isinstance(one, Mapping):
            waiting += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one
