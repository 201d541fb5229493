"""The calls of Mistral's models: a mark, the name and a JSON object; older ones have a list of objects instead.

    [TOOL_CALLS]search[ARGS]{"query": "Danube"}[TOOL_CALLS]clock[ARGS]{}
    [TOOL_CALLS] [{"name": "search", "arguments": {"query": "Danube"}, "id": "VvvODy9mT"}]

Between the name and [ARGS] there may be [CALL_ID] and an identifier. Calls end the turn.
"""

from __future__ import annotations

import re
from dataclasses import replace

from scope_jax.errors import UserError
from scope_jax.text.dialects import values
from scope_jax.text.dialects.formats import Call, malformed
from scope_jax.text.dialects.values import Malformed, json_of

MARK = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*+([^\s\[\]{}]++)\s*+(?:\[CALL_ID\]\s*+\w*+\s*+)?+(?:\[ARGS\])?+\s*+(\{.*)", re.DOTALL)
_NAME = re.compile(r"[^\s\[\]{}]+")


def calls(text: str) -> list[Call]:
    """Every call of a turn, valid or malformed: each part between marks is one, or a list of them."""
    found: list[Call] = []
    start = text.find(MARK)
    while start >= 0:
        following = text.find(MARK, start + len(MARK))
        end = len(text) if following < 0 else following
        end = len(text[:end].rstrip())
        for call in _part(text[start + len(MARK) : end]):
            found.append(replace(call, start=start, end=end, closed=end, opened=start))
        start = following
    return found


def _part(content: str) -> list[Call]:
    named = _NAMED.fullmatch(content)
    try:
        if named is not None:
            return [Call(named[1], values.arguments(named[2]))]
        if not content.lstrip().startswith("["):
            raise Malformed("a name, [ARGS] and a JSON object are needed, or a list of objects")
        listed = values.from_json(content, around=3)
        if not listed:
            raise Malformed("the list of calls is empty")
        return [_listed(one) for one in listed]
    except Malformed as error:
        return [malformed(str(error), 0, 0, named[1] if named else "")]


def _listed(value: object) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return malformed('an object with "name" and "arguments" is needed', 0, 0)
    if not isinstance(value.get("arguments"), dict):
        return malformed('"arguments" must be an object', 0, 0, value["name"])
    return Call(value["name"], value["arguments"])


def unread(written: str) -> str:
    """What templates get as the arguments of a malformed call."""
    return "{" + written.partition("{")[2].rpartition("}")[0] + "}"


def written(call: Call) -> str:
    """A call as newer models write it. Raises UserError for a name that it cannot have."""
    if not _NAME.fullmatch(call.name):
        raise UserError(f"The name {call.name!r} cannot be written in the format mistral; rename it.")
    arguments = json_of(dict(call.arguments)).replace(MARK, rf"\u005b{MARK[1:]}")
    return f"{MARK}{call.name}[ARGS]{arguments}"
