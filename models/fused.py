"""Tensors of checkpoints that hold several of our weights, one behind the other: what each part is called alone.

A part is whole rows of the file, so that it can be read where it is. Elsewhere only the names of the parts are known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

Shape = tuple[int, ...]
MOST = 10_000  # experts, as in config.json


@dataclass(frozen=True)
class Fused:
    """name: of the tensor, [X, rows, columns], with {i} for the layer. parts: names of one expert's parts, with {x} for
    the expert, which divide its rows evenly."""

    name: str
    parts: tuple[str, ...]


# By family. Gemma 4's experts get the names that Qwen3's have alone.
FUSED: Mapping[str, tuple[Fused, ...]] = {
    "gemma4_text": (
        Fused(
            "model.layers.{i}.experts.gate_up_proj",
            tuple("model.layers.{i}.mlp.experts.{x}." + part + "_proj.weight" for part in ("gate", "up")),
        ),
        Fused("model.layers.{i}.experts.down_proj", ("model.layers.{i}.mlp.experts.{x}.down_proj.weight",)),
    ),
}


def apart(rules: Sequence[Fused], name: str, shape: Shape) -> Iterator[tuple[str, Shape, int]]:
    """(name, shape, first value in the tensor) of its parts; nothing if it is not a fused one."""
    for rule in rules:
        found = _matched(rule.name, name)
        if found is None or len(shape) != 3 or not all(shape) or shape[0] > MOST or shape[1] % len(rule.parts):
            continue
        part = (shape[1] // len(rule.parts), shape[2])
        for number in range(shape[0] * len(rule.parts)):
            expert, place = divmod(number, len(rule.parts))
            yield rule.parts[place].format(i=found["i"], x=expert), part, number * math.prod(part)


def together(rules: Sequence[Fused], shapes: Mapping[str, Shape]) -> dict[str, tuple[Shape, tuple[str, ...]]]:
    """The tensors of a checkpoint that hold these: by name (shape, names of the parts in their order)."""
    parts: dict[str, dict[int, str]] = {}
    count: dict[str, int] = {}  # of parts of an expert, 0 of tensors that are not fused
    for name in shapes:
        title, number, of_expert = next(filter(None, (_place(rule, name) for rule in rules)), (name, 0, 0))
        parts.setdefault(title, {})[number] = name
        count[title] = of_expert
    found: dict[str, tuple[Shape, tuple[str, ...]]] = {}
    for title, own in parts.items():
        names = tuple(own[number] for number in sorted(own))
        shape, each = shapes[names[0]], count[title]
        found[title] = ((len(names) // each, shape[0] * each, *shape[1:]) if each else shape, names)
    return found


def _place(rule: Fused, name: str) -> tuple[str, int, int] | None:
    """(name of the tensor that holds it, which of its parts it is, parts of an expert); None if it is no part."""
    for place, part in enumerate(rule.parts):
        if found := _matched(part, name):
            return rule.name.format(i=found["i"]), int(found["x"]) * len(rule.parts) + place, len(rule.parts)
    return None


@cache
def _pattern(name: str) -> re.Pattern[str]:
    pattern = re.escape(name)
    for letter in "ix":
        pattern = pattern.replace(re.escape(f"{{{letter}}}"), rf"(?P<{letter}>\d+)")
    return re.compile(pattern)


def _matched(name: str, given: str) -> re.Match[str] | None:
    return _pattern(name).fullmatch(given)
