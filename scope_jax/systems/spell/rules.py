"""The equations of SPELL, and the parsing of its roles' outputs, as pure functions of plain values."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scope_jax.config import RuleText, SpellTask, Vote, one_of
from scope_jax.play import measures
from scope_jax.systems.spell.records import LETTERS, Question
from scope_jax.text.objects import last_object

# Why a question is malformed (−1 in Eq. (7)): what is asked of the questioner's reply and it does not have.
MALFORMED = (
    "no_object",  # no JSON object at the end
    "wrong_keys",
    "no_text",  # a value that is no text, or blank
    "wrong_options",  # not four different ones
    "no_letter",  # the answer names none of the options
    "no_number",  # the answer is not exactly one number
    "zero",  # that number is 0
    "answer_too_long",
)
UNGROUNDED = "ungrounded"  # answered without the documents
# Questions that are not played at all, and that no role learns from.
UNPLAYED = ("prompt_too_long", "documents_too_long")
REASONS = (*MALFORMED, UNGROUNDED, *UNPLAYED)

_CONCLUSION = re.compile(r"\banswer\s++is\b\s*+[:：]?", re.IGNORECASE)
_VERDICT = re.compile(r"\[\[\s{0,8}(YES|NO)\s{0,8}\]\]", re.IGNORECASE)


# ------------------------------------------------------------------------------------------------------------- reading
def question_of(
    text: str, task: str, tokens: Callable[[str], int], max_answer_tokens: int
) -> tuple[Question | None, str]:
    """(question, ""), or (None, the reason of `MALFORMED`), of what a questioner says outside of thoughts (App. E).

    Raises ValueError for another `task`.
    """
    one_of("task", task, SpellTask)
    found = last_object(text)
    if found is None:
        return None, "no_object"
    keys = {"question", "answer"} | ({"options"} if task == "choice" else set())
    if set(found) != keys:
        return None, "wrong_keys"
    question, answer = _text(found["question"]), _text(found["answer"], numbers=task == "math")
    if question is None or answer is None:
        return None, "no_text"
    if task == "choice":
        return _choice(question, answer, found["options"])
    if task == "math":
        read = measures.readings(answer)
        if read is None:
            return None, "no_number"
        if read[0][0] == 0.0:
            return None, "zero"
    if tokens(answer) > max_answer_tokens:
        return None, "answer_too_long"
    return Question(question, answer), ""


def _text(value: Any, numbers: bool = False) -> str | None:
    """A value that is text, stripped, None if it is blank or something else. numbers: a JSON number is text, too."""
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value)
    return value.strip() or None if isinstance(value, str) else None


def _choice(question: str, answer: str, options: Any) -> tuple[Question | None, str]:
    if not isinstance(options, dict) or tuple(sorted(options)) != LETTERS:
        return None, "wrong_options"
    texts = [_text(options[letter], numbers=True) for letter in LETTERS]
    whole = tuple(text for text in texts if text is not None)
    if len({" ".join(text.lower().split()) for text in whole}) < len(LETTERS):
        return None, "wrong_options"
    chosen = measures.letter(answer)
    return (Question(question, chosen, whole), "") if chosen in LETTERS else (None, "no_letter")


def conclusion_of(text: str) -> str | None:
    """What a responder concludes with: the rest of the line behind its last "answer is"; None without that.

    Asterisks around it and a full stop behind it are no part of it. Brackets are: (1,234) may be a negative number.
    """
    marks = deque(_CONCLUSION.finditer(text), maxlen=1)
    if not marks:
        return None
    line = text[marks[0].end() :].lstrip(" \t\n*").partition("\n")[0].strip().strip("*").strip()
    return line.removesuffix(".").rstrip().rstrip("*").rstrip() or None


def verdict_of(text: str) -> bool | None:
    """True for [[YES]], False for [[NO]], outside of thoughts; None for both or neither (App. E)."""
    said = {match[1].upper() for match in _VERDICT.finditer(text)}
    return said == {"YES"} if len(said) == 1 else None


# ------------------------------------------------------------------------------------------------------------- rewards
def matches(task: str, response: str, conclusion: str | None, reference: str, reads: str) -> bool:
    """R_rule(y, a): cover exact match, a number within 0.15 %, or the letter of an option, as the task asks.

    Numbers and letters are read from the conclusion alone. reads: "response", cover exact match looks in all that the
    responder says (section 4.2), or "answer", in its conclusion. Raises ValueError for other words.
    """
    one_of("task", task, SpellTask)
    one_of("reads", reads, RuleText)
    if task == "qa":
        return measures.cover_exact_match(response if reads == "response" else conclusion or "", [reference])
    if conclusion is None:
        return False
    return (measures.numeric if task == "math" else measures.choice)(conclusion, [reference])


def vote(verdicts: Sequence[bool | None], rule: str) -> bool:
    """v_i: "majority", 1(Σ_j v_ij > G/2) (Eq. (4)), or "single", the first judgment. What is no verdict is no yes.

    So a tie is a no. Without judgments it is False. Raises ValueError for another `rule`.
    """
    one_of("vote", rule, Vote)
    if rule == "single":
        return bool(verdicts and verdicts[0])
    return 2 * sum(verdict is True for verdict in verdicts) > len(verdicts)


def verifier_rewards(verdicts: Sequence[bool | None], decided: bool, malformed: float) -> tuple[float, ...]:
    """r_ij = 1(v_ij = v_i) (Eq. (5)); `malformed` for what is no verdict."""
    return tuple(malformed if verdict is None else float(verdict == decided) for verdict in verdicts)


def questioner_reward(success: float, target: float, width: float) -> float:
    """exp(−(r̄ − μ)²/(2σ²)) for 0 < r̄ < 1, else 0 (Eq. (7))."""
    if not 0.0 < success < 1.0:
        return 0.0
    return math.exp(-((success - target) ** 2) / (2 * width**2))


def spread(rewards: Sequence[float]) -> bool:
    """True if they are not all the same: only then does a comparison among them say anything (App. C.3)."""
    return max(rewards) > min(rewards)


def allowed_tasks(shares: Mapping[str, float], families: Mapping[str, Sequence[str]], family: str | None) -> list[str]:
    """The tasks a cluster is for, of those with a share above 0: what `families` says of its family, or the task that
    is called like it, or else all."""
    listed = families.get(family or "", (family,) if family in shares else tuple(shares))
    return [task for task, share in shares.items() if share > 0 and task in listed]
