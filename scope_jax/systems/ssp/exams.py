"""The exam of SSP's solver."""

from __future__ import annotations

from scope_jax.config import Config, Grader, Measure
from scope_jax.play import searching
from scope_jax.play.defaults import ACTOR
from scope_jax.play.exams import Exam
from scope_jax.systems.ssp import instructions, solver


def exam(cfg: Config) -> Exam:
    """Questions answered and graded as in training, except that the only format requirement is an `<answer>`."""
    rules: dict[Grader, tuple[Measure, ...]] = {
        "exact-match": ("exact-match",),
        "judge": ("judge",),
        "exact-match-then-judge": ("exact-match", "judge"),
    }
    return Exam(
        policy=ACTOR,
        prompt=lambda row, tokens: instructions.for_solver(cfg, row["question"]),
        read=solver.prediction_of,
        measures=("accuracy",),
        accuracy=rules[cfg.ssp.grader],
        stop=searching.stops_of(cfg, "answer"),
        max_turns=cfg.ssp.solver.max_turns,
        respond=lambda search: searching.responder_of(cfg, search, "answer"),
        searches=lambda completion: searching.searches_run(cfg, completion),
        prompts=cfg.ssp.prompts,
    )
