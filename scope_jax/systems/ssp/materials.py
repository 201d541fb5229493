"""Materials for answering without a search: what one episode read, mixed with what others read (SSP §4.4).

A unit is one document, or ("trajectory", as the released SSP code has it) everything one episode read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from scope_jax.config import NoiseUnit, one_of

_HEAD = re.compile(r"^Doc \d+ ?(?=\(Title: )", re.MULTILINE)
_CUT = re.compile(r"[\s.…]*(\(truncated\))?$")


def units(results: Sequence[str], unit: str) -> list[str]:
    """The units of an episode's result texts: its documents, each once and without number, or one joined text.

    Raises ValueError for any other `unit`.
    """
    one_of("unit", unit, NoiseUnit)
    if unit == "trajectory":
        return ["\n\n".join(results)] if results else []
    found: list[str] = []
    for result in results:
        for part in _HEAD.split(result):
            if part.strip() and not any(_same(part.strip(), other) for other in found):
                found.append(part.strip())
    return found


def _same(one: str, other: str) -> bool:
    """True if both are the same text; a search result may have been cut short by its token budget."""
    short, long = sorted((_CUT.sub("", one), _CUT.sub("", other)), key=len)
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
