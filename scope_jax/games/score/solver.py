"""SCORE's solver: reports on queries, written with searches under a rubric (section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence

from scope_jax.config import Config
from scope_jax.games.score import conversation, instructions
from scope_jax.games.score.consistency import conclusion_of
from scope_jax.games.score.evaluator import Query
from scope_jax.games.score.options import options
from scope_jax.games.score.records import Report, Rubric
from scope_jax.play import searching
from scope_jax.play.tools import Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing
from scope_jax.text.messages import Messages


def report_of(completion: Completion) -> str | None:
    """The report: content of the last closed `<answer>`; None without one or when it is empty."""
    return parsing.last(searching.contents(completion), conversation.REPORT) or None


def write_reports(cfg: Config, tools: Tools, queries: Sequence[Query], rubrics: Sequence[Rubric]) -> list[Report]:
    """y_i^k ~ π_s(· | q_i, H, w), k = 1…K, not yet assessed; the reports of a query are adjacent."""
    asked = [
        instructions.for_solver(cfg, row["question"], rubric) for row, rubric in zip(queries, rubrics, strict=True)
    ]
    card, policy = options(cfg).solver, conversation.policy_of(cfg, "solver")
    rollouts = [Rollout(f"{place}", messages) for place, messages in enumerate(asked)]
    groups = tools.play(
        "solver", rollouts, searching.agent(cfg, tools, card, policy, conversation.REPORT), card.samples
    )
    return [
        _report(cfg, place, asked[place], completion, rubrics[place])
        for place, group in enumerate(groups)
        for completion in group
    ]


def _report(cfg: Config, place: int, prompt: Messages, completion: Completion, rubric: Rubric) -> Report:
    text = report_of(completion)
    conclusion = None if text is None else conclusion_of(text, options(cfg).conclusion)
    return Report(place, prompt, completion, rubric, text, conclusion, reason="no_report" if text is None else "")
