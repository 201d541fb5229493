"""Strict parsers for the challenger's output formats in its two stages (App. 11). Nothing is guessed or repaired."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from scope_jax.config import Config
from scope_jax.games.spice.options import options
from scope_jax.games.spice.records import MULTIPLE_CHOICE, Task
from scope_jax.play.math_answers import LONGEST
from scope_jax.text.objects import has_control, last_object, whole_object

_OPTION = re.compile(r"^[ \t]*+([A-Z])[).][ \t]*+(\S.*+)$", re.MULTILINE)
_INTEGER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?")
_LETTERS = ("A", "B", "C", "D")
Plain = str | int | float | bool


# ------------------------------------------------------------------------------------------------------- first stage
def format_of(cfg: Config, reply: str) -> tuple[str, str]:
    """(the kind of task chosen, "" if none; the reason for rejection, "" if valid).

    The reply must be a single JSON object with exactly one of its two flags true; a free-form answer must have one of
    the card's types.
    """
    found = whole_object(reply)
    if found is None:
        return "", "format_no_json"
    choice, free = found.get("suitable_for_mcq"), found.get("suitable_for_free_form")
    if not isinstance(choice, bool) or not isinstance(free, bool) or choice == free:
        return "", "format_flags"
    if choice:
        return (MULTIPLE_CHOICE, "") if options(cfg).formats != "free-form" else ("", "format_flags")
    kind = _text(found.get("best_answer_type")).lower()
    return (kind, "") if kind in options(cfg).answer_types else ("", "format_type")


# ------------------------------------------------------------------------------------------------------ second stage
def task_of(reply: str, kind: str, max_words: int) -> tuple[Task | None, str]:
    """(the task of this kind at the end of the reply, None if invalid; the reason for rejection, "" if valid).

    max_words: maximum length of an answer of type string.
    """
    found = last_object(reply) if reply.rstrip().endswith("}") else None
    used = (
        ("multiple_choice_question", "multiple_choice_correct") if kind == MULTIPLE_CHOICE else ("question", "answer")
    )
    if found is None or has_control([found.get(field) for field in used]):
        return None, "task_no_json"
    return _multiple_choice(found) if kind == MULTIPLE_CHOICE else _free_form(found, kind, max_words)


def _multiple_choice(found: Mapping[str, Any]) -> tuple[Task | None, str]:
    question, letter = _text(found.get("multiple_choice_question")), _text(found.get("multiple_choice_correct"))
    # the prompt tells the challenger to leave the other two fields empty if the document suits no question
    if not question or not _text(found.get("exam_question", question)):
        return None, "no_question"
    if not letter or not _text(found.get("correct_answer", letter)):
        return None, "no_answer"
    listed = list(_OPTION.finditer(question))
    texts = {" ".join(option[2].split()) for option in listed}
    labelled = tuple(option[1] for option in listed) == _LETTERS
    if not labelled or len(texts) < len(_LETTERS) or not question[: listed[0].start()].strip():
        return None, "options"
    return (Task(MULTIPLE_CHOICE, question, letter), "") if letter in _LETTERS else (None, "options")


def _free_form(found: Mapping[str, Any], kind: str, max_words: int) -> tuple[Task | None, str]:
    question, answer = _text(found.get("question")), found.get("answer")
    if not question:
        return None, "no_question"
    if not isinstance(answer, Plain) or (isinstance(answer, str) and not _text(answer)):
        return None, "no_answer"
    if _text(found.get("answer_type")).lower() != kind:
        return None, "answer_type"
    # a line break inside is \nu or \nabla with a single backslash
    several_lines = isinstance(answer, str) and "\n" in answer.rstrip()
    written = None if several_lines or len(str(answer)) > LONGEST else _FORMS[kind](answer)
    if written is None or (kind == "string" and len(written.split()) > max_words):
        return None, "answer_form"
    return Task(kind, question, written), ""


def _text(value: Any) -> str:
    """A stripped string; "" for any other value."""
    return value.strip() if isinstance(value, str) else ""


# --------------------------------------------------------------------------------------------------- types of answers
def _integer(answer: Plain) -> str | None:
    if isinstance(answer, str):
        return answer.strip().replace(",", "") if _INTEGER.fullmatch(answer.strip()) else None
    return str(answer) if isinstance(answer, int) and not isinstance(answer, bool) else None


def _decimal(answer: Plain) -> str | None:
    if isinstance(answer, bool):
        return None
    text = answer.strip() if isinstance(answer, str) else repr(answer)
    return format(Decimal(text), "f") if _DECIMAL.fullmatch(text) else None


def _expression(answer: Plain) -> str | None:
    return None if isinstance(answer, bool) else answer.strip() if isinstance(answer, str) else _decimal(answer)


def _string(answer: Plain) -> str | None:
    return answer.strip() if isinstance(answer, str) else None


def _boolean(answer: Plain) -> str | None:
    text = answer.strip() if isinstance(answer, str) else str(answer).lower() if isinstance(answer, bool) else ""
    return text if text in ("true", "false") else None


_FORMS = {"integer": _integer, "float": _decimal, "expression": _expression, "string": _string, "boolean": _boolean}
