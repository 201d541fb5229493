"""Grades answers by exact match, by a judge that replies Correct or Wrong, or by both in turn.

A reply without a verdict is requested once more, then counted (`Grades.malformed`) and gets no reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scope_jax.config import GradingRule, one_of
from scope_jax.grading import rewards
from scope_jax.learner.types import Judgement, Reply
from scope_jax.play import asking
from scope_jax.play.prompting import Prompt
from scope_jax.text import templates
from scope_jax.text.parsing import neutralise, without_thinking

_WORD = re.compile(r"[a-z']+")
_NEGATIONS = ("not", "cannot", "no", "nor", "neither", "never", "hardly")
JUDGE = Prompt("judge", ("question", "prediction", "ground_truth"), ("prediction", "ground_truth"), system=False)
Ask = Callable[[Sequence[str]], list[Reply]]  # replies of the judge model to single user messages


def verdict(reply: str) -> bool | None:
    """True for Correct, False for Wrong or Incorrect, None for anything else (both words, neither, a negation).

    The reply's thinking is ignored, also if it was cut off.
    """
    words = _WORD.findall(without_thinking(reply).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    verdicts = {word for word in words if word in ("correct", "wrong", "incorrect")}
    if len(verdicts) != 1 or any(word in _NEGATIONS or word.endswith("n't") for word in words):
        return None
    return verdicts == {"correct"}


@dataclass(frozen=True)
class Case:
    """One prediction to grade; None if the policy gave none."""

    question: str
    prediction: str | None
    golds: tuple[str, ...]


@dataclass(frozen=True)
class Grades:
    """`correct` and the judgements for each case in order, and counts of distinct judge requests.

    asked: distinct requests; retried: sent again because the first reply had no verdict; malformed: requests without a
    verdict in the end; refused: of these, requests rejected by the endpoint.
    """

    correct: list[bool]
    judgements: list[tuple[Judgement, ...]]
    asked: int = 0
    retried: int = 0
    malformed: int = 0
    refused: int = 0


def grade(grader: str, prompts: str, ask: Ask, cases: Sequence[Case]) -> Grades:
    """Grades `cases` by "exact-match", "judge" or "exact-match-then-judge" (the judge gets those that did not match).

    `prompts` is the folder with `judge.txt`. A missing or empty prediction is wrong without a request. Identical
    requests are sent once. Raises `JudgeError` if the judge replies to many requests without a single verdict, and
    ValueError for an unknown `grader`.
    """
    one_of("grader", grader, GradingRule)
    correct = [
        grader != "judge" and bool(case.prediction) and rewards.exact_match(case.prediction or "", case.golds)
        for case in cases
    ]
    if grader == "exact-match":
        return Grades(correct, [()] * len(cases))
    open_cases = [case for case, right in zip(cases, correct, strict=True) if not right]
    judged = judge(prompts, ask, open_cases)
    results = iter(zip(judged.correct, judged.judgements, strict=True))
    both = [(True, ()) if right else next(results) for right in correct]
    return replace(judged, correct=[right for right, _ in both], judgements=[judgements for _, judgements in both])


def judge(prompts: str, ask: Ask, cases: Sequence[Case], key: str = "judge") -> Grades:
    """`grade` by the judge alone. key: the key of the judge's table in the card."""
    template = prompt(prompts)
    places = [place for place, case in enumerate(cases) if case.prediction]
    messages = [_message(template, cases[place]) for place in places]
    replies = asking.ask(lambda requests, again: ask(requests), messages, verdict, external=("the judge", key))
    judgements = [Judgement("grader", "", given, read) for read, given in zip(replies.read, replies.given, strict=True)]
    by_place = dict(zip(places, judgements, strict=True))
    return Grades(
        correct=[place in by_place and by_place[place].read is True for place in range(len(cases))],
        judgements=[(by_place[place],) if place in by_place else () for place in range(len(cases))],
        asked=replies.asked,
        retried=replies.retried,
        malformed=replies.malformed,
        refused=replies.refused,
    )


def prompt(folder: str) -> str:
    """The template of a judge request, `judge.txt` of a prompt folder; raises PromptError."""
    return templates.load(folder, JUDGE.name, known=JUDGE.variables, required=JUDGE.required or ())


def _message(template: str, case: Case) -> str:
    values = {
        "question": case.question,
        "prediction": case.prediction or "",
        "ground_truth": " / ".join(case.golds),  # in SPELL the questioner writes it
    }
    return templates.fill(template, {name: neutralise(value) for name, value in values.items()})
