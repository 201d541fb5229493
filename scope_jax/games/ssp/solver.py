"""SSP's solver: problems for the slots, attempts at them, grading (§3.1, App. B.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.data.keys import drawn, rng
from scope_jax.games.ssp import instructions, pool
from scope_jax.games.ssp.options import options
from scope_jax.games.ssp.records import Problem, Proposal, Solved
from scope_jax.play import grading, searching
from scope_jax.play.game import ACTOR
from scope_jax.play.tools import Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects, parsing

DUMMY = "There is no question this time; reply with the word none."


def fill_slots(cfg: Config, proposals: Sequence[Proposal], earlier: Sequence[pool.Entry], step: int) -> list[Problem]:
    """A problem for each slot: its own valid question, else one from the pool, else the dummy (App. B.1)."""
    last = sorted({p.slot.index: p for p in proposals}.items())
    empty = [index for index, proposal in last if proposal.reason]
    replays = options(cfg).fill in ("replay", "replay-reset")
    entries = drawn(earlier, len(empty), rng("ssp replay", cfg.seed, step)) if replays else []
    replayed = dict(zip(empty, entries, strict=False))
    problems = []
    for index, proposal in last:
        if not proposal.reason:
            problems.append(Problem(index, proposal.question or "", proposal.slot.golds, "fresh"))
        elif index in replayed:
            problems.append(Problem(index, replayed[index]["question"], tuple(replayed[index]["answers"]), "replay"))
        elif options(cfg).dummy == "rollout":
            problems.append(Problem(index, DUMMY, (), "dummy"))
    return problems


def solve(cfg: Config, tools: Tools, problems: Sequence[Problem]) -> list[Solved]:
    """ρʲ ~ π(· | x_solve, q), j = 1…n, for each problem; not yet graded."""
    card, dialect = options(cfg).solver, dialects.load(cfg.model.dialect)
    conversations = [instructions.for_solver(cfg, problem.question) for problem in problems]
    rollouts = [Rollout(f"{p.slot}", messages) for p, messages in zip(problems, conversations, strict=True)]
    groups = tools.play("solver", rollouts, searching.agent(cfg, tools, card, ACTOR, "answer"), card.samples)
    solved = []
    for problem, messages, group in zip(problems, conversations, groups, strict=True):
        predictions = tuple(prediction_of(completion) for completion in group)
        formed = tuple(searching.keeps_format(c, dialect, "answer", options(cfg).format) for c in group)
        solved.append(
            Solved(problem, messages, tuple(group), predictions, formed, (False,) * len(group), ((),) * len(group))
        )
    return solved


def prediction_of(completion: Completion) -> str | None:
    """A(ρ): content of the last `<answer>`; None if missing or empty."""
    return parsing.last(searching.contents(completion), "answer") or None


def grade_solver(cfg: Config, tools: Tools, solved: Sequence[Solved]) -> tuple[list[Solved], grading.Grades]:
    """r(A(ρʲ), a*) for every attempt; dummies, and attempts that violate the format, are not graded."""
    cases = [
        grading.Case(group.problem.question, prediction if formed else None, group.problem.golds)
        for group in solved
        if group.problem.origin != "dummy"
        for prediction, formed in zip(group.predictions, group.formed, strict=True)
    ]
    grades = grading.grade(options(cfg).grader, options(cfg).prompts, tools.judge, cases)
    results = iter(zip(grades.correct, grades.judgements, strict=True))
    graded = []
    for group in solved:
        if group.problem.origin != "dummy":
            correct, judgements = zip(*(next(results) for _ in group.completions), strict=True)
            group = replace(group, correct=correct, judgements=judgements)
        graded.append(group)
    return graded, grades
