"""Finds the searches of a turn and their positions, in any dialect. Text from a policy is never evaluated as code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from scope_jax.retrieval.rows import is_text
from scope_jax.text.dialects import Dialect

_QUOTED = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|\'[^\'\\]*+(?:\\.[^\'\\]*+)*+\''
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}


class Call(NamedTuple):
    """A search at text[start:end] and its query; the query is None if the search is malformed."""

    query: str | None
    start: int
    end: int

    @property
    def valid(self) -> bool:
        return self.query is not None


def calls(text: str, dialect: Dialect) -> list[Call]:
    """Every search of `text`, valid or malformed, in order.

    A pair ends at the first closing tag and begins at the last opening tag before it. Malformed searches are: an
    unclosed opening tag (it extends to the next one, or to the end of the text), a payload that cannot be parsed, a
    call of another function, an empty query. A closing tag without an opening tag is ignored.
    """
    found: list[Call] = []
    opened: re.Match[str] | None = None
    for tag in re.finditer(f"{re.escape(dialect.open)}|{re.escape(dialect.close)}", text):
        if tag[0] == dialect.open:
            if opened is not None:
                found.append(Call(None, opened.start(), tag.start()))
            opened = tag
        elif opened is not None:
            found += _read(text, opened, tag, dialect)
            opened = None
    if opened is not None:
        found.append(Call(None, opened.start(), len(text)))
    return found


def _read(text: str, opened: re.Match[str], closed: re.Match[str], dialect: Dialect) -> list[Call]:
    """The searches of one closed pair: one, or any number for expressions."""
    payload = text[opened.end() : closed.start()]
    start, end = opened.start(), closed.end()
    match dialect.call.payload:
        case "text":
            return [Call(_query(payload), start, end)]
        case "json":
            return [Call(_query(_json_argument(payload, dialect)), start, end)]
        case "expression":
            several = list(_expressions(payload, dialect))
            if len(several) == 1:
                return [Call(_query(several[0].query), start, end)]
            return [Call(_query(c.query), opened.end() + c.start, opened.end() + c.end) for c in several]


def _query(value: str | None) -> str | None:
    """The stripped query; None if it is blank or cannot be encoded (an unpaired surrogate)."""
    return value.strip() if value is not None and value.strip() and is_text(value) else None


def _json_argument(payload: str, dialect: Dialect) -> str | None:
    if not payload.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("name") != dialect.call.name:
        return None
    arguments = value.get("arguments")
    query = arguments.get(dialect.call.argument) if isinstance(arguments, dict) else None
    return query if isinstance(query, str) else None


@cache
def _expression(name: str, argument: str) -> re.Pattern[str]:
    return re.compile(
        rf"\s*+{re.escape(name)}\s*+\(\s*+{re.escape(argument)}\s*+=\s*+({_QUOTED})\s*+,?+\s*+\)\s*+[;,]?+\s*+",
        re.DOTALL,
    )


def _expressions(payload: str, dialect: Dialect) -> Iterator[Call]:
    """The calls of a payload, with positions in it; text that is not such a call makes the rest malformed."""
    pattern, at = _expression(dialect.call.name or "", dialect.call.argument or ""), 0
    while match := pattern.match(payload, at):
        yield Call(_unescape(match[1][1:-1]), match.start(), match.end())
        at = match.end()
    if at < len(payload) or at == 0:
        yield Call(None, at, len(payload))


def _unescape(text: str) -> str:
    """The characters of a quoted string; an unknown escape stands for the escaped character."""
    if "\\" not in text:
        return text

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return chr(int(code, 16)) if code else _CONTROL.get(match[3], match[3])

    # Two escapes may form one surrogate pair; an unpaired surrogate makes the query malformed.
    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
