"""The rules of SSP: valid questions (§3.3), materials for their verification (§4.4), the proposer's rewards."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from scope_jax.config import Config, one_of
from scope_jax.games.ssp.options import NoiseUnit, SSPSection, options
from scope_jax.grading.words import contains
from scope_jax.play import searching
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects, parsing

REASONS = (
    "no_question",  # no closed <question> (possibly because the episode was cut off or ran out of turns)
    "empty_question",
    "format",  # violates the tag format (A.2)
    "no_search",
    "no_materials",  # no search found anything
    "too_short",
    "too_long",  # the question, or the solver's prompt with it
    "contains_answer",
    "too_few_searches",
    "repeated_search",
    "answer_in_search",
    # from verification:
    "materials_too_long",
    "verify_no_answer",
    "verify_wrong",
)


def question_of(completion: Completion) -> str | None:
    """Q(τ): content of the first `<question>`; None if missing."""
    return parsing.first(searching.contents(completion), "question")


def first_broken_rule(cfg: Config, completion: Completion, question: str | None, golds: Sequence[str]) -> str:
    """The first rule that a proposer episode with this question breaks; "" if none."""
    if question is None:
        return "no_question"
    ssp, dialect = options(cfg), dialects.load(cfg.model.dialect)
    queries = searching.queries_run(completion, dialect)
    words = len(question.split())
    checks = (
        ("empty_question", not question),
        ("format", not searching.keeps_format(completion, dialect, "question", ssp.format)),
        ("no_search", not queries),
        ("no_materials", not searching.results_read(completion, dialect)),
        ("too_short", len(question) < ssp.min_chars or words < ssp.min_words),
        ("too_long", len(question) > ssp.max_chars),
        ("contains_answer", reveals(question, golds)),
        ("too_few_searches", len(set(queries)) < ssp.min_distinct_searches),
        ("repeated_search", ssp.reject_repeated_search and len(set(queries)) < len(queries)),
        ("answer_in_search", ssp.reject_answer_in_search and any(reveals(q, golds[:1]) for q in queries)),
    )
    return next((reason for reason, fails in checks if fails), "")


def reveals(text: str, golds: Sequence[str]) -> bool:
    """True if the text contains an answer as whole words, or the first one as a substring."""
    return _within(golds[0], text) or any(contains(text, gold) for gold in golds)


def _within(part: str, text: str) -> bool:
    """True if `part` is a substring of `text`, ignoring case, and white space around words."""
    part, text = (" ".join(each.lower().split()) for each in (part, text))
    return part in text


def proposer_reward(card: SSPSection, solver_mean: float) -> float:
    """The proposer's reward for a valid question, by the solver's mean reward on it."""
    if card.proposer_reward == "intermediate":
        return intermediate(solver_mean, card.intermediate_left, card.intermediate_right)
    return 1.0 - solver_mean  # Eq. (7)


def intermediate(solver_mean: float, left: float, right: float) -> float:
    """4 (left + s)(right − s) for a success rate 0 < s < 1, else 0 (released SSP code)."""
    return 4.0 * (left + solver_mean) * (right - solver_mean) if 0.0 < solver_mean < 1.0 else 0.0


_HEAD = re.compile(r"^Doc \d+(?: ?(?=\(Title: )|[^\S\n]*\n)", re.MULTILINE)  # a passage may have no title
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
    for position, text in enumerate(texts):
        copies.setdefault(_untruncated(text), (position, text))
    # In alphabetical order a truncated copy comes directly before a longer one.
    for short, long in pairwise(sorted(copies)):
        if long.startswith(short):
            position, text = copies[long]
            copies[long] = min(position, copies.pop(short)[0]), text
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
    gaps = (" " if text.startswith("(Title: ") else "\n" for text in texts)
    return "\n\n".join(
        f"Doc {number}{gap}{text}" for number, (gap, text) in enumerate(zip(gaps, texts, strict=True), 1)
    )
