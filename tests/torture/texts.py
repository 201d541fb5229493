"""Random texts through every parser of every game: no exception, and nothing is found that the text does not hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.house import test_parsers as checks
from tests.torture.table import Tried

ALL = sorted({*checks.SAID, *checks.JUDGED, *checks.WRITTEN, *checks.RUBRICS})
# Half of the texts mix the pieces of one role, so that more of them are valid.
SOURCES = (ALL, ALL, ALL, ALL, checks.SAID, checks.JUDGED, checks.WRITTEN, checks.RUBRICS)
LENGTHS = (((0, 12), 0.7), ((12, 80), 0.298), ((80, 2000), 0.002))  # pieces of a text, about 20 characters each
VECTORS = {"SCORE consistency", "lexical query"}  # 4 ms a text, most in scikit-learn and NumPy: twice all others
EVERY = 20  # of so many texts, one is turned into vectors


def text_of(number: int, seed: int) -> str:
    """The text with this number, whatever others are drawn."""
    draw = Random(f"{seed} {number}")
    ((fewest, most),) = draw.choices([pieces for pieces, _ in LENGTHS], [share for _, share in LENGTHS])
    return "".join(draw.choices(draw.choice(SOURCES), k=draw.randint(fewest, most)))


def check(text: str, opened: bool, vectors: bool) -> None:
    """Raises whatever a parser raises, and AssertionError for something found that is not in the text."""
    for name, (parse, _) in checks.PARSERS.items():
        if vectors or name not in VECTORS:
            parse(text)
    if vectors:
        checks.check_agreement(text)
    checks.check_searches_and_answers(text, opened)
    checks.check_verdicts(text)
    checks.check_tasks(text)
    checks.check_scores(text)


def parsed(first: int, count: int, seed: int, seconds: float, folder: Path) -> Tried:
    """The texts from number `first` on, `count` of them or as many as `seconds` allow. The folder is not used."""
    began, number = time.monotonic(), first
    while number < first + count and time.monotonic() - began < seconds:
        text = text_of(number, seed)
        try:
            check(text, opened=number % 2 == 0, vectors=number % EVERY == 0)
        except Exception as error:
            error.add_note(f"text {number} of seed {seed}: {text!r}")
            raise
        number += 1
    which = f"numbers {first:,} to {number - 1:,} of seed {seed}"
    ordinary = len(checks.PARSERS) - len(VECTORS)
    done = f"through {ordinary} parsers, every {EVERY}th through {len(VECTORS)} more, {which}"
    return Tried(number - first, f"{done}: no exception, nothing found that is not there")


def row(first: int, count: int, seed: int, seconds: float) -> tuple[str, Callable[[Path], Tried]]:
    """The row of the table: its name and what it does."""
    return "random texts through all parsers", lambda folder: parsed(first, count, seed, seconds, folder)
