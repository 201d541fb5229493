"""Plain data, as JSON has it: what others send or return is made such data before anyone reads it."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from scope_jax.web.exchange import whole


class NotPlain(ValueError):
    """Why a value is no plain data, as the end of a sentence."""


def plain(value: Any) -> Any:
    """The value as its JSON is read: tuples are lists, keys are texts, half characters are U+FFFD. Raises NotPlain for
    what JSON does not have (sets, objects, NaN), and for a value nested deeper than a strict parser reads (200)."""
    try:
        return from_json(whole(json.dumps(value, ensure_ascii=False, allow_nan=False)))
    except RecursionError:
        raise NotPlain("nested too deep") from None
    except (TypeError, ValueError) as error:  # ValueError: NaN, a list in itself, an integer of too many digits
        raise NotPlain("nested too deep" if "recursion" in str(error) else str(error)) from None


def whole_texts(value: Any) -> Any:
    """The same data, with U+FFFD for every half character (a lone surrogate) in its texts and keys."""
    text = json.dumps(value, ensure_ascii=False)
    kept = whole(text)
    return value if kept == text else json.loads(kept)
