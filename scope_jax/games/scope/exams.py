"""The exam of SCOPE's solver."""

from __future__ import annotations

from collections.abc import Sequence

from scope_jax.config import Config
from scope_jax.games.scope import conversation, instructions, rules, solver
from scope_jax.games.scope.options import options
from scope_jax.games.scope.rules import ParsedTurn
from scope_jax.play.exams import Exam
from scope_jax.rollouts.types import Completion


def exam(cfg: Config) -> Exam:
    """Tasks with rubrics, answered as in training and graded by the card's grader."""

    def turns(completion: Completion) -> Sequence[ParsedTurn]:
        return conversation.parse_turns(cfg, completion, "answer")

    return Exam(
        policy=solver.POLICY,
        prompt=lambda row, tokens: instructions.for_solver(cfg, row["question"], cfg.evaluate.max_turns),
        read=lambda completion: rules.answer_of(turns(completion)),
        measures=("rubric", "exact"),
        stop=conversation.stops(cfg, "answer"),
        max_turns=options(cfg).solver.max_turns,
        respond=lambda search: conversation.responder(cfg, search, "answer"),
        searches=lambda completion: rules.searches_run(turns(completion)),
        grader=solver.grader(cfg),
    )
