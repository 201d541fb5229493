"""The solver's side of SCOPE: attempts at a task, graded criterion by criterion (section 2, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config, SamplingSection
from scope_jax.learner.types import Judgement
from scope_jax.play import documents
from scope_jax.play.tools import Prompt, Tools
from scope_jax.systems.scope import instructions, judging, rules, talking
from scope_jax.systems.scope.records import Attempt, Problem, Solved

POLICY = "solver"


def solve(
    cfg: Config,
    tools: Tools,
    problems: Sequence[Problem],
    samples: int,
    sampling: SamplingSection,
    role: str = "solver",
) -> list[Solved]:
    """o^S_{1:N} ~ Rollout(S, q, N) for each problem, their answers extracted; not yet graded."""
    if not problems:
        return []
    card = cfg.scope.solver
    asked = [instructions.for_solver(cfg, problem.question) for problem in problems]
    groups = tools.generate(
        role,
        [Prompt(tools.encode_prompt(said), problem.name, said) for said, problem in zip(asked, problems, strict=True)],
        samples,
        policy=POLICY,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        stop=talking.stops(cfg, "answer"),
        max_turns=card.max_turns,
        max_prompt_tokens=card.max_prompt_tokens if role == "solver" else None,  # an exam is taken as it is
        max_response_tokens=sampling.max_response_tokens,
        respond=talking.responder(cfg, tools, "answer"),
        tempered=card.loss.tempered,
    )
    solved = []
    for problem, messages, completions in zip(problems, asked, groups, strict=True):
        attempts = []
        for completion in completions:
            said = talking.said(cfg, completion, "answer")
            answer = rules.answer_of(said)
            attempts.append(Attempt(completion, said, answer, tools.tokens(answer) if answer else 0))
        solved.append(Solved(problem, messages, tuple(attempts)))
    return solved


def grade(cfg: Config, tools: Tools, solved: Sequence[Solved]) -> tuple[list[Solved], judging.Replies[bool]]:
    """b(o, q, 𝒢) and g(o, 𝒢) of every attempt: one question for each criterion, all in one batch.

    An attempt without an answer scores 0 and is not put to the judge.
    """
    limit = cfg.scope.solver_reward.hard_limit
    questions: list[str] = []
    for group in solved:
        for attempt in group.attempts:
            if attempt.answer is None:
                continue
            read = documents.cut(attempt.answer, limit, tools.tokens) if cfg.scope.cut_answer else attempt.answer
            questions += [
                instructions.for_grader(cfg, group.problem.question, read, criterion.text)
                for criterion in group.problem.rubric
            ]
    replies = judging.scores(cfg, tools, "grader", questions)
    settled = zip(replies.read, replies.given, strict=True)
    graded = []
    for group in solved:
        attempts = []
        for attempt in group.attempts:
            rubric = () if attempt.answer is None else group.problem.rubric
            own = [(criterion.text, *next(settled)) for criterion in rubric]
            verdicts = tuple(verdict for _, verdict, _ in own)
            judged = tuple(Judgement("grader", text, given, verdict) for text, verdict, given in own)
            score = _score(cfg, group.problem, verdicts)
            attempts.append(replace(attempt, verdicts=verdicts, score=score, judgements=judged))
        graded.append(replace(group, attempts=tuple(attempts)))
    return graded, replies


def _score(cfg: Config, problem: Problem, verdicts: Sequence[bool | None]) -> float | None:
    """g(o, 𝒢): 0 without an answer, None where the judge failed."""
    if not verdicts:
        return 0.0
    card = cfg.scope
    weights = [criterion.weight for criterion in problem.rubric]
    return rules.settled_score(verdicts, weights, ungraded=card.ungraded, min_graded=card.min_graded)


def mean_score(cfg: Config, solved: Solved) -> float | None:
    """ḡ: how well the attempts at a task did; None where none of them counts."""
    scores = [attempt.score for attempt in solved.attempts]
    answered = [attempt.answer is not None for attempt in solved.attempts]
    return rules.mean_score(scores, answered, cfg.scope.missing_answer)


def reward(cfg: Config, attempt: Attempt) -> tuple[float, dict[str, float], bool]:
    """(R_S, its parts, whether it may be learned from) of an attempt (Eq. (6)).

    An answer that the judge failed to grade has no rubric score: it counts 0 where the card says so (`ungraded`), and
    is not learned from otherwise.
    """
    card = cfg.scope.solver_reward
    form = rules.solver_format(card, attempt.said)
    factor = rules.length_factor(card, attempt.tokens)
    search = rules.search_reward(attempt.said, card.searches)
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
    return total, parts | ({"rubric": attempt.score or 0.0} if graded else {}), graded or cfg.scope.ungraded == "zero"
