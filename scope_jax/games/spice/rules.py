"""SPICE's parsers of the challenger's two stages (App. 11), rewards, sub-sampling and grading, as pure functions.

Parsing is strict: nothing is guessed or repaired.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from scope_jax.config import one_of
from scope_jax.data.keys import drawn
from scope_jax.games.spice.options import ChallengerReward, SpiceSection
from scope_jax.games.spice.state import MULTIPLE_CHOICE, ChallengerAttempt, ReasonerTask
from scope_jax.grading import measures
from scope_jax.grading.math_answers import LONGEST, Verdict
from scope_jax.grading.rewards import learnability, uncertainty
from scope_jax.text.objects import has_control, last_object, whole_object

REASONS = (
    "prompt_too_long",
    "refused",  # the endpoint rejected the request
    # first stage:
    "format_no_json",  # the reply is not a single JSON object
    "format_flags",  # not exactly one of the two formats, or a format that the card excludes
    "format_type",  # a free-form answer without a type, or of a type that the card excludes
    # second stage:
    "task_no_json",  # the reply does not end with a JSON object
    "no_question",  # missing, empty, or not text
    "no_answer",  # missing, empty, a list or an object
    "options",  # not A to D, each once and all different, or the correct letter is not one of them
    "answer_type",  # not the requested type
    "answer_form",  # not in the format of its type
    "question_too_long",  # the question does not fit into the reasoner's prompt
)

BEST_VARIANCE = 0.25  # of 0/1 correctness at a pass rate of one half (Eq. (1))
MATHEMATICAL = ("integer", "float", "expression")  # answer types compared by value
_OPTION = re.compile(r"^[ \t]*+([A-Z])[).][ \t]*+(\S.*+)$", re.MULTILINE)
_INTEGER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?")
_LETTERS = ("A", "B", "C", "D")
_Plain = str | int | float | bool


# ------------------------------------------------------------------------------------------------------- first stage
def format_of(card: SpiceSection, reply: str) -> tuple[str, str]:
    """(the kind of task chosen, "" if none; the reason for rejection, "" if valid).

    The reply must be a single JSON object with exactly one of its two flags true; a free-form answer must have one of
    the card's types.
    """
    fields = whole_object(reply)
    if fields is None:
        return "", "format_no_json"
    choice, free = fields.get("suitable_for_mcq"), fields.get("suitable_for_free_form")
    if not isinstance(choice, bool) or not isinstance(free, bool) or choice == free:
        return "", "format_flags"
    if choice:
        return (MULTIPLE_CHOICE, "") if card.formats != "free-form" else ("", "format_flags")
    kind = _text(fields.get("best_answer_type")).lower()
    return (kind, "") if kind in card.answer_types else ("", "format_type")


# ------------------------------------------------------------------------------------------------------ second stage
def task_of(reply: str, kind: str, max_words: int) -> tuple[ReasonerTask | None, str]:
    """(the task of this kind at the end of the reply, None if invalid; the reason for rejection, "" if valid).

    max_words: maximum length of an answer of type string.
    """
    fields = last_object(reply) if reply.rstrip().endswith("}") else None
    used = (
        ("multiple_choice_question", "multiple_choice_correct") if kind == MULTIPLE_CHOICE else ("question", "answer")
    )
    if fields is None or has_control([fields.get(field) for field in used]):
        return None, "task_no_json"
    return _multiple_choice(fields) if kind == MULTIPLE_CHOICE else _free_form(fields, kind, max_words)


def _multiple_choice(fields: Mapping[str, Any]) -> tuple[ReasonerTask | None, str]:
    question, letter = _text(fields.get("multiple_choice_question")), _text(fields.get("multiple_choice_correct"))
    # the prompt tells the challenger to leave the other two fields empty if the document suits no question
    if not question or not _text(fields.get("exam_question", question)):
        return None, "no_question"
    if not letter or not _text(fields.get("correct_answer", letter)):
        return None, "no_answer"
    listed = list(_OPTION.finditer(question))
    texts = {" ".join(option[2].split()) for option in listed}
    labelled = tuple(option[1] for option in listed) == _LETTERS
    if not labelled or len(texts) < len(_LETTERS) or not question[: listed[0].start()].strip():
        return None, "options"
    return (ReasonerTask(MULTIPLE_CHOICE, question, letter), "") if letter in _LETTERS else (None, "options")


def _free_form(fields: Mapping[str, Any], kind: str, max_words: int) -> tuple[ReasonerTask | None, str]:
    question, answer = _text(fields.get("question")), fields.get("answer")
    if not question:
        return None, "no_question"
    if not isinstance(answer, _Plain) or (isinstance(answer, str) and not _text(answer)):
        return None, "no_answer"
    if _text(fields.get("answer_type")).lower() != kind:
        return None, "answer_type"
    # a line break inside is \nu or \nabla with a single backslash
    several_lines = isinstance(answer, str) and "\n" in answer.rstrip()
    written = None if several_lines or len(str(answer)) > LONGEST else _FORMS[kind](answer)
    if written is None or (kind == "string" and len(written.split()) > max_words):
        return None, "answer_form"
    return ReasonerTask(kind, question, written), ""


def _text(value: Any) -> str:
    """A stripped string; "" for any other value."""
    return value.strip() if isinstance(value, str) else ""


# --------------------------------------------------------------------------------------------------- types of answers
def _integer(answer: _Plain) -> str | None:
    if isinstance(answer, str):
        return answer.strip().replace(",", "") if _INTEGER.fullmatch(answer.strip()) else None
    return str(answer) if isinstance(answer, int) and not isinstance(answer, bool) else None


def _decimal(answer: _Plain) -> str | None:
    if isinstance(answer, bool):
        return None
    text = answer.strip() if isinstance(answer, str) else repr(answer)
    return format(Decimal(text), "f") if _DECIMAL.fullmatch(text) else None


def _expression(answer: _Plain) -> str | None:
    return None if isinstance(answer, bool) else answer.strip() if isinstance(answer, str) else _decimal(answer)


def _string(answer: _Plain) -> str | None:
    return answer.strip() if isinstance(answer, str) else None


def _boolean(answer: _Plain) -> str | None:
    text = answer.strip() if isinstance(answer, str) else str(answer).lower() if isinstance(answer, bool) else ""
    return text if text in ("true", "false") else None


_FORMS = {"integer": _integer, "float": _decimal, "expression": _expression, "string": _string, "boolean": _boolean}


# ------------------------------------------------------------------------------------------------------------ rewards
def variance(pass_rate: float, width: float) -> float:
    """exp(−(Var − 0.25)²/(2 τ)) with Var = p (1 − p), the population variance of K answers (Eq. (1), Eq. (5))."""
    return math.exp(-((pass_rate * (1.0 - pass_rate) - BEST_VARIANCE) ** 2) / (2.0 * width))


def threshold(pass_rate: float) -> float:
    """1 unless all answers are correct or all are wrong (Figure 7)."""
    return float(0.0 < pass_rate < 1.0)


def reward(name: str, pass_rate: float, width: float) -> float:
    """The challenger's reward for a valid task (Eq. (1); the others: App. 8, Figure 7). Raises ValueError for an
    unknown name."""
    one_of("name", name, ChallengerReward)
    if name == "variance":
        return variance(pass_rate, width)
    return {"absolute-zero": learnability, "threshold": threshold, "r-zero": uncertainty}[name](pass_rate)


# ------------------------------------------------------------------------------------------------------- sub-sampling
def valid_share(valid: int, total: int, size: int) -> int:
    """How many of `size` attempts should be valid if `valid` of `total` are: proportional, rounded half up.

    At least one if any is valid, since a document without a valid attempt gives the reasoner no task. All valid ones if
    `total` is not above `size`.
    """
    if total <= size:
        return valid
    return min(max((2 * size * valid + total) // (2 * total), 1), valid)


def subsample(attempts: Sequence[ChallengerAttempt], size: int, rng: np.random.Generator) -> list[ChallengerAttempt]:
    """T_C: `size` attempts in the overall valid:invalid ratio (Algorithm 1 l.7), in order; all if there are fewer."""
    valid = [attempt for attempt in attempts if attempt.valid]
    invalid = [attempt for attempt in attempts if not attempt.valid]
    wanted = valid_share(len(valid), len(attempts), size)
    kept = drawn(valid, wanted, rng) + drawn(invalid, size - wanted, rng)
    return sorted(kept, key=lambda attempt: attempt.number)


# ------------------------------------------------------------------------------------------------------------ grading
def right(task: ReasonerTask, prediction: str | None, verdict: Verdict | None = None) -> bool:
    """1[â = a*]: the same letter for a multiple-choice task; the same text or, for mathematical answers, an equal value
    otherwise (§2.5). False without a prediction. verdict: on the pair, if it `needs_mathematics`."""
    if not prediction:
        return False
    if task.kind == MULTIPLE_CHOICE:
        return measures.letter(prediction) == task.answer
    return measures.same_text(prediction, [task.answer]) or verdict == "equal"


def needs_mathematics(task: ReasonerTask, prediction: str | None) -> bool:
    """True if the answer has to be compared by value, as its text is another."""
    return task.kind in MATHEMATICAL and bool(prediction) and not measures.same_text(prediction or "", [task.answer])
