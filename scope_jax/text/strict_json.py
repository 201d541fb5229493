"""JSON as its standard has it, where Python's module takes more, and the kinds of its values in words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

DEEPEST = 500  # levels of lists and objects: Python versions differ in how many they read


class RefusedJSON(ValueError):
    """Something that Python's json module accepts and JSON does not allow; the message ends a sentence."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        twice = repeated(name for name, _ in pairs)
        raise RefusedJSON(f"holds the key {twice!r} twice; keep one")
    return row


def repeated(names: Iterable[str]) -> str | None:
    """The first name that comes a second time; None if all differ."""
    known: set[str] = set()
    return next((name for name in names if name in known or known.add(name)), None)


def _constant(name: str) -> float:
    raise RefusedJSON(f"holds {name}, which is not JSON; write a number or null")


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise RefusedJSON(f"holds the number {digits[:20]}, which is too large; write a smaller one")
    return number


class _Strict(json.JSONDecoder):
    def decode(self, s: str, *where: Any) -> Any:
        value = super().decode(s, *where)
        if s.count("[") + s.count("{") > DEEPEST and _deeper(value, DEEPEST):
            raise RecursionError("nested too deeply")
        return value


def _deeper(value: Any, levels: int) -> bool:
    """Whether a value has more levels of lists and objects."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for one in layer
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not layer:
            return False
    return True


# raises ValueError for duplicate keys, NaN, and numbers too large for a float, RecursionError for too many levels
STRICT_JSON = _Strict(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)


def is_text(string: str) -> bool:
    """False for a string that UTF-8 cannot encode: one with a lone surrogate."""
    try:
        string.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def kind_of(value: Any) -> str:
    """The type of a JSON value, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"
