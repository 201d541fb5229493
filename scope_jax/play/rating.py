"""Scalar judging: a model gives each answer a mark from 1 to 10, with the row's checklist before it (WildBench)."""

from __future__ import annotations

from collections.abc import Sequence

from scope_jax.config import Config
from scope_jax.play import prompting
from scope_jax.play.asking import ask_role
from scope_jax.play.roles import Role
from scope_jax.play.rubrics import RubricCase
from scope_jax.play.tools import Tools
from scope_jax.text import parsing

LOWEST, HIGHEST = 1, 10
MIDDLE = 5  # the mark of an answer that is no better than none


def mark_of(reply: str) -> int | None:
    """The first <score> outside of thinking; None unless it is a whole number from 1 to 10."""
    written = parsing.first([parsing.without_thinking(reply)], "score") or ""
    if not (written.isascii() and written.isdigit() and len(written) <= len(str(HIGHEST))):
        return None
    return int(written) if LOWEST <= int(written) <= HIGHEST else None


def value(mark: int) -> float:
    """(mark − 5)/5, from −0.8 to 1: WildBench's (mark − 5) · 2 as a share of 10 (Lin et al. 2025, section 4.3)."""
    return (mark - MIDDLE) / (HIGHEST - MIDDLE)


def rate(cfg: Config, prompts: str, judge: Role, tools: Tools, cases: Sequence[RubricCase]) -> list[int | None]:
    """The mark of each answer, None if the judge gave none; a missing answer gets the lowest without a request.

    prompts: the folder with rating.txt and nudge_rating.txt. Raises JudgeError and PromptError.
    """
    questions = {index: question(cfg, prompts, case) for index, case in enumerate(cases) if case.answer}
    nudge = prompting.filled(prompts, "nudge_rating", {}) if questions else ""
    answers = ask_role(tools, judge, list(questions.values()), mark_of, nudge).by(questions)
    return [answers[index].read if index in answers else LOWEST for index in range(len(cases))]


def question(cfg: Config, prompts: str, case: RubricCase) -> str:
    """Prompt to give an answer a mark. Raises PromptError."""
    checklist = "\n".join(f"- {prompting.shown(cfg, item.text)}" for item in case.rubric)
    task, answer = prompting.shown(cfg, case.question), prompting.shown(cfg, case.answer or "")
    values = {"task": task, "answer": answer, "checklist": checklist}
    return prompting.filled(prompts, "rating", values, ("task", "answer", "checklist"))


def check_prompts(cfg: Config, prompts: str) -> None:
    """Loads the prompts of the rating; raises PromptError."""
    question(cfg, prompts, RubricCase("", "", ()))
    prompting.filled(prompts, "nudge_rating", {})
