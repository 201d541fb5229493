"""The JSON object with which a reply ends: where a policy is to say several things at once, such as a question with
its answer and options.

Nothing is evaluated, and nothing repaired: an object that is not JSON, or says a key twice, is none.
"""

from __future__ import annotations

import json
import re
from typing import Any

from retrieval.rows import STRICT_JSON
from scope_jax.text.parsing import is_text

_MARK = re.compile(r'(?<!\\)(?:\\\\)*+["{}]')  # a quote or brace before which no backslash, or an even number, stands


def last_object(text: str) -> dict[str, Any] | None:
    """The object that ends with the last `}` of `text`, whatever stands before and behind it; None if it is no JSON.

    Strict: no key twice, no NaN or infinite number, no text that could not be written to a file. Its beginning is found
    from its end, so that braces in what is said before it do no harm; in time linear in the text.
    """
    start, end = _last_braces(text)
    return None if start is None else whole_object(text[start:end])


def whole_object(text: str) -> dict[str, Any] | None:
    """The object that `text` is, white space around it aside; None if it is no object or more than one. As strict."""
    try:
        value = STRICT_JSON.decode(text.strip())
        writable = is_text(json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError):  # no JSON, a number of too many digits; nested too deep
        return None
    return value if isinstance(value, dict) and writable else None


def _last_braces(text: str) -> tuple[int | None, int]:
    """(start, end) of what stands between the last `}` and its `{`, both included; start None without them.

    Braces in strings do not count; a `}` that is not in a string is the last character of the object, so going back
    from it every quote begins or ends one.
    """
    end = text.rfind("}") + 1
    depth, quoted = 0, False
    for place in reversed([mark.end() - 1 for mark in _MARK.finditer(text, 0, end)]):
        mark = text[place]
        if mark == '"':
            quoted = not quoted
        elif not quoted:
            depth += 1 if mark == "}" else -1
            if depth <= 0:
                return (place if depth == 0 else None), end
    return None, end
