"""Whether an answer is right: exact match, a judge that says Correct or Wrong, or both in turn.

A reply that is no verdict is asked for once more, then counted (`Grades.unparsed`) and earns no reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scope_jax.config import Grader, one_of
from scope_jax.learner.types import Judgement, Reply
from scope_jax.play import rewards
from scope_jax.play.judge_client import DEAF_AFTER, JudgeError
from scope_jax.text import templates
from scope_jax.text.parsing import neutralise, spoken

_WORD = re.compile(r"[a-z']+")
Ask = Callable[[Sequence[str]], list[Reply]]  # replies of the judge model to single user messages


def verdict(reply: str) -> bool | None:
    """True for Correct, False for Wrong or Incorrect, None for anything else (both words, neither, a negation).

    What the reply thinks is no part of it; a thought that was cut off leaves nothing.
    """
    words = _WORD.findall(spoken(reply).lower())
    said = {word for word in words if word in ("correct", "wrong", "incorrect")}
    if len(said) != 1 or any(word in ("not", "isn't", "never", "neither") for word in words):
        return None
    return said == {"correct"}


@dataclass(frozen=True)
class Case:
    """One prediction to grade; None where the policy gave none."""

    question: str
    prediction: str | None
    golds: tuple[str, ...]


@dataclass(frozen=True)
class Grades:
    """`correct` for each case in order, with what the judge was asked about it; and counts of different questions.

    judged: put to the judge; unparsed: without a verdict from it; refused: of these, not taken by its endpoint.
    """

    correct: list[bool]
    judgements: list[tuple[Judgement, ...]]
    judged: int = 0
    unparsed: int = 0
    refused: int = 0


def grade(grader: str, prompts: str, ask: Ask, cases: Sequence[Case]) -> Grades:
    """Grades of `cases` by "exact-match", "judge" or "exact-match-then-judge" (the judge sees what did not match).

    `prompts` is the folder with `judge.txt`. A missing or empty prediction is wrong without asking. Equal cases are
    asked once. Raises `JudgeError` when the judge answers many requests and none of the replies is a verdict, and
    ValueError for another `grader`.
    """
    one_of("grader", grader, Grader)
    correct = [
        grader != "judge" and bool(case.prediction) and rewards.exact_match(case.prediction or "", case.golds)
        for case in cases
    ]
    if grader == "exact-match":
        return Grades(correct, [()] * len(cases))
    template = prompt(prompts)
    open_cases = list(
        dict.fromkeys(case for case, right in zip(cases, correct, strict=True) if case.prediction and not right)
    )
    asked = dict(zip(open_cases, _judged(ask, [_message(template, case) for case in open_cases]), strict=True))
    given = [asked.get(case) for case in cases]
    return Grades(
        correct=[right or (one is not None and one.read is True) for one, right in zip(given, correct, strict=True)],
        judgements=[() if one is None else (one,) for one in given],
        judged=len(asked),
        unparsed=sum(one.read is None for one in asked.values()),
        refused=sum(bool(one.replies[-1].refused) for one in asked.values()),
    )


def prompt(folder: str) -> str:
    """The template of the judge's question, `judge.txt` in the folder of prompts; raises PromptError."""
    return templates.load(
        folder, "judge", known=("question", "prediction", "ground_truth"), required=("prediction", "ground_truth")
    )


def _message(template: str, case: Case) -> str:
    truth = case.golds[0] if len(case.golds) == 1 else " / ".join(case.golds)
    return templates.fill(
        template,
        {"question": neutralise(case.question), "prediction": neutralise(case.prediction or ""), "ground_truth": truth},
    )


def _judged(ask: Ask, messages: Sequence[str]) -> list[Judgement]:
    """What was replied to each message; one whose reply is no verdict is asked once more, unless it was refused."""
    if not messages:
        return []
    replies: list[tuple[Reply, ...]] = [(reply,) for reply in ask(messages)]
    again = [place for place, (one,) in enumerate(replies) if verdict(one.text) is None and not one.refused]
    if again:
        for place, reply in zip(again, ask([messages[place] for place in again]), strict=True):
            replies[place] = (*replies[place], reply)
    found = [Judgement("grader", "", tuple(given), verdict(given[-1].text)) for given in replies]
    if len(found) >= DEAF_AFTER and all(one.read is None for one in found):
        last = replies[-1][0]
        raise JudgeError(
            f"none of {len(found)} replies of the judge says Correct or Wrong, the last was "
            f"{last.refused or repr(last.text[:120])}; use a judge model that follows judge.txt, "
            "or raise judge.max_tokens."
        )
    return found
