"""Absolute Zero's roles: the proposer writes tasks, the solver answers them; running programs says what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.data.keys import drawn
from scope_jax.environments import functions
from scope_jax.games.absolute_zero import messages, rules, state
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection, Kind, options
from scope_jax.games.absolute_zero.state import (
    AnswerCase,
    Buffers,
    ProgramAttempt,
    SolverProblem,
    Task,
    TaskProposal,
)
from scope_jax.play.chains import Waiting
from scope_jax.play.game import ACTOR
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.step import Step
from scope_jax.play.tools import Tools
from scope_jax.text.messages import Messages

PROPOSER = "propose"
SOLVER = "solve"
ESTIMATE = "estimate"  # key of the answers that only estimate how often a new task is solved
RUNS = 2  # of a proposal, which must agree


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """Proposer and solver, both the actor."""
    return proposer_role(cfg), solver_role(cfg)


def proposer_role(cfg: Config) -> Role:
    """It writes tasks; each kind of tasks is a role of its own in the update."""
    card = options(cfg)
    return Role(
        PROPOSER,
        _actor(card),
        loss=card.loss if card.train == "both" else None,
        prompts=tuple(messages.PROPOSER[kind] for kind in card.tasks),
        table="absolute_zero",
    )


def solver_role(cfg: Config) -> Role:
    """It answers tasks; each kind of tasks is a role of its own in the update."""
    card = options(cfg)
    return Role(
        SOLVER,
        _actor(card),
        loss=card.loss,
        prompts=tuple(messages.SOLVER[kind] for kind in card.tasks),
        table="absolute_zero",
    )


def _actor(card: AbsoluteZeroSection) -> Agent:
    return Agent(ACTOR, card.sampling, max_prompt_tokens=card.max_prompt_tokens, tempered=card.loss.tempered)


# ------------------------------------------------------------------------------------------------------------ proposer
def propose(
    step: Step[AbsoluteZeroSection],
    kinds: Sequence[Kind],
    buffers: Buffers,
    *,
    number: int,
    key: str = PROPOSER,
    label: str = "",
) -> list[TaskProposal]:
    """`train.batch_size` proposals of tasks of each kind; their programs have not been run yet.

    number: the step that their tasks are from (`Task.step`). key and label: of the samples, as in `Step.play`.
    """
    asked: list[tuple[Kind, list[Task]]] = [
        (kind, _references(step, kind, buffers, (number, key, kind, place)))
        for kind in kinds
        for place in range(step.cfg.train.batch_size)
    ]
    prompts = [messages.for_proposer(step.cfg, kind, references) for kind, references in asked]
    groups = step.play(PROPOSER, prompts, key=key, label=label)
    return [
        TaskProposal(kind, sample, rules.draft(kind, sample.text, references, step.card))
        for (kind, references), (sample,) in zip(asked, groups, strict=True)
    ]


def _references(
    step: Step[AbsoluteZeroSection], kind: Kind, buffers: Buffers, places: tuple[int | str, ...]
) -> list[Task]:
    """K earlier tasks of the kind, without those that do not fit into the prompt; for an induction one of the other
    kinds, about whose program it is."""
    generator = step.rng("references", *places)
    if kind == "induction":
        programs = [task for other in step.card.tasks if other != "induction" for task in buffers[other]]
        return drawn(programs, 1, generator)
    references = drawn(buffers[kind], step.card.references, generator)
    while references and not _fits(step, messages.for_proposer(step.cfg, kind, references)):
        references.pop()
    return references


def validate(step: Step[AbsoluteZeroSection], proposals: Sequence[TaskProposal], *, number: int) -> list[TaskProposal]:
    """The proposals with their tasks: those whose program has a value for each input, the same in every run.

    number: as in `propose`.
    """
    drafts = [proposal.draft for proposal in proposals]
    runs = [("", ()) if draft is None else (draft["program"], draft["inputs"]) for draft in drafts]
    values = functions.outputs(step.cfg.sandbox, step.tools, runs, repeats=RUNS)
    return [
        proposal if proposal.draft is None else replace(proposal, task=_task(proposal.draft, outputs, number))
        for proposal, outputs in zip(proposals, values, strict=True)
    ]


def _task(draft: state.Draft, values: Sequence[str | None], number: int) -> Task | None:
    """The task of a draft with these values of its calls; None if one of them has none."""
    outputs = [value for value in values if value is not None]
    if len(outputs) < len(values):
        return None
    return Task(
        program=draft["program"], inputs=draft["inputs"], message=draft["message"], outputs=outputs, step=number
    )


def tasks_to_remember(step: Step[AbsoluteZeroSection], kind: Kind, proposals: Sequence[TaskProposal]) -> list[Task]:
    """The valid tasks of a kind that enter its buffer: those that fit into the prompts about them alone."""
    tasks = [proposal.task for proposal in proposals if proposal.kind == kind and proposal.task is not None]
    return [task for task in tasks if all(_fits(step, prompt) for prompt in _prompts_about(step, kind, task))]


def _prompts_about(step: Step[AbsoluteZeroSection], kind: Kind, task: Task) -> list[Messages]:
    """The prompts that must show a remembered task: the solver's, and that of an induction about its program."""
    prompts = [messages.for_solver(step.cfg, kind, task)]
    if kind != "induction" and "induction" in step.card.tasks:
        prompts.append(messages.for_proposer(step.cfg, "induction", [task]))
    return prompts


def _fits(step: Step[AbsoluteZeroSection], prompt: Messages) -> bool:
    """True if a prompt is short enough to be answered."""
    limit = min(step.card.max_prompt_tokens, step.cfg.rollout.max_length - 1)
    return step.tools.prompt_tokens(prompt) <= limit


# -------------------------------------------------------------------------------------------------------------- solver
def choose_problems(step: Step[AbsoluteZeroSection], before: Buffers, after: Buffers) -> list[SolverProblem]:
    """`train.batch_size` tasks of each buffer, those of the latest step first.

    before, after: the buffers without and with this step's tasks, of which the card's `solve` takes one.
    """
    if step.card.solve == "updated":
        buffers = after
        latest = step.number + 1
    else:
        buffers = before
        latest = step.number
    chosen = []
    for kind in step.card.tasks:
        generator = step.rng("problems", step.number, kind)
        tasks = state.choose_for_solver(buffers[kind], step.cfg.train.batch_size, latest, generator)
        chosen += [SolverProblem(kind, task) for task in tasks]
    return chosen


def solve(
    step: Step[AbsoluteZeroSection], new: Sequence[SolverProblem], chosen: Sequence[SolverProblem]
) -> tuple[list[ProgramAttempt], list[ProgramAttempt]]:
    """(`estimates` answers to each new problem, an answer to each chosen one), all sampled together and not yet
    graded."""

    def attempts(step: Step[AbsoluteZeroSection], place: tuple[str, int]) -> Waiting[list[ProgramAttempt]]:
        key, number = place
        problem, samples = (new[number], step.card.estimates) if key == ESTIMATE else (chosen[number], 1)
        rollout = Rollout(f"{number}", messages.for_solver(step.cfg, problem.kind, problem.task))
        (group,) = yield from step.sample(SOLVER, [rollout], samples=samples, key=key)
        return [ProgramAttempt(problem, sample) for sample in group]

    places = [(key, number) for key, problems in ((ESTIMATE, new), (SOLVER, chosen)) for number in range(len(problems))]
    groups = step.map((SOLVER,), attempts, places)
    of_new, of_chosen = groups[: len(new)], groups[len(new) :]
    return [one for group in of_new for one in group], [one for group in of_chosen for one in group]


def grade_attempts(
    step: Step[AbsoluteZeroSection], attempts: Sequence[ProgramAttempt], *, formal: bool
) -> list[ProgramAttempt]:
    """The attempts with their grades. formal: as in `rules.answer_of`."""
    cases = [AnswerCase(attempt.problem, attempt.sample.text) for attempt in attempts]
    grades = grade(step.cfg, step.tools, cases, formal=formal)
    return [replace(attempt, grade=one) for attempt, one in zip(attempts, grades, strict=True)]


def grade(cfg: Config, tools: Tools, cases: Sequence[AnswerCase], *, formal: bool) -> list[float | None]:
    """1 for a right answer, 0 for a wrong one, None for none, or one in a bad form; any input that has the output is
    right.

    formal: as in `rules.answer_of`.
    """
    solutions = [rules.solution(case.problem.kind, case.reply, formal) for case in cases]
    runs = [rules.run(case.problem, solution) for case, solution in zip(cases, solutions, strict=True)]
    outputs = functions.outputs(cfg.sandbox, tools, runs)
    comparisons = []
    for case, solution, values in zip(cases, solutions, outputs, strict=True):
        result = [solution] if case.problem.kind == "deduction" else values
        comparisons.append((result, rules.hidden(case.problem.task["outputs"])))
    right = functions.same_values(cfg.sandbox, tools, comparisons)
    return [None if solution is None else float(same) for solution, same in zip(solutions, right, strict=True)]
