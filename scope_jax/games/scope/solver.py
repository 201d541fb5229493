"""SCOPE's solver: attempts at a task, graded criterion by criterion (section 2, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config, SamplingSection
from scope_jax.games.scope import conversation, instructions, judging, rules
from scope_jax.games.scope.options import options
from scope_jax.games.scope.records import Attempt, Problem, Solved
from scope_jax.play import documents, rubrics
from scope_jax.play.asking import Replies
from scope_jax.play.rubrics import Case, Grader
from scope_jax.play.tools import Agent, Rollout, Tools

POLICY = "solver"


def solve(
    cfg: Config, tools: Tools, problems: Sequence[Problem], samples: int, sampling: SamplingSection
) -> list[Solved]:
    """o^S_{1:N} ~ Rollout(S, q, N) for each problem, with answers extracted; not yet graded."""
    conversations = [instructions.for_solver(cfg, problem.question) for problem in problems]
    rollouts = [Rollout(problem.name, m) for problem, m in zip(problems, conversations, strict=True)]
    respond = conversation.responder(cfg, tools.search, "answer")
    stop = conversation.stops(cfg, "answer")
    agent = Agent.of_role(options(cfg).solver, POLICY, sampling, stop=stop, respond=respond)
    groups = tools.play("solver", rollouts, agent, samples)
    solved = []
    for problem, messages, completions in zip(problems, conversations, groups, strict=True):
        attempts = []
        for completion in completions:
            turns = conversation.parse_turns(cfg, completion, "answer")
            answer = rules.answer_of(turns)
            attempts.append(Attempt(completion, turns, answer, tools.tokens(answer) if answer else 0))
        solved.append(Solved(problem, messages, tuple(attempts)))
    return solved


def grader(cfg: Config) -> Grader:
    """The grader of the solver's attempts."""
    card = options(cfg)

    def read(tools: Tools, answer: str) -> str:
        return documents.cut(answer, card.solver_reward.hard_limit, tools.tokens) if card.cut_answer else answer

    return Grader(judging.judge_of(cfg, "grader"), card.prompts, card.ungraded, card.min_graded, read)


def grade(cfg: Config, tools: Tools, solved: Sequence[Solved]) -> tuple[list[Solved], Replies[bool]]:
    """b(o, q, 𝒢) and g(o, 𝒢) of every attempt: one judge request per criterion, all in one batch."""
    cases = [
        Case(group.problem.question, attempt.answer, group.problem.rubric)
        for group in solved
        for attempt in group.attempts
    ]
    grades, replies = rubrics.grade(cfg, grader(cfg), tools, cases)
    results = iter(grades)
    graded = []
    for group in solved:
        attempts = [replace(attempt, **vars(next(results))) for attempt in group.attempts]
        graded.append(replace(group, attempts=tuple(attempts)))
    return graded, replies


def mean_score(cfg: Config, solved: Solved) -> float | None:
    """ḡ: the mean score of the attempts at a task; None if none of them counts."""
    scores = [attempt.score for attempt in solved.attempts]
    answered = [attempt.answer is not None for attempt in solved.attempts]
    return rules.mean_score(scores, answered, options(cfg).missing_answer)


def reward(cfg: Config, attempt: Attempt) -> tuple[float, dict[str, float], bool]:
    """(R_S, its parts, whether it may be trained on) of an attempt (Eq. (6)).

    An answer that the judge failed to grade has no rubric score. With `ungraded` = "zero" the score counts as 0;
    otherwise the attempt is not trained on.
    """
    card = options(cfg).solver_reward
    form = rules.solver_format(card, attempt.turns)
    factor = rules.length_factor(card, attempt.tokens)
    search = rules.search_reward(attempt.turns, card.searches)
    total = rules.solver_reward(card, attempt.score or 0.0, factor, form.score, search)
    parts = {
        "format": form.score,
        "think": form.think,
        "tool": form.tool,
        "answer": form.result,
        "length": factor,
        "search": search,
    }
    graded = attempt.score is not None
    return (
        total,
        parts | ({"rubric": attempt.score or 0.0} if graded else {}),
        graded or options(cfg).ungraded == "zero",
    )
