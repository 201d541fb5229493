"""Materials for answering without a search: what one episode read, mixed with results of others (SSP §4.4).

A unit is one document, or ("trajectory", as in the released SSP code) everything one episode read.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from scope_jax.config import NoiseUnit, one_of

_HEAD = re.compile(r"^Doc \d+ ?(?=\(Title: )", re.MULTILINE)
_LOOSE = string.whitespace + ".…"  # what may stand at the end of a text that was cut short


def units(results: Sequence[str], unit: str) -> list[str]:
    """The units of an episode's result texts: its documents, each once and without number, or one joined text.

    Of several copies of a document, the longest; it stands where the first one did. Raises ValueError for any other
    `unit`.
    """
    one_of("unit", unit, NoiseUnit)
    if unit == "trajectory":
        return ["\n\n".join(results)] if results else []
    return _distinct([part.strip() for result in results for part in _HEAD.split(result) if part.strip()])


def _distinct(texts: Sequence[str]) -> list[str]:
    """Each text once; of copies of which some were cut short the longest, where the first one stands."""
    copies: dict[str, tuple[int, str]] = {}  # what is sure of a text: where it first stands, and the text
    for place, text in enumerate(texts):
        copies.setdefault(_sure(text), (place, text))
    # In alphabetical order a copy that was cut short comes right before one that goes on from it.
    for short, long in pairwise(sorted(copies)):
        if long.startswith(short):
            place, text = copies[long]
            copies[long] = min(place, copies.pop(short)[0]), text
    return [text for _, text in sorted(copies.values())]


def _sure(text: str) -> str:
    """`text` without the marks of a cut at its end."""
    return text.removesuffix("(truncated)").rstrip(_LOOSE)


def _same(one: str, other: str) -> bool:
    """True if both are the same text; a search result may have been cut short by its token budget."""
    short, long = sorted((_sure(one), _sure(other)), key=len)
    return long.startswith(short)


def mix(own: Sequence[str], others: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """`own` and `count` units of `others` that are not among `own`, each once, in random order.

    Fewer where `others` has not so many. A function of the arguments and of the state of `rng`.
    """
    noise: list[str] = []
    for index in rng.permutation(len(others)):
        if len(noise) == count:
            break
        if not any(_same(others[int(index)], known) for known in (*own, *noise)):
            noise.append(others[int(index)])
    everything = [*own, *noise]
    return [everything[int(index)] for index in rng.permutation(len(everything))]


def render(texts: Sequence[str], unit: str) -> str:
    """Documents numbered anew in the format of a search result; whole trajectories one below the other.

    Raises ValueError for any other `unit`.
    """
    one_of("unit", unit, NoiseUnit)
    if unit == "trajectory":
        return "\n\n".join(texts)
    return "\n\n".join(f"Doc {number} {text}" for number, text in enumerate(texts, 1))
