"""Grades of replies: by a measure of the text that is their answer, or by the user's function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from scope_jax.errors import UserError
from scope_jax.games.rlvr.options import RLVRSection
from scope_jax.grading.json_values import is_json
from scope_jax.grading.math_answers import Comparison, MathAnswers
from scope_jax.grading.measures import BY_TEXT
from scope_jax.grading.reward_function import RewardFunction
from scope_jax.play.exams import Row
from scope_jax.play.game import Examined
from scope_jax.play.tools import Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing

HASHES = "\n#### "  # before the answer in a solution of GSM8K
OTHER = "\\emptyset"  # what an answer is compared with to see whether it is read: quickly, as it is no number
UNSEEN = ("options", "choices", "choice_A", "context", "paragraphs", "documents", "wiki_items")  # of published rows
SHOWN = 400  # characters of an answer that are shown
Reply = tuple[Row, Completion]


@dataclass(frozen=True)
class GradedReplies:
    """The grades of several replies."""

    rewards: list[float]
    """Of each."""
    counts: dict[str, float] = field(default_factory=dict)
    """Numbers of replies without a verdict, by metric."""


def last_turn(completion: Completion) -> str:
    """The last turn with its thought, as it was written; "" if a call of a tool, or nothing, ended the reply."""
    turns = completion.turns
    return turns[-1].written if turns and turns[-1].kind == "sampled" else ""


def answer(card: RLVRSection, completion: Completion) -> str | None:
    """The text of a reply that is graded; None if it has none. Thoughts are not read."""
    turns = completion.turns
    text = turns[-1].content.strip() if turns and turns[-1].kind == "sampled" else ""
    if card.place == "boxed":
        return parsing.boxed(text)
    if card.place == "tag":
        return parsing.last([text], "answer") or None
    if card.place == "last-line":
        text = text.rpartition("\n")[2].strip()
    return text or None


def grade(card: RLVRSection, tools: Tools, replies: Sequence[Reply]) -> GradedReplies:
    """The grades of replies to rows."""
    if card.grader == "function":
        return _by_function(card, tools, replies)
    answers = [answer(card, completion) for _, completion in replies]
    golds = [tuple(row["answers"]) for row, _ in replies]
    if card.grader != "math":
        equal = BY_TEXT[card.grader]
        return GradedReplies(
            [float(bool(said) and equal(said or "", right)) for said, right in zip(answers, golds, strict=True)]
        )
    cases = [Comparison(said or "", right) for said, right in zip(answers, golds, strict=True)]
    verdicts = dict(zip(cases, tools.compare_math(cases), strict=True))
    given = [verdicts[case] for case in cases if case.prediction]
    counts = {"math/given_up": float(given.count("timeout")), "math/unreadable": float(given.count("unreadable"))}
    return GradedReplies([float(verdicts[case] == "equal") for case in cases], counts)


# --------------------------------------------------------------------------------------------------------- the function
def _by_function(card: RLVRSection, tools: Tools, replies: Sequence[Reply]) -> GradedReplies:
    """What the function returns; 0 for a call that was late. Recorded, by the place of a row in its file."""
    function = _function(card.function or "", card.function_seconds)
    rows = {_line(row): row for row, _ in replies}

    def value(item: list[str]) -> float | None:
        line, text = item
        return function.value(arguments(rows[line], text), rows[line]["where"])

    values = tools.each("reward", value, [[_line(row), last_turn(completion)] for row, completion in replies])
    return GradedReplies([one or 0.0 for one in values], {"function/late": float(values.count(None))})


def _line(row: Row) -> str:
    """Where a row is in its file, wherever that is."""
    return row["where"].rpartition(", ")[2]


def arguments(row: Row, completion: str) -> Mapping[str, Any]:
    """What the function gets; a column with the name of another argument is left out."""
    return {**row["columns"], "prompt": row["prompt"], "completion": completion, "answer": row["answer"]}


@cache
def _function(file: str, seconds: float) -> RewardFunction:
    return RewardFunction(file, seconds)


# ------------------------------------------------------------------------------------------------------ before training
def examine(card: RLVRSection, rows: Sequence[Row], prompt: str) -> Examined:
    """Grades the answers of rows against themselves, and shows the first row. prompt: of the first row.

    Raises UserError if more than half of the rows have no answer that the grader reads.
    """
    first = rows[0]
    example = f"{prompt}\n[answer] {' | '.join(first['answers'])[:SHOWN] or 'none'}"
    if card.grader == "function":
        value = _function(card.function or "", card.function_seconds).value(
            arguments(first, (first["answers"] or [""])[0]), first["where"]
        )
        given = "has not returned in time" if value is None else f"is {value:g}"
        return Examined(f"the function's reward for the answer of {first['where']} as a reply {given}", example)
    unseen = [name for name in UNSEEN if name in first["columns"]]
    wrong = [row for row, read in zip(rows, _read(card, rows), strict=True) if not read]
    if not wrong:
        found = f"{len(rows)} rows, whose answers {card.grader} reads"
        return Examined(f"{found}{_unseen(unseen)}", example, doubtful=bool(unseen))
    said = f"{len(wrong)} of {len(rows)} rows have no answer that the grader {card.grader} reads"
    shown = " | ".join(wrong[0]["answers"])
    said = f"{said} ({wrong[0]['where']}: {shown[-40:]!r})"
    if 2 * len(wrong) < len(rows):
        return Examined(f"{said}; their replies score 0", doubtful=True)
    if HASHES in shown:
        raise UserError(
            f"{said}: they are GSM8K's; convert the file by `scope-jax data gsm8k OUT.jsonl --source FILE`, "
            "and give OUT.jsonl."
        )
    raise UserError(
        f"{said}; set rlvr.grader to one that reads them, name the right column in data.columns (answers), or correct "
        "the rows."
    )


def _unseen(names: Sequence[str]) -> str:
    """A clause about columns that the policy does not see."""
    return f"; their column `{names[0]}` is not in the prompt: write it there, if replies need it" if names else ""


def _read(card: RLVRSection, rows: Sequence[Row]) -> list[bool]:
    """Whether each row has an answer that the grader reads, as one that equals itself."""
    if card.grader == "math":
        texts = [(gold, place) for place, row in enumerate(rows) for gold in row["answers"]]
        with closing(MathAnswers()) as answers:  # an answer is equal to its own text, whatever that is
            verdicts = answers.verdicts([Comparison(gold, (OTHER,)) for gold, _ in texts])
        read = {place for (_, place), verdict in zip(texts, verdicts, strict=True) if verdict in ("equal", "unequal")}
        return [place in read for place in range(len(rows))]
    equal = BY_TEXT[card.grader]

    def reads(gold: str) -> bool:
        solution = HASHES in gold and card.grader != "json"
        return not solution and (is_json(gold) if card.grader == "json" else float(equal(gold, [gold])) == 1.0)

    return [any(map(reads, row["answers"])) for row in rows]
