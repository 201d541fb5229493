"""SPELL's exams: questions about long texts, with the responder's prompt (App. C.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scope_jax.config import Config
from scope_jax.games.spell import instructions, rules
from scope_jax.games.spell.options import options
from scope_jax.games.spell.records import Question
from scope_jax.play import exams
from scope_jax.play.documents import without_middle
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACTOR
from scope_jax.play.searching import cut_off, reply_text
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages
from scope_jax.text.parsing import finished_lines


def exam(cfg: Config) -> Exam:
    """Rows with a long context, whose middle is cut out if the prompt is too long; `document_accuracy`."""
    accuracy, by_task = exams.document_accuracy(cfg)
    return Exam(
        policy=ACTOR,
        prompt=lambda row, tokens: prompt(cfg, row, tokens, options(cfg).exam_prompt_tokens),
        read=conclusion,
        measures=("accuracy",),
        accuracy=accuracy,
        by_task=by_task,
        kind="readings",
        prompts=options(cfg).prompts,
        prompt_tokens=options(cfg).exam_prompt_tokens,
        within=lambda limit: lambda row, tokens: prompt(cfg, row, tokens, limit),
    )


def prompt(cfg: Config, row: Mapping[str, Any], tokens: Callable[[str], int], limit: int) -> Messages:
    """The responder's prompt for a row, with at most `limit` tokens of text: the middle of the context is cut out if
    needed."""
    task = instructions.task_of(row)
    question = Question(row["question"], "", tuple(row["options"]))
    overhead = tokens(instructions.for_responder(cfg, task, question, "").text)
    context = without_middle(row["context"], max(limit - overhead, 0), tokens)
    return instructions.for_responder(cfg, task, question, instructions.shown(cfg, context))


def conclusion(completion: Completion) -> str | None:
    """The answer that is graded: the responder's conclusion. Of a reply that was cut, one of a finished line."""
    text = reply_text(completion)
    return rules.conclusion_of(finished_lines(text) if cut_off(completion) else text)
