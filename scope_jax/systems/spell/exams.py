"""SPELL's exams: questions about long texts, with the responder's prompt (App. C.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollouts.types import Completion
from scope_jax.config import Config
from scope_jax.play.defaults import ACTOR
from scope_jax.play.documents import without_middle
from scope_jax.play.exams import Exam
from scope_jax.systems.spell import instructions, rules
from scope_jax.systems.spell.records import Question
from scope_jax.systems.spell.talking import said
from scope_jax.text.messages import Messages


def exam(cfg: Config) -> Exam:
    """Rows with a text, of which the middle is left out where the prompt is too long. `accuracy` is the larger of cover
    exact match and, with a judge in the card, what the judge says."""
    judged = cfg.judge is not None or cfg.evaluate.judge is not None
    return Exam(
        policy=ACTOR,
        prompt=lambda row, tokens: prompt(cfg, row, tokens),
        read=conclusion,
        measures=("accuracy",),
        accuracy=("cover-exact-match", "judge") if judged else ("cover-exact-match",),
        kind="readings",
        prompts=cfg.spell.prompts,
    )


def prompt(cfg: Config, row: Mapping[str, Any], tokens: Callable[[str], int]) -> Messages:
    """The responder's prompt for a row, in at most `exam_prompt_tokens` of text: its context loses its middle.

    The task is the row's, or multiple choice where it has options, or else document QA. Raises ValueError for a task
    that is none.
    """
    task = row["task"] or ("choice" if row["options"] else "qa")
    if task not in instructions.TASKS:
        raise ValueError(
            f"a row of an evaluation set has the task {task!r}; give one of {', '.join(instructions.TASKS)}, or none."
        )
    question = Question(row["question"], "", tuple(row["options"]))
    bare = tokens(instructions.for_responder(cfg, task, question, "").text)
    context = without_middle(row["context"], max(cfg.spell.exam_prompt_tokens - bare, 0), tokens)
    return instructions.for_responder(cfg, task, question, instructions.shown(cfg, context))


def conclusion(completion: Completion) -> str | None:
    """The answer that is compared: what the responder concludes with."""
    return rules.conclusion_of(said(completion))
