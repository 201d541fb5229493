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

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from scope_jax.errors import UserError
from scope_jax.retrieval.rows import is_text, kind_of
from scope_jax.text.dialects.values import Malformed, from_json

Message = dict[str, Any]

ROLES: Mapping[str, str] = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model", "ai"), "assistant"),
    **dict.fromkeys(("function", "observation", "tool_response", "ipython"), "tool"),
    **dict.fromkeys(("function_response", "function-response"), "tool"),
    "developer": "system",
}
CALLS = ("function_call", "function-call", "tool_call")  # roles whose content is a call
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought", "thoughts", "think")
WEIGHTS = ("weight", "loss_weight", "loss_mask", "train", "training", "trainable", "loss")
_WEIGHING = re.compile(r"mask|train|weight|loss|ignore|reasoning", re.IGNORECASE)  # keys of messages that must be known
ANSWERS = "a result answers one of the calls of the assistant's message before it"
EMPTY: tuple[Any, ...] = (None, "", [], {})
_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")  # what Mistral's templates want
_INLINE_THOUGHT = re.compile(r"\s*<think>")
_KNOWN = {"role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", "name"}
_OF_CALLS = {"id", "type", "function", "index", "name", "arguments", "parameters", "parsed_arguments"}
_READ = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name", "weight")


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
        _finish_calls(message, tools, name)
    return _with_results(read, name)


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
        given = _parsed(given, name)
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConversationError(
            f"`{name}` is not the schema of a function; write an object with name, description and parameters."
        )
    function = dict(function)
    if isinstance(function.get("parameters"), str):
        function["parameters"] = _parsed(function["parameters"], f"{name}.parameters")
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {} if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        raise ConversationError(f"`{name}.parameters` is not a JSON schema of an object; write one.")
    function = _without_nulls(function)
    _check_values(function, name)
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
    calls = _calls(given, content, said, name)
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
    _check_values(message, name)
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


# --------------------------------------------------------------------------------------------------------------- calls
def _calls(given: Mapping[str, Any], content: str | None, role: str, name: str) -> list[dict[str, Any]]:
    """The calls of a message: `tool_calls`, the older `function_call`, or ShareGPT's role of a call."""
    forms = {field: given.get(field) for field in ("tool_calls", "function_call")}
    if role in CALLS:
        forms["value" if "value" in given else "content"] = content or "null"
    forms = {field: value for field, value in forms.items() if value not in EMPTY}
    if not forms:
        return []
    if len(forms) > 1:
        raise ConversationError(f"`{name}` has calls in {' and in '.join(forms)}; keep one.")
    (field, listed), *_ = forms.items()
    if isinstance(listed, str):
        listed = _parsed(listed, f"{name}.{field}")
    if isinstance(listed, Mapping):
        listed = [listed]
    if not isinstance(listed, list | tuple) or not listed:
        raise ConversationError(f"`{name}.{field}` holds {kind_of(listed)}, not calls; write a list of objects.")
    return [_call(one, f"{name}.{field}[{place}]") for place, one in enumerate(listed)]


def _call(given: Any, name: str) -> dict[str, Any]:
    """A call; its id is "" where it has none."""
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConversationError(f"`{name}` is not a call; write an object with the function's name and arguments.")
    if given.get("type") not in (None, "function"):
        raise ConversationError(f"`{name}` is of type {str(given['type'])[:40]!r}; only functions can be called.")
    fields = {**given, **function}
    if strange := next((key for key, value in fields.items() if key not in _OF_CALLS and value not in EMPTY), None):
        raise ConversationError(f"`{name}.{strange}` is not understood; a call has a name and `arguments`.")
    id = given.get("id")
    return {
        "id": "" if id in EMPTY else str(id),
        "type": "function",
        "function": {"name": function["name"], "arguments": _arguments(given, function, name)},
    }


def _arguments(given: Mapping[str, Any], function: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arguments of a call, wherever they stand."""
    places = [one[key] for one in (function, given) for key in ("arguments", "parameters") if key in one]
    different = [one for place, one in enumerate(places) if one not in EMPTY and one not in places[:place]]
    if len(different) > 1:
        raise ConversationError(f"`{name}` has arguments in two places; keep one.")
    arguments = different[0] if different else {}
    why = ""
    if isinstance(arguments, str):
        try:
            arguments = from_json(arguments) if arguments.strip() else {}
        except Malformed as error:
            why = f" ({error})"
    if not isinstance(arguments, Mapping):
        raise ConversationError(f"`{name}`: the arguments are no JSON object{why}; correct them.")
    return dict(arguments)


def _finish_calls(message: Message, tools: Sequence[Mapping[str, Any]] | None, name: str) -> None:
    """Ids for all calls, and arguments without the gaps of tables. Raises ConversationError for an id that is twice."""
    known = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools or ()}
    calls = message.get("tool_calls", ())
    ids = [call["id"] for call in calls if call["id"]]
    if len(set(ids)) < len(ids):
        raise ConversationError(f"two calls of a message in `{name}` have the same id; give each its own.")
    for place, call in enumerate(calls):
        call["id"] = call["id"] or call_id(place)
        function = call["function"]
        function["arguments"] = _without_gaps(function["arguments"], known.get(function["name"]))


def _without_gaps(value: Any, schema: Any) -> Any:
    """A value without the nulls of names that its schema does not have."""
    if isinstance(value, list | tuple):
        items = schema.get("items") if isinstance(schema, Mapping) else None
        return [_without_gaps(each, items) for each in value]
    if not isinstance(value, Mapping):
        return value
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return dict(value)
    kept = {key: each for key, each in value.items() if each is not None or key in properties}
    return {key: _without_gaps(each, properties.get(key)) for key, each in kept.items()}


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
        if order >= len(calls):
            raise ConversationError(f"`{where}` is one more result than there are calls; {ANSWERS}.")
        number = _answered(result, where, calls, ids, answers)
        call = calls[number]
        answers[number] = {**result, "name": call["function"]["name"], "tool_call_id": call["id"]}
    return [answers[number] for number in sorted(answers)]


def _answered(
    result: Message,
    where: str,
    calls: Sequence[Mapping[str, Any]],
    ids: Sequence[str],
    answers: Mapping[int, Message],
) -> int:
    """The number of the call that a result answers: by its id, else by its name, else the first that has no result.

    ids: of the calls, as the data has them. answers: results so far.
    """
    id, name = result.get("tool_call_id"), result.get("name")
    if id is None and str(result.get("id")) in ids:
        id = str(result["id"])
    named = [number for number, call in enumerate(calls) if name in (None, call["function"]["name"])]
    if id is not None and id not in ids:
        raise ConversationError(f"`{where}.tool_call_id` is {id[:40]!r}, which no call has; {ANSWERS}.")
    if not named or (id is not None and ids.index(id) not in named):
        raise ConversationError(f"`{where}` is a result of {str(name)[:40]}, which its call does not name; {ANSWERS}.")
    free = [number for number in named if number not in answers]
    number = ids.index(id) if id is not None else (free or named)[0]
    if number in answers:
        raise ConversationError(f"`{where}` answers a call that has a result already; {ANSWERS}.")
    return number


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


def _check_values(value: Any, name: str) -> None:
    """Raises ConversationError for what JSON does not have anywhere in a value: half a character, a date, NaN."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str) and not is_text(one):
            raise ConversationError(f"`{name}` holds half of a surrogate pair, not text; fix or remove the row.")
        if isinstance(one, float) and not math.isfinite(one):
            raise ConversationError(f"`{name}` holds {one}, which is no number of JSON; fix or remove the row.")
        if not isinstance(one, str | int | float | bool | None | Mapping | list | tuple):
            raise ConversationError(f"`{name}` holds {kind_of(one)}, which JSON does not have; write it as text.")
        if isinstance(one, Mapping):
            waiting += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one
