"""Grades answers: exact match, a judge that says Correct or Wrong, or both in turn.

A reply without a verdict is requested once more, then counted (`Grades.unparsed`) and gets no reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scope_jax.config import Grader, one_of
from scope_jax.learner.types import Judgement, Reply
from scope_jax.play import asking, rewards
from scope_jax.text import templates
from scope_jax.text.parsing import neutralise, without_thinking

_WORD = re.compile(r"[a-z']+")
Ask = Callable[[Sequence[str]], list[Reply]]  # replies of the judge model to single user messages


def verdict(reply: str) -> bool | None:
    """True for Correct, False for Wrong or Incorrect, None for anything else (both words, neither, a negation).

    What the reply thinks is no part of it; a thought that was cut off leaves nothing.
    """
    words = _WORD.findall(without_thinking(reply).lower())
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
    open_cases = [case for case, right in zip(cases, correct, strict=True) if not right]
    judged = judge(prompts, ask, open_cases)
    given = iter(zip(judged.correct, judged.judgements, strict=True))
    both = [(True, ()) if right else next(given) for right in correct]
    return replace(judged, correct=[right for right, _ in both], judgements=[told for _, told in both])


def judge(prompts: str, ask: Ask, cases: Sequence[Case], key: str = "judge") -> Grades:
    """Grades by the judge alone; as `grade` otherwise. key: of the judge's table in the card."""
    template = prompt(prompts)
    put = [place for place, case in enumerate(cases) if case.prediction]
    messages = [_message(template, cases[place]) for place in put]
    replies = asking.ask(lambda asked, again: ask(asked), messages, verdict, outsider=("the judge", key))
    told = [Judgement("grader", "", given, read) for read, given in zip(replies.read, replies.given, strict=True)]
    given = dict(zip(put, told, strict=True))
    return Grades(
        correct=[place in given and given[place].read is True for place in range(len(cases))],
        judgements=[(given[place],) if place in given else () for place in range(len(cases))],
        judged=replies.asked,
        unparsed=replies.malformed,
        refused=replies.refused,
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
