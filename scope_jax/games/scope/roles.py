"""SCOPE's roles: the challenger drafts tasks, the solver attempts them (§3.1), the judge passes, grades and writes
rubrics (§2, App. G)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from scope_jax.config import Config, RoleSection, SamplingSection
from scope_jax.data.rows import Row
from scope_jax.games.scope import messages, rules
from scope_jax.games.scope.options import ScopeSection, options
from scope_jax.games.scope.state import AttemptedTask, RubricTask, TaskAttempt, TaskDraft, TaskOrder
from scope_jax.learner.types import Judgement
from scope_jax.play import documents, rubrics, searching
from scope_jax.play.roles import Role, judge_role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.rubrics import UNGRADED, Criterion, Grader, RubricCase
from scope_jax.play.step import Step
from scope_jax.play.tool_calls import SEARCH_NAME
from scope_jax.play.tools import Tools
from scope_jax.text import dialects

CHALLENGER, SOLVER = "challenger", "solver"  # the policies, too
GATES, RUBRIC_WRITER, GRADER = "gates", "rubric_writer", "grader"  # the jobs of the judge

Value = TypeVar("Value")


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """Challenger and solver, and the judge in each of its jobs; with curated prompts only the solver and its grader."""
    if options(cfg).mode == "curated":
        return solver_role(cfg), grader_role(cfg)
    gates = (gates_role(cfg),) if options(cfg).quality_gates else ()
    return (challenger_role(cfg), solver_role(cfg), *gates, rubric_writer_role(cfg), grader_role(cfg))


def challenger_role(cfg: Config) -> Role:
    """It reads a document, searches, and writes a task."""
    card = options(cfg)
    return Role(
        CHALLENGER,
        searcher(cfg, card.challenger, CHALLENGER, "task"),
        loss=card.challenger.loss,
        prompts=messages.of_challenger(card),
        reminder=messages.NOT_RUN,
        table="scope.challenger",
        searches=lambda completion: rules.searches_run(rules.parse_turns(cfg, completion, "task")),
        rejections=rules.REASONS,
    )


def solver_role(cfg: Config) -> Role:
    """It answers tasks with searches."""
    card = options(cfg)
    return Role(
        SOLVER,
        searcher(cfg, card.solver, SOLVER, "answer", card.solver_stops_at_search),
        loss=card.solver.loss,
        prompts=(messages.SOLVER, messages.NOT_RUN),
        reminder=messages.NOT_RUN,
        table="scope.solver",
        searches=lambda completion: rules.searches_run(rules.parse_turns(cfg, completion, "answer")),
    )


def searcher(cfg: Config, card: RoleSection, policy: str, final: str, at_search: bool = True) -> Agent:
    """The agent of a role that may search in episodes that end with `<final>`: only the first search of a turn is run,
    and all text after it is dropped, including a `<final>` or invented results.

    at_search: the closing tag of a search ends a turn.
    """
    stops = dialects.load(cfg.model.dialect).stops(SEARCH_NAME) if at_search else ()
    return replace(
        Agent.of_role(card, policy),
        tools=(SEARCH_NAME,),
        calls="first",
        finals=(final,),
        stop=(*stops, f"</{final}>"),
        malformed="remind",
    )


def gates_role(cfg: Config) -> Role:
    """The judge that passes tasks, or does not."""
    prompts = (*messages.GATES.values(), rubrics.NUDGE)
    return judge_role(GATES, "scope.gates", options(cfg).gates, prompts)


def rubric_writer_role(cfg: Config) -> Role:
    """The judge that writes rubrics."""
    prompts = (messages.RUBRIC_WRITER, messages.RUBRICS_NUDGE)
    return judge_role(RUBRIC_WRITER, "scope.rubric_writer", options(cfg).rubric_writer, prompts)


def grader_role(cfg: Config) -> Role:
    """The judge that grades attempts."""
    return judge_role(GRADER, "scope.grader", options(cfg).grader, (rubrics.GRADER, rubrics.NUDGE))


# ---------------------------------------------------------------------------------------------------------- challenger
def draw_orders(step: Step[ScopeSection], rows: Sequence[Row], first: int, total: int, name: str) -> list[TaskOrder]:
    """An order for each document row: positions `first` onwards of the `total` prompts that are stratified together.

    name: of that set of prompts ("iteration 2", for example), so that each set is drawn independently.
    """
    turns = dict(enumerate(step.card.search_turns, start=1))
    searches = _spread(step, total, turns, "scope searches", name)
    kinds = _spread(step, total, step.card.task_types, "scope types", name)
    orders = []
    for index, row in enumerate(rows):
        key, text = documents.document_of(row)
        text = documents.cut(text, step.card.document_tokens, step.tools.tokens)
        orders.append(TaskOrder(index, key, text, kinds[first + index], searches[first + index]))
    return orders


def _spread(
    step: Step[ScopeSection], count: int, weights: Mapping[Value, float], purpose: str, name: str
) -> list[Value]:
    """`count` values, stratified by their weights and shuffled."""
    shares = rules.stratify(count, list(weights.values()))
    values = [value for value, share in zip(weights, shares, strict=True) for _ in range(share)]
    return [values[index] for index in step.rng(purpose, name).permutation(count)]


def propose(
    step: Step[ScopeSection],
    orders: Sequence[TaskOrder],
    samples: int,
    sampling: SamplingSection | None = None,
    label: str = "",
) -> list[TaskDraft]:
    """(o^C, q) ~ Rollout(C, d): `samples` episodes for each order, with task extracted and format scored."""
    card = step.card.challenger_reward
    rollouts = []
    for order in orders:
        remark = turns_left(step.cfg, order.searches) if step.card.dynamic_turns else None
        rollouts.append(Rollout(f"{order.index}", messages.for_challenger(step.cfg, order), remark=remark))
    groups = step.play(CHALLENGER, rollouts, samples=samples, sampling=sampling, label=label)
    drafts = []
    for order, group in zip(orders, groups, strict=True):
        for sample in group:
            turns = rules.parse_turns(step.cfg, sample, "task")
            task = rules.task_of(turns, card.require_question)
            draft = TaskDraft(
                order=order,
                sample=sample,
                format=rules.challenger_format(card, turns, order.searches),
                task=task,
                rejected="no_task" if task is None else "",
            )
            drafts.append(draft)
    return drafts


def turns_left(cfg: Config, searches: int) -> Callable[[int], str | None]:
    """The remark after the results of a challenger that is to search so often: how many turns are left for searches. A
    search after the last of them is not run (the dynamic turns of the released code)."""
    return lambda turns: messages.turns_left(cfg, searches - turns) if turns <= searches else None


def reward_challenger(
    card: ScopeSection, draft: TaskDraft, solver_mean: float | None
) -> tuple[float, dict[str, float]]:
    """(R_C, its parts) of a draft (Eq. (4)). solver_mean: ḡ of its task, or None if it has no score."""
    failed = draft.rejected in ("no_task", "no_rubrics")
    format_score = 0.0 if failed and card.challenger_reward.failure_zeroes_format else draft.format.score
    difficulty = 0.0 if solver_mean is None else rules.difficulty_reward(solver_mean, card.challenger_reward.target)
    passed = draft.rejected not in rules.GATES
    parts = {
        "format": format_score,
        "think": draft.format.think,
        "tool": draft.format.tool,
        "structure": draft.format.result,
        "difficulty": difficulty if passed else 0.0,
    }
    if solver_mean is not None:
        parts["solver_mean"] = solver_mean
    for gate, verdict in draft.gates.items():
        parts[f"gate_{gate}"] = float(bool(verdict))
    return rules.challenger_reward(card.challenger_reward, format_score, passed, difficulty), parts


# --------------------------------------------------------------------------------------------------------------- judge
def check_drafts(step: Step[ScopeSection], drafts: Sequence[TaskDraft]) -> list[TaskDraft]:
    """Drafts after the judge's checks, in the card's order; the first failed check is the reason for rejection."""
    if step.card.gates_first:
        return write_rubrics(step, pass_gates(step, drafts))
    return pass_gates(step, write_rubrics(step, drafts))


def pass_gates(step: Step[ScopeSection], drafts: Sequence[TaskDraft]) -> list[TaskDraft]:
    """QG(q, d): the drafts with the verdict of each gate. Both must be 1; a gate without a verdict counts as failed."""
    if not step.card.quality_gates:
        return list(drafts)
    questions = {
        (index, gate): messages.for_gate(step.cfg, gate, draft.task or "", draft.order.document)
        for index, draft in enumerate(drafts)
        if not draft.rejected
        for gate in rules.GATES
    }
    replies = step.ask(GATES, list(questions.values()), rubrics.score_of, rubrics.NUDGE.text(step.cfg))
    answers = replies.by(questions)
    passed = []
    for index, draft in enumerate(drafts):
        if not draft.rejected:
            verdicts = {gate: answers[index, gate].read for gate in rules.GATES}
            judged = [Judgement(GATES, gate, answers[index, gate].given, verdicts[gate]) for gate in rules.GATES]
            rejected = next((gate for gate in rules.GATES if not verdicts[gate]), "")
            draft = replace(draft, gates=verdicts, rejected=rejected, judgements=(*draft.judgements, *judged))
        passed.append(draft)
    return passed


def write_rubrics(step: Step[ScopeSection], drafts: Sequence[TaskDraft]) -> list[TaskDraft]:
    """𝒢 ~ J(· | q, d): the drafts with rubrics, written from the source document and what the challenger read."""
    card = step.card
    dialect = dialects.load(step.cfg.model.dialect)

    def read(reply: str) -> tuple[Criterion, ...] | None:
        return rules.rubric_of(reply, card.rubric_weights, card.min_rubrics, card.max_rubrics)

    questions = {}
    for index, draft in enumerate(drafts):
        if not draft.rejected:
            results = dict.fromkeys(searching.results_read(draft.sample, dialect))  # without duplicates
            questions[index] = messages.for_rubric_writer(step.cfg, draft.task or "", [draft.order.document, *results])
    replies = step.ask(RUBRIC_WRITER, list(questions.values()), read, messages.RUBRICS_NUDGE.text(step.cfg))
    answers = replies.by(questions)
    written = []
    for index, draft in enumerate(drafts):
        if not draft.rejected:
            rubric = answers[index].read or ()
            judged = Judgement(RUBRIC_WRITER, "", answers[index].given, len(rubric) or None)
            rejected = "" if rubric else "no_rubrics"
            draft = replace(draft, rubric=rubric, rejected=rejected, judgements=(*draft.judgements, judged))
        written.append(draft)
    return written


def grader(cfg: Config) -> Grader:
    """The grader of the solver's attempts."""
    card = options(cfg)

    def read(tools: Tools, answer: str) -> str:
        return documents.cut(answer, card.solver_reward.hard_limit, tools.tokens) if card.cut_answer else answer

    return Grader(grader_role(cfg), card.prompts, card.ungraded, card.min_graded, read)


# -------------------------------------------------------------------------------------------------------------- solver
def tasks_of(drafts: Sequence[TaskDraft]) -> list[RubricTask]:
    """The tasks the solver gets from the drafts that were not rejected."""
    return [
        RubricTask(index, draft.task or "", draft.rubric) for index, draft in enumerate(drafts) if not draft.rejected
    ]


def solve(
    step: Step[ScopeSection],
    tasks: Sequence[RubricTask],
    samples: int,
    sampling: SamplingSection | None = None,
    label: str = "",
) -> list[AttemptedTask]:
    """o^S_{1:N} ~ Rollout(S, q, N) for each task, with answers extracted; not yet graded."""
    rollouts = [Rollout(f"{task.index}", messages.for_solver(step.cfg, task.question)) for task in tasks]
    groups = step.play(SOLVER, rollouts, samples=samples, sampling=sampling, label=label)
    attempted = []
    for task, group in zip(tasks, groups, strict=True):
        attempts = []
        for sample in group:
            turns = rules.parse_turns(step.cfg, sample, "answer")
            answer = rules.answer_of(turns)
            length = step.tools.tokens(answer) if answer else 0
            attempts.append(TaskAttempt(sample, turns, answer, length, UNGRADED))
        attempted.append(AttemptedTask(task, tuple(attempts)))
    return attempted


def grade(step: Step[ScopeSection], attempted: Sequence[AttemptedTask]) -> list[AttemptedTask]:
    """b(o, q, 𝒢) and g(o, 𝒢) of every attempt, and ḡ of every task; one request per criterion, all in one batch."""
    cases = {
        (group.task.index, number): RubricCase(group.task.question, attempt.answer, group.task.rubric)
        for group in attempted
        for number, attempt in enumerate(group.attempts)
    }
    grades, replies = rubrics.grade(step.cfg, grader(step.cfg), step.tools, list(cases.values()))
    step.count(f"judge/{GRADER}", replies)
    by_attempt = dict(zip(cases, grades, strict=True))
    graded = []
    for group in attempted:
        attempts = [replace(a, graded=by_attempt[group.task.index, n]) for n, a in enumerate(group.attempts)]
        scores = [attempt.graded.score for attempt in attempts]
        answered = [attempt.answer is not None for attempt in attempts]
        mean = rules.mean_score(scores, answered, step.card.missing_answer)
        graded.append(replace(group, attempts=tuple(attempts), mean=mean))
    return graded


def reward_solver(card: ScopeSection, attempt: TaskAttempt) -> tuple[float, dict[str, float]]:
    """(R_S, its parts) of an attempt (Eq. (6)). An answer that the judge failed to grade has no part `rubric`; its
    score counts as 0."""
    score = attempt.graded.score
    form = rules.solver_format(card.solver_reward, attempt.turns)
    factor = rules.length_factor(card.solver_reward, attempt.tokens)
    search = rules.search_reward(attempt.turns, card.solver_reward.searches)
    parts = {
        "format": form.score,
        "think": form.think,
        "tool": form.tool,
        "answer": form.result,
        "length": factor,
        "search": search,
    }
    if score is not None:
        parts["rubric"] = score
    return rules.solver_reward(card.solver_reward, score or 0.0, factor, form.score, search), parts
