"""Who is asked for what: documents, task types and expected searches (App. G). All drawn from named generators."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.systems.scope.records import Order

_WORD = re.compile(r"\S+")
_LONGEST_WORD = 100  # characters; what is longer is a script without spaces, or no language at all


def stratify(count: int, weights: Sequence[float]) -> list[int]:
    """How many of `count` each weight gets: whole shares first, what is left to the largest remainders (ties: earlier).

    The "4:3:2" rule of App. G; 9 items give exactly 4, 3, 2.
    """
    total = sum(weights)
    exact = [count * weight / total for weight in weights]
    given = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda place: given[place] - exact[place])  # stable
    for place in order[: count - sum(given)]:
        given[place] += 1
    return given


def spread(count: int, weights: Mapping[Any, float], *names: int | str) -> list[Any]:
    """`count` values in the stratified shares of their weights, in an order drawn from rng(names)."""
    shares = stratify(count, list(weights.values()))
    values = [value for value, share in zip(weights, shares, strict=True) for _ in range(share)]
    return [values[place] for place in rng(*names).permutation(count)]


def orders(
    cfg: Config, tokens: Callable[[str], int], rows: Sequence[Mapping[str, Any]], first: int, whole: int, where: str
) -> list[Order]:
    """An order for each document row: places `first` … of the `whole` prompts that are stratified together.

    where: names that set of prompts ("iteration 2", say), so that every set is drawn anew.
    """
    turns = dict(enumerate(cfg.scope.search_turns, start=1))
    searches = spread(whole, turns, "scope searches", cfg.seed, where)
    kinds = spread(whole, cfg.scope.task_types, "scope types", cfg.seed, where)
    made = []
    for index, row in enumerate(rows):
        key, text = document_of(row)
        text = cut(text, cfg.scope.document_tokens, tokens)
        made.append(Order(index, key, text, kinds[first + index], searches[first + index]))
    return made


def document_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """(key, text) of a document row: its id, and its text with the title in front."""
    text = row["text"].strip()
    return row["id"], f"(Title: {row['title']})\n{text}" if row["title"] else text


def cut(text: str, limit: int, tokens: Callable[[str], int]) -> str:
    """The longest beginning of whole words that has at most `limit` tokens (lengths grow with the text).

    Where a script has no spaces it ends at any character.
    """
    if tokens(text) <= limit:
        return text
    ends: Sequence[int] = [0, *(match.end() for match in _WORD.finditer(text))]
    last = _last_fitting(text, ends, limit, tokens)
    if last + 1 < len(ends) and ends[last + 1] - ends[last] > _LONGEST_WORD:
        ends = range(ends[last], ends[last + 1])
        last = _last_fitting(text, ends, limit, tokens)
    return text[: ends[last]]


def _last_fitting(text: str, ends: Sequence[int], limit: int, tokens: Callable[[str], int]) -> int:
    """The last place in `ends`, of which the first fits, at which the text so far has at most `limit` tokens."""
    low, high = 0, len(ends)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(text[: ends[middle]]) <= limit else (low, middle)
    return low
