"""Draws documents, task types and expected numbers of searches (App. G), all with named random generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.games.scope.options import options
from scope_jax.games.scope.records import Order
from scope_jax.play.documents import cut, document_of


def stratify(count: int, weights: Sequence[float]) -> list[int]:
    """How many of `count` items each weight gets, by the largest-remainder method (ties go to the earlier weight).

    The "4:3:2" rule of App. G: 9 items give exactly 4, 3, 2.
    """
    total = sum(weights)
    exact = [count * weight / total for weight in weights]
    given = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda place: given[place] - exact[place])  # stable
    for place in order[: count - sum(given)]:
        given[place] += 1
    return given


def spread(count: int, weights: Mapping[Any, float], *names: int | str) -> list[Any]:
    """`count` values, stratified by their weights and shuffled with rng(names)."""
    shares = stratify(count, list(weights.values()))
    values = [value for value, share in zip(weights, shares, strict=True) for _ in range(share)]
    return [values[place] for place in rng(*names).permutation(count)]


def orders(
    cfg: Config, tokens: Callable[[str], int], rows: Sequence[Mapping[str, Any]], first: int, whole: int, where: str
) -> list[Order]:
    """An order for each document row: positions `first` onwards of the `whole` prompts that are stratified together.

    where: the name of that set of prompts ("iteration 2", for example), so that each set is drawn independently.
    """
    turns = dict(enumerate(options(cfg).search_turns, start=1))
    searches = spread(whole, turns, "scope searches", cfg.seed, where)
    kinds = spread(whole, options(cfg).task_types, "scope types", cfg.seed, where)
    made = []
    for index, row in enumerate(rows):
        key, text = document_of(row)
        text = cut(text, options(cfg).document_tokens, tokens)
        made.append(Order(index, key, text, kinds[first + index], searches[first + index]))
    return made
