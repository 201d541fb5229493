"""Materials for answering without searching: an episode's search results, mixed with those of others (SSP §4.4).

A unit is one document, or ("trajectory", as in the released SSP code) all results of one episode.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from scope_jax.config import one_of
from scope_jax.games.ssp.options import NoiseUnit

_HEAD = re.compile(r"^Doc \d+ ?(?=\(Title: )", re.MULTILINE)
_LOOSE = string.whitespace + ".…"  # possible characters at the end of a truncated text


def units(results: Sequence[str], unit: str) -> list[str]:
    """The units of an episode's result texts: its distinct documents without their numbers, or one joined text.

    Of several copies of a document the longest is kept, at the position of the first. Raises ValueError for any other
    `unit`.
    """
    one_of("unit", unit, NoiseUnit)
    if unit == "trajectory":
        return ["\n\n".join(results)] if results else []
    return _distinct([part.strip() for result in results for part in _HEAD.split(result) if part.strip()])


def _distinct(texts: Sequence[str]) -> list[str]:
    """The distinct texts; of copies that were truncated differently the longest, at the position of the first."""
    copies: dict[str, tuple[int, str]] = {}  # text without truncation marks → (first position, text)
    for place, text in enumerate(texts):
        copies.setdefault(_untruncated(text), (place, text))
    # In alphabetical order a truncated copy comes directly before a longer one.
    for short, long in pairwise(sorted(copies)):
        if long.startswith(short):
            place, text = copies[long]
            copies[long] = min(place, copies.pop(short)[0]), text
    return [text for _, text in sorted(copies.values())]


def _untruncated(text: str) -> str:
    """`text` without truncation marks at its end."""
    return text.removesuffix("(truncated)").rstrip(_LOOSE)


def _same(one: str, other: str) -> bool:
    """True if both are the same text; a search result may have been truncated to its token budget."""
    short, long = sorted((_untruncated(one), _untruncated(other)), key=len)
    return long.startswith(short)


def mix(own: Sequence[str], others: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """`own` and `count` distinct units of `others` that are not among `own`, in random order.

    Fewer if `others` has too few. Deterministic given the arguments and the state of `rng`.
    """
    noise: list[str] = []
    for index in rng.permutation(len(others)):
        if len(noise) == count:
            break
        if not any(_same(others[int(index)], known) for known in (*own, *noise)):
            noise.append(others[int(index)])
    mixed = [*own, *noise]
    return [mixed[int(index)] for index in rng.permutation(len(mixed))]


def render(texts: Sequence[str], unit: str) -> str:
    """Documents renumbered in the format of a search result; whole trajectories separated by blank lines.

    Raises ValueError for any other `unit`.
    """
    one_of("unit", unit, NoiseUnit)
    if unit == "trajectory":
        return "\n\n".join(texts)
    return "\n\n".join(f"Doc {number} {text}" for number, text in enumerate(texts, 1))
