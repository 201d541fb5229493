"""Absolute Zero as a `Game`: its roles, a step of self-play, the buffers between steps, the exam of its solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.environments import functions
from scope_jax.games.absolute_zero import messages, roles, rules, seeding, state
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection, check, options
from scope_jax.games.absolute_zero.roles import PROPOSER, SOLVER, card_roles
from scope_jax.games.absolute_zero.state import (
    AbsoluteZeroOutcome,
    AnswerCase,
    ProgramAttempt,
    SolverProblem,
    TaskProposal,
)
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.exams import Answer, Exam
from scope_jax.play.game import Game, Starter, Updates
from scope_jax.play.roles import one_update_per_policy
from scope_jax.play.step import Memory, Played, Step
from scope_jax.play.tools import Tools


def play(step: Step[AbsoluteZeroSection]) -> Played:
    """One step up to the update: episodes of both roles, and the tasks that enter the buffers."""
    # initial seeding, before the first step
    first_buffers = None if step.memory else seeding.first_buffers(step)
    before = step.memory if first_buffers is None else first_buffers
    # propose phase: tasks of each kind
    proposals = roles.propose(step, step.card.tasks, before, number=step.number + 1)
    # running them validates them, and tells their outputs
    proposals = roles.validate(step, proposals, number=step.number + 1)
    # the valid ones enter the buffers
    tasks = {kind: roles.tasks_to_remember(step, kind, proposals) for kind in step.card.tasks}
    after = state.add_to_buffers(before, tasks, step.card.buffer)
    # solve phase: the new tasks several times, for their proposer's reward; and a batch from the buffers
    chosen = roles.choose_problems(step, before, after)
    estimates, answers = roles.solve(step, state.new_problems(proposals), chosen)
    # running them says which are right; a right answer in a bad form counts for the proposer, but not for the solver
    estimates = roles.grade_attempts(step, estimates, formal=False)
    answers = roles.grade_attempts(step, answers, formal=True)
    # rewards
    episodes = proposer_episodes(step, proposals, state.solve_rates(estimates)) + solver_episodes(answers)
    # the training loop makes one update: task-relative REINFORCE++, see `arrange`
    return Played(episodes, outcome=AbsoluteZeroOutcome(first_buffers=first_buffers, tasks=tasks))


def remember(cfg: Config, memory: Memory, outcome: AbsoluteZeroOutcome, number: int) -> tuple[Memory, Metrics]:
    """The buffers with the step's valid tasks, the oldest of which are forgotten."""
    before = memory if outcome["first_buffers"] is None else outcome["first_buffers"]
    after = state.add_to_buffers(before, outcome["tasks"], options(cfg).buffer)
    return after, {f"{kind}/buffer": float(len(tasks)) for kind, tasks in after.items()}


def proposer_episodes(
    step: Step[AbsoluteZeroSection], proposals: Sequence[TaskProposal], rates: Mapping[str, float]
) -> list[Episode]:
    """An episode for each proposal, rewarded by how often its task is solved.

    rates: p of valid proposals, by the names of their rollouts.
    """
    episodes = []
    for proposal in proposals:
        rate = rates.get(proposal.sample.rollout)
        parts = {"valid": 0.0} if rate is None else {"valid": 1.0, "solved": rate}
        episode = proposal.sample.episode(
            rules.proposer_reward(rate, step.card),
            parts=parts,
            text=proposal.task or {},
            role=f"{PROPOSER}_{proposal.kind}",
            group=proposal.sample.rollout,
        )
        episodes.append(episode)
    return episodes


def solver_episodes(attempts: Sequence[ProgramAttempt]) -> list[Episode]:
    """An episode for each answer, rewarded if it is right."""
    episodes = []
    for attempt in attempts:
        grade = attempt.grade
        parts = {"format": 0.0} if grade is None else {"format": 1.0, "solved": grade}
        episode = attempt.sample.episode(
            rules.solver_reward(grade),
            parts=parts,
            text=attempt.problem.task,
            role=f"{SOLVER}_{attempt.problem.kind}",
            group=attempt.sample.rollout,
        )
        episodes.append(episode)
    return episodes


def arrange(cfg: Config, updates: Updates) -> Updates:
    """One update of both roles, in which each kind of tasks has advantages of its own (TRR++)."""
    (update,) = one_update_per_policy(cfg, updates)
    shares = [replace(share, role=f"{share.role}_{kind}") for share in update.roles for kind in options(cfg).tasks]
    return (replace(update, roles=tuple(shares)),)


def exam(cfg: Config) -> Exam:
    """Tasks, rows with `task` and what a task has, solved and graded as in training."""

    def solved(answers: Sequence[Answer], tools: Tools) -> list[float]:
        cases = [
            AnswerCase(SolverProblem(answer.row["task"], state.task_of(answer.row)), answer.completion.text)
            for answer in answers
        ]
        return [grade or 0.0 for grade in roles.grade(cfg, tools, cases, formal=True)]

    return Exam(
        role=roles.solver_role(cfg),
        prompt=lambda row, tokens: messages.for_solver(cfg, row["task"], state.task_of(row)),
        read=lambda completion: rules.answer_of(completion.text),
        measures=("accuracy",),
        kind="rows",
        own={"accuracy": solved},
    )


GAME = Game(
    name="absolute_zero",
    title="Absolute Zero",
    options=AbsoluteZeroSection,
    roles=card_roles,
    play=play,
    remember=remember,
    ahead=lambda cfg, memory, steps: memory or None,  # the first step fills the buffers
    arrange=arrange,
    exam=exam,
    check=check,
    tools=lambda cfg: functions.tools_of(cfg.sandbox),
    starter=Starter(options={"max_prompt_tokens": 2048}),  # half of the 4096 that `new` gives an episode
)
