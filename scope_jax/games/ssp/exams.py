"""The exam of SSP's solver."""

from __future__ import annotations

from scope_jax.config import Config, GradingRule, Measure
from scope_jax.games.ssp import instructions, solver
from scope_jax.games.ssp.options import options
from scope_jax.play import searching
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACTOR


def exam(cfg: Config) -> Exam:
    """Questions answered and graded as in training, except that the only format requirement is an `<answer>`."""
    rules: dict[GradingRule, tuple[Measure, ...]] = {
        "exact-match": ("exact-match",),
        "judge": ("judge",),
        "exact-match-then-judge": ("exact-match", "judge"),
    }
    return Exam(
        policy=ACTOR,
        prompt=lambda row, tokens: instructions.for_solver(cfg, row["question"]),
        read=solver.prediction_of,
        measures=("accuracy",),
        accuracy=rules[options(cfg).grader],
        stop=searching.stops_of(cfg, "answer"),
        max_turns=options(cfg).solver.max_turns,
        respond=lambda search: searching.responder_of(cfg, search, "answer"),
        searches=lambda completion: searching.searches_run(cfg, completion),
        prompts=options(cfg).prompts,
    )
