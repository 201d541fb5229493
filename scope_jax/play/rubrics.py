"""Rubric grading: a judge decides for each criterion whether an answer meets it (SCOPE section 2, App. H)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.config import Config, Ungraded, one_of
from scope_jax.learner.types import Judgement
from scope_jax.play import prompting
from scope_jax.play.asking import Judge, Replies
from scope_jax.play.tools import Tools
from scope_jax.text import parsing


@dataclass(frozen=True)
class Criterion:
    """One item of a rubric: c_k and w_k."""

    text: str
    weight: float = 1.0
    priority: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON data in the form of `schemas.tasks`."""
        return {"criterion": self.text, "weight": self.weight, "priority": self.priority}


def rubric_of(row: Mapping[str, Any]) -> tuple[Criterion, ...]:
    """The rubric of a row of `schemas.tasks` or `schemas.marked`."""
    return tuple(Criterion(item["criterion"], item["weight"], item["priority"]) for item in row["rubric"])


# ---------------------------------------------------------------------------------------------------------- equations
def rubric_score(verdicts: Sequence[bool], weights: Sequence[float]) -> float:
    """g(o, 𝒢) = (1 / Σₖ wₖ) Σₖ wₖ bₖ (SCOPE Eq. (1)): the weighted share of criteria that are met.

    Raises ValueError without a criterion of positive weight, or for a negative weight.
    """
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"rubric weights must be 0 or more with a positive sum, but are {list(weights)}")
    return sum(weight for weight, met in zip(weights, verdicts, strict=True) if met) / total


def points(verdicts: Sequence[bool | None], weights: Sequence[float], *, min_graded: float) -> float | None:
    """Σₖ wₖ bₖ over the sum of the positive wₖ: items of negative weight take points off, so it may be below 0.

    HealthBench (Arora et al. 2025, section 3), ResearchRubrics. Criteria without a verdict (None) are left out; None if
    the share with a verdict is below `min_graded` or none of them has a positive weight.
    """
    known = [place for place, verdict in enumerate(verdicts) if verdict is not None]
    total = sum(weights[place] for place in known if weights[place] > 0)
    if total <= 0 or len(known) < min_graded * len(verdicts):
        return None
    return sum(weights[place] for place in known if verdicts[place]) / total


def settled_score(
    verdicts: Sequence[bool | None], weights: Sequence[float], *, ungraded: str, min_graded: float
) -> float | None:
    """Eq. (1) when some criteria have no verdict (None); None if the share with a verdict is below `min_graded`.

    ungraded: "leave-out" takes the mean over the criteria with a verdict, "zero" counts the others as not met.
    Raises ValueError for any other value.
    """
    one_of("ungraded", ungraded, Ungraded)
    known = [place for place, verdict in enumerate(verdicts) if verdict is not None]
    if not known or len(known) < min_graded * len(verdicts):
        return None
    if ungraded == "zero":
        return rubric_score([bool(verdict) for verdict in verdicts], weights)
    if sum(weights[place] for place in known) <= 0:
        return None
    return rubric_score([bool(verdicts[place]) for place in known], [weights[place] for place in known])


# ------------------------------------------------------------------------------------------------------------ grading
def score_of(reply: str) -> bool | None:
    """True for <score>1</score>, False for 0, by the first score outside of thinking; None for anything else."""
    return {"0": False, "1": True}.get(parsing.first([parsing.without_thinking(reply)], "score") or "")


@dataclass(frozen=True)
class Grader:
    """The settings of rubric grading.

    prompts: the folder with grader.txt and nudge_score.txt. ungraded and min_graded: as in `settled_score`. read:
    returns the part of an answer that is shown to the judge.
    """

    judge: Judge
    prompts: str
    ungraded: Ungraded = "leave-out"
    min_graded: float = 0.5
    read: Callable[[Tools, str], str] = lambda tools, answer: answer


@dataclass(frozen=True)
class Case:
    """An answer to grade; None if there is none."""

    question: str
    answer: str | None
    rubric: tuple[Criterion, ...]


@dataclass(frozen=True)
class Graded:
    """b(o, q, 𝒢), one verdict per criterion (None: no valid verdict), and g(o, 𝒢).

    A missing answer has no verdicts and the score 0. A score of None means that the judge failed.
    """

    verdicts: tuple[bool | None, ...]
    score: float | None
    judgements: tuple[Judgement, ...]


def grade(
    cfg: Config, grader: Grader, tools: Tools, cases: Sequence[Case], signed: bool = False
) -> tuple[list[Graded], Replies[bool]]:
    """Grades each case with one request per criterion, all in one batch; also returns the judge's replies.

    signed: the score is `points` instead of Eq. (1), for rubrics with negative weights.
    """
    questions = [
        question(cfg, grader.prompts, case.question, read, criterion.text)
        for case in cases
        if case.answer is not None
        for read in [grader.read(tools, case.answer)]
        for criterion in case.rubric
    ]
    nudge = prompting.filled(grader.prompts, "nudge_score", {}) if questions else ""
    replies = grader.judge.ask(tools, questions, score_of, nudge)
    settled = zip(replies.read, replies.given, strict=True)
    return [_graded(grader, case, settled, signed) for case in cases], replies


def question(cfg: Config, prompts: str, task: str, answer: str, criterion: str) -> str:
    """Prompt to decide whether the answer meets one criterion. Raises PromptError."""
    values = {"task": task, "answer": answer, "criterion": criterion}
    safe = {name: prompting.shown(cfg, text) for name, text in values.items()}
    return prompting.filled(prompts, "grader", safe, ("answer", "criterion"))


def check_prompts(cfg: Config, prompts: str) -> None:
    """Loads the prompts of the grading; raises PromptError."""
    question(cfg, prompts, "", "", "")
    prompting.filled(prompts, "nudge_score", {})


def _graded(grader: Grader, case: Case, settled: Any, signed: bool) -> Graded:
    """The grades of a case, from the next entries of `settled`."""
    results = [(criterion, *next(settled)) for criterion in (() if case.answer is None else case.rubric)]
    verdicts = tuple(verdict for _, verdict, _ in results)
    judged = tuple(Judgement("grader", criterion.text, given, verdict) for criterion, verdict, given in results)
    if not verdicts:
        return Graded((), 0.0, ())
    weights = [criterion.weight for criterion in case.rubric]
    if signed:
        return Graded(verdicts, points(verdicts, weights, min_graded=grader.min_graded), judged)
    score = settled_score(verdicts, weights, ungraded=grader.ungraded, min_graded=grader.min_graded)
    return Graded(verdicts, score, judged)
