"""The JSON object at the end of a reply, for replies with several fields, such as a question with its answer and
options.

Nothing is evaluated or repaired: an object that is not valid JSON, or has a duplicate key, is rejected.
"""

from __future__ import annotations

import json
import re
from typing import Any

from scope_jax.text.strict_json import STRICT_JSON, is_text

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # all but the line break
_MARK = re.compile(r'(?<!\\)(?:\\\\)*+["{}]')  # an unescaped quote or brace: an even number of backslashes before it


def last_object(text: str) -> dict[str, Any] | None:
    """The object that ends with the last `}` of `text`, ignoring text before and after it; None if it is not JSON.

    Strict: no duplicate keys, no NaN or infinite numbers, no text that cannot be written to a file. The object's start
    is searched backwards from its end, so that earlier braces do not matter. Takes time linear in the text.
    """
    start, end = _last_braces(text)
    return None if start is None else whole_object(text[start:end])


def whole_object(text: str) -> dict[str, Any] | None:
    """`text` parsed as a single object, surrounding white space allowed; None otherwise. As strict as `last_object`."""
    try:
        value = STRICT_JSON.decode(text.strip())
        writable = is_text(json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError):  # not JSON, a number with too many digits; nested too deeply
        return None
    return value if isinstance(value, dict) and writable else None


def has_control(value: Any) -> bool:
    r"""True if a text in an object has a control character other than a line break.

    Such a one is LaTeX whose backslashes were not doubled: JSON reads \frac as a form feed and "rac", \times as a tab.
    """
    waiting = [value]  # not by recursion: a policy may nest as deep as the JSON module reads
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and _CONTROL.search(value):
            return True
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return False


def _last_braces(text: str) -> tuple[int | None, int]:
    """(start, end) of the text from the matching `{` to the last `}`, both included; start is None without a match."""
    end = text.rfind("}") + 1
    return opening(text, end, _MARK), end


def opening(text: str, end: int, marks: re.Pattern[str]) -> int | None:
    """Where the bracket opens that closes right before `end`; None if it does not. marks: finds unescaped quotes and
    the brackets that count.

    Brackets in strings do not count. The one that closes is outside of strings, so that going back from it every quote
    starts or ends a string.
    """
    depth, quoted = 0, False
    for place in reversed([mark.end() - 1 for mark in marks.finditer(text, 0, end)]):
        mark = text[place]
        if mark == '"':
            quoted = not quoted
        elif not quoted:
            depth += 1 if mark in "}]" else -1
            if depth <= 0:
                return place if depth == 0 else None
    return None
