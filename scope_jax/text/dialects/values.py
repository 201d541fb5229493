"""Arguments of calls as text: strict JSON, and the literals of function calls. A policy's text is never evaluated.

Everything takes time linear in the text. Values are text, numbers, booleans, null, lists and objects, nested up to
`DEPTH`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from scope_jax.text.strict_json import STRICT_JSON, is_text

DEPTH = 32  # lists and objects around a part of an argument

_SPACE = re.compile(r"\s*+")
_DOUBLE, _SINGLE = r'"[^"\\]*+(?:\\.[^"\\]*+)*+', r"'[^'\\]*+(?:\\.[^'\\]*+)*+"
_STRING = re.compile(rf"{_DOUBLE}\"|{_SINGLE}'", re.DOTALL)
_NESTING = re.compile(rf'{_DOUBLE}"?+|[\[{{]|[\]}}]', re.DOTALL)  # a text that is never closed reaches to the end
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?+([eE][+-]?[0-9]++)?+(?![\w.])")
_WORD = re.compile(r"[^\W\d]\w*+")
_KEY = re.compile(r"[^\W\d][\w-]*+")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}


class Malformed(ValueError):
    """Why a call cannot be read, as the end of a sentence for the policy."""


def json_of(value: Any) -> str:
    """A value as JSON that holds no tag: every < is escaped. Raises ValueError for NaN and infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def from_json(text: str, around: int = 0) -> Any:
    """The value of a JSON text: no repeated key, no NaN, only characters that can be written; Malformed otherwise.

    around: how many objects there may be around the arguments, in addition to `DEPTH`.
    """
    depth = 0
    for mark in _NESTING.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark[0], 0)
        if depth > DEPTH + around:
            raise Malformed(f"it is nested deeper than {DEPTH}")
    try:
        value = STRICT_JSON.decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"it is not JSON ({error.msg} at character {error.pos + 1})") from None
    except ValueError as error:  # what JSON does not allow, and an integer with more digits than Python reads
        refused = str(error).startswith("holds ")
        raise Malformed(
            f"it {str(error).partition(';')[0] if refused else 'holds a number with too many digits'}"
        ) from None
    check_characters(text, value)
    return value


def arguments(text: str) -> dict[str, Any]:
    """The arguments of a call, written as a JSON object. Raises Malformed."""
    value = from_json(text, around=1)
    if not isinstance(value, dict):
        raise Malformed("a JSON object with its arguments is needed")
    return value


def check_characters(text: str, value: Any) -> None:
    """Raises Malformed if a value, of which `text` is the source, holds half a character: a lone surrogate."""
    if "\\u" in text and not is_text(json.dumps(value, ensure_ascii=False)):
        raise Malformed("it holds half a character (a lone surrogate)")


def name_of(key: str) -> str:
    """The name of an argument before its =, quoted if it is not a word."""
    return key if _KEY.fullmatch(key) else json_of(key)


def literal(text: str, at: int, depth: int = 0) -> tuple[Any, int]:
    """(value, end) of the literal that begins at `at`: text in either quotes, JSON's numbers and words or Python's
    words, lists and objects. Raises Malformed."""
    head = text[at : at + 1]
    if head in ("[", "{"):
        if depth == DEPTH:
            raise Malformed(f"it is nested deeper than {DEPTH}")
        return _list(text, at + 1, depth) if head == "[" else _object(text, at + 1, depth)
    if head in ('"', "'"):
        return quoted(text, at)
    if number := _NUMBER.match(text, at):
        return _number(number), number.end()
    word = _WORD.match(text, at)
    if word is None or word[0] not in _WORDS:
        raise Malformed(f"at character {at + 1} a value is needed: text in quotes, a number, true, null, [ or {{")
    return _WORDS[word[0]], word.end()


def quoted(text: str, at: int) -> tuple[str, int]:
    """(value, end) of the text in quotes that begins at `at`. An unknown escape stands for the escaped character.

    A lone surrogate is left to `check_characters`.
    """
    string = _STRING.match(text, at)
    if string is None:
        raise Malformed("a quote is not closed")
    inside = string[0][1:-1]
    if "\\" in inside:
        # Two escapes may form one surrogate pair.
        inside = _ESCAPE.sub(_character, inside).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return inside, string.end()


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else _CONTROL.get(escape[3], escape[3])


def _number(number: re.Match[str]) -> int | float:
    if number[1] is None and number[2] is None:
        try:
            return int(number[0])
        except ValueError:
            raise Malformed("a number has too many digits") from None
    value = float(number[0])
    if math.isinf(value):
        raise Malformed("a number is too large")
    return value


def key_and_value(text: str, at: int, sign: str, depth: int, key: Callable[[str, int], tuple[str, int]]) -> Any:
    """(key, value, end) of `key sign value` at `at`."""
    name, at = key(text, at)
    at = skip(text, at)
    if text[at : at + 1] != sign:
        raise Malformed(f"after {json_of(name[:40])} a {sign} is needed")
    value, at = literal(text, skip(text, at + 1), depth)
    return name, value, at


def argument_name(text: str, at: int) -> tuple[str, int]:
    """(name, end) of an argument's name at `at`: a word, or any text in quotes."""
    if word := _KEY.match(text, at):
        return word[0], word.end()
    if text[at : at + 1] in ('"', "'"):
        return quoted(text, at)
    raise Malformed(f"at character {at + 1} the name of an argument is needed")


def skip(text: str, at: int) -> int:
    """The first place from `at` that is not white space."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def items(text: str, at: int, close: str, read: Callable[[int], int]) -> int:
    """The end of a list that ends with `close`: `read` takes the place of an item and returns its end. A comma may
    follow the last item."""
    at = skip(text, at)
    while text[at : at + 1] != close:
        at = skip(text, read(at))
        if text[at : at + 1] == ",":
            at = skip(text, at + 1)
        elif text[at : at + 1] != close:
            raise Malformed(f"at character {at + 1} a comma or {close} is needed")
    return at + 1


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []

    def read(place: int) -> int:
        value, end = literal(text, place, depth + 1)
        values.append(value)
        return end

    return values, items(text, at, "]", read)


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}

    def read(place: int) -> int:
        if text[place : place + 1] not in ('"', "'"):
            raise Malformed(f"at character {place + 1} a key in quotes is needed")
        name, value, end = key_and_value(text, place, ":", depth + 1, quoted)
        put(values, name, value)
        return end

    return values, items(text, at, "}", read)


def put(values: dict[str, Any], name: str, value: Any) -> None:
    """Adds a value under a new name. Raises Malformed if it is there already."""
    if name in values:
        raise Malformed(f"it holds {json_of(name[:40])} twice")
    values[name] = value
