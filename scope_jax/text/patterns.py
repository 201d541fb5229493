"""Regular expressions of other people's schemas, in time linear in the text, by RE2.

JSON Schema takes its patterns from ECMA-262; RE2 reads most of that syntax, and the rest is rewritten here: escapes,
Unicode properties, what white space and a line end are. Lookaheads that stand at the beginning become patterns of their
own. Other lookarounds and back-references need exponential time, so they are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import re2

from scope_jax.text.strict_json import is_text

MEMORY = 1 << 20  # bytes of one compiled pattern
LONGEST = 4096  # characters of a pattern
LOOKAHEADS = 16  # at the beginning of a pattern
LINEAR = "has a lookaround or a back-reference, which cannot be checked in linear time"

_SPACES = {  # of ECMA-262, as parts of a set
    r"\s": r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}",
    r"\S": r"\x{0}-\x{8}\x{e}-\x{1f}!-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}"
    r"\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}",
}
_ANY, _NOTHING, _NO_LINE_END = r"[\x{0}-\x{10ffff}]", r"[^\x{0}-\x{10ffff}]", r"[^\n\r\x{2028}\x{2029}]"
_CATEGORIES = {  # long names that ECMA-262 has and RE2 has not
    "Letter": "L",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "Punctuation": "P",
    "Symbol": "S",
    "Currency_Symbol": "Sc",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Other": "C",
}
_TOKEN = re.compile(
    r"""
      \\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})
    | \\(?:u\{0*+(?P<braced>[0-9a-fA-F]{1,6})\}|u(?P<four>[0-9a-fA-F]{4})|x(?P<two>[0-9a-fA-F]{2}))
    | \\[pP](?:\{(?:(?:Script|sc|Script_Extensions|scx|General_Category|gc)=)?+(?P<property>\w++)\}|[A-Z])
    | \\c(?P<control>[a-zA-Z]) | \\(?P<escaped>.)
    | \(\?(?:(?P<look><?[=!])|P?<\w++>|[ims]*+(?:-[ims]++)?+[:)])
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_SAME = frozenset("dDwWtnrfv")  # escapes that both syntaxes have, in and out of sets


class PatternError(ValueError):
    """A pattern that is not read; the message is the end of a sentence about it."""


class _Token(NamedTuple):
    kind: str
    """"(", ")", "|", "^", a lookaround's mark such as "=" or "<!", or ""."""
    text: str
    """In RE2's syntax."""


@dataclass(frozen=True)
class Pattern:
    """A pattern that was read."""

    required: Sequence[Any]
    """Programs of RE2, all of which must match."""
    excluded: Sequence[Any]
    """Programs none of which may match."""

    @property
    def size(self) -> int:
        """Instructions of all programs; a search executes at most as many for each byte of the text."""
        return sum(program.programsize for program in (*self.required, *self.excluded))

    def search(self, text: str) -> bool:
        """Whether it matches somewhere in the text, as in `RegExp.test` with the flag u."""
        data = text.encode(errors="replace")
        return all(program.search(data) for program in self.required) and not any(
            program.search(data) for program in self.excluded
        )


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Pattern:
    """Raises PatternError for what RE2 cannot match, does not read, or would need more than MEMORY for."""
    if len(pattern) > LONGEST:
        raise PatternError(f"has more than {LONGEST} characters")
    if not is_text(pattern):
        raise PatternError("holds half a character (a lone surrogate)")
    required, excluded = [], []
    tokens = [*_tokens(pattern)]
    while (end := _leading_lookahead(tokens)) is not None:
        group = required if tokens[1].kind == "=" else excluded
        group.append("^(?:" + "".join(token.text for token in tokens[2 : end - 1]) + ")")
        tokens = [tokens[0], *tokens[end:]]
        if len(required) + len(excluded) > LOOKAHEADS:
            raise PatternError(f"has more than {LOOKAHEADS} lookaheads")
    if any(token.kind in ("=", "!", "<=", "<!") for token in tokens):
        raise PatternError(LINEAR)
    required.append("".join(token.text for token in tokens))
    return Pattern([_program(text) for text in required], [_program(text) for text in excluded])


def _program(text: str) -> Any:
    options = re2.Options()
    options.max_mem = MEMORY
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        if "too large" in reason:
            raise PatternError("is too large") from None
        raise PatternError(f"cannot be read ({reason})") from None


def _leading_lookahead(tokens: Sequence[_Token]) -> int | None:
    """Where a lookahead behind the first ^ ends, if it holds for all that follows: no alternative begins behind it."""
    if [token.kind for token in tokens[:2]] not in (["^", "="], ["^", "!"]):
        return None
    depth, end = 0, None
    for place, token in enumerate(tokens):
        depth += {"": 0, "^": 0, "|": 0, ")": -1}.get(token.kind, 1)
        if depth == 0 and token.kind == ")" and end is None:
            end = place + 1
        if depth == 0 and token.kind == "|":
            return None
    quantified = end is not None and end < len(tokens) and tokens[end].text in ("*", "+", "?", "{")
    return None if quantified else end


def _tokens(pattern: str) -> Iterator[_Token]:
    """Raises PatternError for escapes that ECMA-262 does not have, and for back-references."""
    tokens = _TOKEN.finditer(pattern)
    dots = re.search(r"\(\?\w*s", pattern) is None  # the flag s changes what a dot is
    for token in tokens:
        text = token[0]
        if token["look"]:
            yield _Token(token["look"], "(?:")
        elif text.startswith("("):
            yield _Token("" if text.endswith(")") and len(text) > 1 else "(", text)
        elif text == "[":
            yield _Token("", _set(tokens))
        elif text == "." and dots:
            yield _Token("", _NO_LINE_END)
        elif text in _SPACES:
            yield _Token("", f"[{_SPACES[text]}]")
        elif text in (r"\b", r"\B", r"\A", r"\z", r"\Z"):  # the last three are Python's and Rust's
            yield _Token("", text.replace("Z", "z"))
        else:
            yield _Token(text if text in (")", "|", "^") else "", _literal(token))


def _set(tokens: Iterator[re.Match[str]]) -> str:
    """A set of characters, whose opening bracket has been read."""
    negated, parts = False, []
    for token in tokens:
        text = token[0]
        if text == "]":
            break
        if text == "^" and not parts and not negated:
            negated = True
        elif text == r"\b":
            parts.append(r"\x{8}")
        elif text[0] == "\\":
            parts.append(_SPACES.get(text) or _literal(token))
        else:  # of several characters, such as (?:, each stands for itself
            parts += [rf"\{character}" if character in "[^" else character for character in text]
    else:
        raise PatternError("cannot be read (a set is not closed)")
    if not parts:
        return _ANY if negated else _NOTHING
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _literal(token: re.Match[str]) -> str:
    """A character, an escape of one, or a class of them."""
    text, escaped = token[0], token["escaped"]
    if token["high"]:
        point = 0x10000 + ((int(token["high"], 16) - 0xD800) << 10) + int(token["low"], 16) - 0xDC00
        return rf"\x{{{point:x}}}"
    if number := token["braced"] or token["four"] or token["two"]:
        return rf"\x{{{number}}}"
    if token["control"]:
        return rf"\x{{{ord(token['control']) % 32:x}}}"
    if token["property"]:
        return rf"{text[:2]}{{{_CATEGORIES.get(token['property'], token['property'])}}}"
    if escaped is None or escaped in _SAME:
        return text
    if escaped == "0":
        return r"\x{0}"
    if escaped in "123456789k":
        raise PatternError(LINEAR)
    if escaped.isalnum():
        raise PatternError(f"cannot be read (the escape {text})")
    return rf"\x{{{ord(escaped):x}}}"
