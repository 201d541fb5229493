"""The exam of SCORE's solver."""

from __future__ import annotations

from scope_jax.config import Config
from scope_jax.games.score import conversation, instructions, solver
from scope_jax.games.score.evaluator import fixed_rubric
from scope_jax.games.score.options import options
from scope_jax.play import searching
from scope_jax.play.exams import Exam


def exam(cfg: Config) -> Exam:
    """Queries with rubrics, reported on under the card's fixed rubric, graded as `evaluate.grader` says."""
    rubric = fixed_rubric(cfg)
    return Exam(
        policy=conversation.policy_of(cfg, "solver"),
        prompt=lambda row, tokens: instructions.for_solver(cfg, row["question"], rubric),
        read=solver.report_of,
        measures=("rubric", "exact"),
        stop=searching.stops_of(cfg, conversation.REPORT),
        max_turns=options(cfg).solver.max_turns,
        respond=lambda search: searching.responder_of(cfg, search, conversation.REPORT),
        searches=lambda completion: conversation.searches_run(cfg, completion),
    )
