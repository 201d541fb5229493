"""How well a solver does on rows with rubrics, and what of it is searching and what writing (SCOPE Table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollouts.types import Completion
from scope_jax.config import Config, SamplingSection
from scope_jax.play import searching
from scope_jax.play.measures import facts_stated
from scope_jax.play.system import ExamNeeds
from scope_jax.play.tools import Prompt, Tools
from scope_jax.systems.scope import instructions, judging, rules, solver, talking
from scope_jax.systems.scope.records import Attempt, Problem, Solved, problem_of
from scope_jax.text.messages import Messages


def exam_needs(cfg: Config) -> ExamNeeds:
    """Tasks with rubrics, and the grader: none of the judge's other jobs."""
    outside = judging.endpoints(cfg, ("grader",))
    return ExamNeeds("tasks", solver.POLICY, uses_base=not outside, judges=outside)


def read_exam_prompts(cfg: Config) -> None:
    """The solver's and the grader's."""
    instructions.for_solver(cfg, "")
    instructions.not_run(cfg)
    instructions.for_grader(cfg, "", "", "")
    instructions.nudge(cfg, "score")


def answer(
    cfg: Config, tools: Tools, rows: Sequence[Mapping[str, Any]], *, temperature: float, max_tokens: int
) -> list[dict[str, Any]]:
    """The solver's answer to each row with a rubric, graded by the card's grader.

    measures: `score`, Eq. (1), which an answer without verdicts lacks unless `ungraded = "zero"`; `ungraded`, 1 in that
    case; `searches` and `answer_tokens`; for rubrics with facts `exact`, see `facts_stated`. counts: criteria put to
    the judge, and those without a verdict.
    """
    solved = _solve(cfg, tools, rows, temperature, max_tokens)
    graded, _ = solver.grade(cfg, tools, solved)
    records = [_record(cfg, group, rules.searches_run(group.attempts[0].said)) for group in graded]
    for record, row in zip(records, rows, strict=True):
        if (exact := facts_stated(record["prediction"], row["rubric"])) is not None:
            record["measures"]["exact"] = exact
    return records


def _solve(
    cfg: Config, tools: Tools, rows: Sequence[Mapping[str, Any]], temperature: float, max_tokens: int
) -> list[Solved]:
    problems = [problem_of(row, f"{place}") for place, row in enumerate(rows)]
    limit = cfg.evaluate.max_response_tokens
    sampling = SamplingSection(temperature=temperature, max_tokens=max_tokens, max_response_tokens=limit)
    return solver.solve(cfg, tools, problems, 1, sampling, role="eval")


def _record(cfg: Config, group: Solved, searches: int) -> dict[str, Any]:
    (attempt,) = group.attempts
    counts = attempt.score is not None or cfg.scope.ungraded == "zero"
    return {
        "question": group.problem.question,
        "rubric": [criterion.plain() for criterion in group.problem.rubric],
        "prediction": attempt.answer,
        "verdicts": list(attempt.verdicts),
        "measures": {
            **({"score": attempt.score or 0.0} if counts else {}),
            "ungraded": float(attempt.score is None),
            "searches": float(searches),
            "answer_tokens": float(attempt.tokens),
        },
        "counts": {"judge_asked": len(attempt.verdicts), "judge_unparsed": attempt.verdicts.count(None)},
        "text": {"prompt": group.prompt.text, "turns": searching.transcript(attempt.completion)},
    }


# -------------------------------------------------------------------------------------------------------------- replay
@dataclass(frozen=True)
class Trajectory:
    """An episode of one solver up to its last turn, for another to end it."""

    problem: Problem
    prompt: Messages
    ids: tuple[int, ...]  # everything the engine saw before the last turn
    searches: int


def trajectories(
    cfg: Config, tools: Tools, rows: Sequence[Mapping[str, Any]], *, temperature: float, max_tokens: int
) -> list[Trajectory]:
    """What the solver of `tools` searches for and reads on each row, without what it then writes."""
    found = []
    for group in _solve(cfg, tools, rows, temperature, max_tokens):
        (attempt,) = group.attempts
        searches = rules.searches_run(attempt.said)
        found.append(Trajectory(group.problem, group.prompt, before_last_turn(attempt.completion), searches))
    return found


def before_last_turn(completion: Completion) -> tuple[int, ...]:
    """Prompt and turns as ids, without the last turn of the policy; the prompt alone where it has none."""
    row = completion.rows[-1]
    last = len(completion.turns[-1].ids) if completion.turns else 0
    ids = np.concatenate([row.prompt_ids, row.ids_T[: len(row.ids_T) - last]])
    return tuple(int(token) for token in ids)


def finish(
    cfg: Config, tools: Tools, found: Sequence[Trajectory], *, temperature: float, max_tokens: int
) -> list[dict[str, Any]]:
    """Records, as `answer` gives them, of the last turns that the solver of `tools` writes to others' trajectories.

    It has this one turn: a further search instead of an answer is not run, and counts as no answer.
    """
    groups = tools.generate(
        "replay",
        [Prompt(trajectory.ids, trajectory.problem.name, trajectory.prompt) for trajectory in found],
        1,
        policy=solver.POLICY,
        temperature=temperature,
        max_tokens=max_tokens,
        stop=talking.stops(cfg, "answer"),
    )
    solved = []
    for trajectory, (completion,) in zip(found, groups, strict=True):
        said = talking.said(cfg, completion, "answer")
        written = rules.answer_of(said)
        attempt = Attempt(completion, said, written, tools.tokens(written) if written else 0)
        solved.append(Solved(trajectory.problem, trajectory.prompt, (attempt,)))
    graded, _ = solver.grade(cfg, tools, solved)
    return [_record(cfg, group, trajectory.searches) for group, trajectory in zip(graded, found, strict=True)]
