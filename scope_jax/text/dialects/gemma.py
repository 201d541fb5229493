"""The calls of Gemma 4: an object without quotes around its keys, whose texts have quotes that are a token.

    <|tool_call>call:search{query:<|"|>Danube<|"|>,limit:3}<tool_call|><|tool_call>call:clock{}<tool_call|>

The results follow in the same message of the model: <|tool_response>response:search{value:<|"|>…<|"|>}<tool_response|>.
"""

from __future__ import annotations

import json
import re
from typing import Any

from scope_jax.errors import UserError
from scope_jax.text.dialects import values
from scope_jax.text.dialects.formats import Call, malformed
from scope_jax.text.dialects.values import Malformed, json_of

OPENING, CLOSING, QUOTE, RESULT = "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>"
_MARK = re.compile(r"<\|tool_call>|<tool_call\|>")
_CALL = re.compile(r"\s*+call:([^\s{}<]++)\s*+(\{.*\})\s*+", re.DOTALL)
# Texts in either quotes, numbers, words with or without a colon; what is left is punctuation.
_PIECE = re.compile(
    r'<\|"\|>(?:(?P<text>.*?)<\|"\|>|(?P<open>))|"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9][\w.+-]*+|(?P<word>[^\W\d][\w.-]*+)(?P<key>\s*+:)?',
    re.DOTALL,
)
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_KEY = re.compile(r"[^\W\d][\w.-]*")
_NAME = re.compile(r"[^\s{}<]+")


def calls(text: str) -> list[Call]:
    """Every call of a turn, valid or malformed. A call begins at the last opening mark before its closing one; one that
    is not closed reaches to the next, or to the end."""
    found: list[Call] = []
    marks = [*_MARK.finditer(text)]
    for place, mark in enumerate(marks):
        if mark[0] == CLOSING:
            continue
        following = marks[place + 1] if place + 1 < len(marks) else None
        if following is None or following[0] == OPENING:
            end = len(text) if following is None else following.start()
            found.append(malformed(f"{CLOSING[1:-2]} is not closed", mark.start(), end))
        else:
            found.append(_single(text[mark.end() : following.start()], mark.start(), following.end()))
    return found


def _single(content: str, start: int, end: int) -> Call:
    call = _CALL.fullmatch(content)
    if call is None:
        return malformed("call:name{argument:value} is needed", start, end)
    try:
        return Call(call[1], values.arguments(_PIECE.sub(_as_json, call[2])), "", start, end, end, start)
    except Malformed as error:
        return malformed(str(error), start, end, call[1])


def _as_json(piece: re.Match[str]) -> str:
    if piece["text"] is not None:
        return json.dumps(piece["text"], ensure_ascii=False)
    if piece["open"] is not None:
        raise Malformed("a quote is not closed")
    if piece["word"] is None:
        return piece[0]
    if piece["key"] is not None:
        return f"{json.dumps(piece['word'], ensure_ascii=False)}:"
    if piece["word"] not in _WORDS:
        raise Malformed(f"{json_of(piece['word'][:40])} is no value; text stands between quotes")
    return _WORDS[piece["word"]]


def unread(written: str) -> str:
    """What templates, which write the braces, get as the arguments of a malformed call."""
    return written.partition("{")[2].rpartition("}")[0]


def written(call: Call) -> str:
    """A call as the model writes it. Raises UserError for a name that it cannot have."""
    if not _NAME.fullmatch(call.name):
        raise UserError(f"The name {call.name!r} cannot be written in the format gemma; rename it.")
    return f"{OPENING}call:{call.name}{_written(dict(call.arguments))}{CLOSING}"


def _written(value: Any) -> str:
    """A value; a text that holds a mark has JSON's quotes."""
    if isinstance(value, str) and "<|" not in value and "|>" not in value:
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_key(key)}:{_written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return json_of(value)


def _key(key: str) -> str:
    return key if _KEY.fullmatch(key) else json_of(key)
