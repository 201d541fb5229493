"""JSON as an answer: the last value of a text, compared as data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from scope_jax.text.objects import opening
from scope_jax.text.strict_json import STRICT_JSON

TRIES = 64  # brackets of a text at which a value may end
_MARK = re.compile(r'(?<!\\)(?:\\\\)*+["{}\[\]]')  # an unescaped quote or bracket
_FENCE = re.compile(r"```[\w-]*\n(.*?)\n?```", re.DOTALL)
_NUMBER = (int, float)


class NoValue(ValueError):
    """A text has no JSON value."""


def json_equal(prediction: str, golds: Sequence[str]) -> bool:
    """True if the last value of `prediction` equals one of the golds, each of which is JSON as a whole.

    Equal as data: objects whatever the order of their keys, lists in their order, 1 and 1.0; true is not 1.
    """
    try:
        said = last_value(prediction)
    except NoValue:
        return False
    return any(is_json(gold) and same(said, value_of(gold)) for gold in golds)


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        value_of(text)
    except NoValue:
        return False
    return True


def value_of(text: str) -> Any:
    """The value that a text is. Raises NoValue, also for NaN and for an object that has a key twice."""
    try:
        return STRICT_JSON.decode(text.strip())
    except (ValueError, RecursionError):  # not JSON, a number of too many digits; nested too deeply
        raise NoValue from None


def last_value(text: str) -> Any:
    """The value that `text`, its last code fence or its last line is, or else the last object or list in it, whatever
    stands around.

    A bracket that belongs to no value, as in "see [1", is passed over; an object that is not JSON is passed over as a
    whole, never read in parts. Raises NoValue.
    """
    fences = _FENCE.findall(text)
    for whole in (text, *fences[-1:], text.rstrip().rpartition("\n")[2]):
        if is_json(whole):
            return value_of(whole)
    end = len(text)
    for _ in range(TRIES):
        end = max(text.rfind("}", 0, end), text.rfind("]", 0, end)) + 1
        if not end:
            break
        start = opening(text, end, _MARK)
        if start is None:
            end -= 1
            continue
        if is_json(text[start:end]):
            return value_of(text[start:end])
        end = start
    raise NoValue


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal as data."""
    waiting = [(one, other)]  # not by recursion: values may be nested as deep as Python calls
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            waiting += [(one[key], other[key]) for key in one]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            waiting += zip(one, other, strict=True)
        elif not _same_scalar(one, other):
            return False
    return True


def _same_scalar(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    numbers = isinstance(one, _NUMBER) and isinstance(other, _NUMBER)
    return (numbers or type(one) is type(other)) and one == other
