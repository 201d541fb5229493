"""The calls of functions in conversations, and their results, as data sets and protocols write them.

A canonical call is {"id", "type": "function", "function": {"name", "arguments": object}}; a result names the call that
it answers. What is not understood is an error; nothing is dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from scope_jax.errors import UserError
from scope_jax.text.dialects import values
from scope_jax.text.dialects.values import Malformed, from_json
from scope_jax.text.strict_json import is_text, kind_of

Message = dict[str, Any]

CALLS = ("function_call", "function-call", "tool_call")  # roles whose content is a call
ANSWERS = "a result answers one of the calls of the assistant's message before it"
EMPTY: tuple[Any, ...] = (None, "", [], {})
_OF_CALLS = {"id", "type", "function", "index", "name", "arguments", "parameters", "parsed_arguments"}
_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")  # what Mistral's templates want


class ConversationError(UserError):
    """A conversation that is not understood: one sentence that names the field, and what to do."""


def call_id(place: int) -> str:
    """The identifier of a message's call; Mistral's templates want nine letters and digits."""
    return f"call{place:05d}"


def message_of(calls: Sequence[tuple[str, Any]], content: str = "") -> Message:
    """A canonical message of the assistant with calls, given by names and arguments."""
    shown = [
        {"id": call_id(place), "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": shown}


def calls_of(given: Mapping[str, Any], content: str | None, role: str, name: str) -> list[dict[str, Any]]:
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
        listed = parsed(listed, f"{name}.{field}")
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
            arguments = values.arguments(arguments) if arguments.strip() else {}
        except Malformed as error:
            why = f" ({error})"
    if not isinstance(arguments, Mapping):
        raise ConversationError(f"`{name}`: the arguments are no JSON object{why}; correct them.")
    return dict(arguments)


def finish(message: Message, tools: Sequence[Mapping[str, Any]] | None, name: str) -> None:
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


def with_results(read: Sequence[Message], name: str) -> list[Message]:
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


# ------------------------------------------------------------------------------------------------------------- values
def parsed(text: str, name: str) -> Any:
    """The value of a JSON text."""
    try:
        return from_json(text, around=8)
    except Malformed as error:
        raise ConversationError(f"`{name}` holds text that is no JSON object or list: {error}.") from None


def check_values(value: Any, name: str) -> None:
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
