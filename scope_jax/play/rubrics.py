"""Rubric grading: a judge decides for each criterion whether an answer meets it (SCOPE section 2, App. H)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.config import Config, Ungraded, one_of
from scope_jax.learner.types import Judgement
from scope_jax.play import prompting
from scope_jax.play.asking import ReadReply, Replies, ask_role
from scope_jax.play.prompting import Prompt
from scope_jax.play.roles import Role
from scope_jax.play.tools import Tools
from scope_jax.text import parsing

GRADER = Prompt("grader", ("task", "answer", "criterion"), ("answer", "criterion"), system=False)
NUDGE = Prompt("nudge_score", system=False)


@dataclass(frozen=True)
class Criterion:
    """One item of a rubric."""

    text: str
    """c_k."""
    weight: float = 1.0
    """w_k."""
    priority: str = ""
    """As its author wrote it; "" if it has none."""

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
    known = [k for k, verdict in enumerate(verdicts) if verdict is not None]
    total = sum(weights[k] for k in known if weights[k] > 0)
    if total <= 0 or len(known) < min_graded * len(verdicts):
        return None
    return sum(weights[k] for k in known if verdicts[k]) / total


def settled_score(
    verdicts: Sequence[bool | None], weights: Sequence[float], *, ungraded: str, min_graded: float
) -> float | None:
    """Eq. (1) when some criteria have no verdict (None); None if the share with a verdict is below `min_graded`.

    ungraded: "leave-out" takes the mean over the criteria with a verdict, "zero" counts the others as not met.
    Raises ValueError for any other value.
    """
    one_of("ungraded", ungraded, Ungraded)
    known = [k for k, verdict in enumerate(verdicts) if verdict is not None]
    if not known or len(known) < min_graded * len(verdicts):
        return None
    if ungraded == "zero":
        return rubric_score([bool(verdict) for verdict in verdicts], weights)
    if sum(weights[k] for k in known) <= 0:
        return None
    return rubric_score([bool(verdicts[k]) for k in known], [weights[k] for k in known])


# ------------------------------------------------------------------------------------------------------------ grading
def score_of(reply: str) -> bool | None:
    """True for <score>1</score>, False for 0, by the first score outside of thinking; None for anything else."""
    return {"0": False, "1": True}.get(parsing.first([parsing.without_thinking(reply)], "score") or "")


@dataclass(frozen=True)
class Grader:
    """The settings of rubric grading."""

    judge: Role
    """Who grades."""
    prompts: str
    """The folder with grader.txt and nudge_score.txt."""
    ungraded: Ungraded = "leave-out"
    """As in `settled_score`."""
    min_graded: float = 0.5
    """As in `settled_score`."""
    read: Callable[[Tools, str], str] = lambda tools, answer: answer
    """Returns the part of an answer that is shown to the judge."""


@dataclass(frozen=True)
class RubricCase:
    """An answer to grade."""

    question: str
    """The task."""
    answer: str | None
    """None if there is none."""
    rubric: tuple[Criterion, ...]
    """What it is graded by."""


@dataclass(frozen=True)
class Graded:
    """The grades of an answer."""

    verdicts: tuple[bool | None, ...]
    """b(o, q, 𝒢), one for each criterion (None: no valid verdict); () for a missing answer."""
    score: float | None
    """g(o, 𝒢), 0 for a missing answer; None: the judge failed."""
    judgements: tuple[Judgement, ...]
    """One for each criterion."""


UNGRADED = Graded((), None, ())  # an answer that has not been graded yet


def grade(
    cfg: Config, grader: Grader, tools: Tools, cases: Sequence[RubricCase], signed: bool = False
) -> tuple[list[Graded], Replies[bool]]:
    """Grades each case with one request per criterion, all in one batch; also returns the judge's replies.

    signed: the score is `points` instead of Eq. (1), for rubrics with negative weights.
    """
    questions = {
        (index, k): question(cfg, grader.prompts, case.question, text, criterion.text)
        for index, case in enumerate(cases)
        if case.answer is not None
        for text in [grader.read(tools, case.answer)]
        for k, criterion in enumerate(case.rubric)
    }
    nudge = prompting.filled(grader.prompts, NUDGE.name, {}) if questions else ""
    replies = ask_role(tools, grader.judge, list(questions.values()), score_of, nudge)
    answers = replies.by(questions)
    grades = []
    for index, case in enumerate(cases):
        items = range(len(case.rubric)) if case.answer is not None else ()
        grades.append(_graded(grader, case.rubric, [answers[index, k] for k in items], signed))
    return grades, replies


def _graded(grader: Grader, rubric: Sequence[Criterion], answers: Sequence[ReadReply[bool]], signed: bool) -> Graded:
    """The grades of an answer from the judge's answer about each criterion; none for a missing answer."""
    if not answers:
        return Graded((), 0.0, ())
    verdicts, weights = tuple(answer.read for answer in answers), [criterion.weight for criterion in rubric]
    judged = [Judgement("grader", item.text, a.given, a.read) for item, a in zip(rubric, answers, strict=True)]
    if signed:
        score = points(verdicts, weights, min_graded=grader.min_graded)
    else:
        score = settled_score(verdicts, weights, ungraded=grader.ungraded, min_graded=grader.min_graded)
    return Graded(verdicts, score, tuple(judged))


def question(cfg: Config, prompts: str, task: str, answer: str, criterion: str) -> str:
    """Prompt to decide whether the answer meets one criterion. Raises PromptError."""
    values = {"task": task, "answer": answer, "criterion": criterion}
    safe = {name: prompting.shown(cfg, text) for name, text in values.items()}
    return prompting.filled(prompts, GRADER.name, safe, GRADER.required or ())


def check_prompts(cfg: Config, prompts: str) -> None:
    """Loads the prompts of the grading; raises PromptError."""
    question(cfg, prompts, "", "", "")
    prompting.filled(prompts, NUDGE.name, {})
