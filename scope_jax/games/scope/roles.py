"""SCOPE's roles: the challenger drafts tasks, the solver attempts them (§3.1), the judge passes, grades and writes
rubrics (§2, App. G)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from scope_jax.config import Config, RoleSection, SamplingSection
from scope_jax.data.rows import Row
from scope_jax.games.scope import messages, rules
from scope_jax.games.scope.options import ChallengerRewardSection, ScopeSection, SolverRewardSection, options
from scope_jax.games.scope.state import AttemptedTask, RewardSum, RubricTask, TaskAttempt, TaskDraft, TaskOrder
from scope_jax.learner.types import Judgement
from scope_jax.play import documents, rubrics, searching
from scope_jax.play.roles import Role, judge_role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.rubrics import Criterion, Grader, RubricCase
from scope_jax.play.step import Step
from scope_jax.play.tool_calls import SEARCH_NAME
from scope_jax.play.tools import Tools
from scope_jax.text import dialects

CHALLENGER, SOLVER = "challenger", "solver"  # the policies, too
GATE_JUDGE, RUBRIC_WRITER, GRADER = "gates", "rubric_writer", "grader"  # the jobs of the judge

Value = TypeVar("Value")


def card_roles(cfg: Config) -> tuple[Role, ...]:
    """Challenger and solver, and the judge in each of its jobs; with curated prompts only the solver and its grader."""
    if options(cfg).mode == "curated":
        return solver_role(cfg), grader_role(cfg)
    gates = (gate_judge_role(cfg),) if options(cfg).quality_gates else ()
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


def gate_judge_role(cfg: Config) -> Role:
    """The judge that passes tasks, or does not."""
    prompts = (*messages.GATE_PROMPTS.values(), rubrics.NUDGE)
    return judge_role(GATE_JUDGE, "scope.gates", options(cfg).gates, prompts)


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
    """(o^C, q) ~ Rollout(C, d): `samples` episodes for each order, with their tasks extracted."""
    rollouts = []
    for order in orders:
        remark = turns_left(step.cfg, order.searches) if step.card.dynamic_turns else None
        rollouts.append(Rollout(f"{order.index}", messages.for_challenger(step.cfg, order), remark=remark))
    groups = step.play(CHALLENGER, rollouts, samples=samples, sampling=sampling, label=label)
    drafts = []
    for order, group in zip(orders, groups, strict=True):
        for sample in group:
            turns = rules.parse_turns(step.cfg, sample, "task")
            task = rules.task_of(turns, step.card.challenger_reward.require_question)
            draft = TaskDraft(
                index=len(drafts),
                order=order,
                sample=sample,
                turns=turns,
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
    card: ScopeSection, drafts: Sequence[TaskDraft], attempted: Sequence[AttemptedTask]
) -> list[TaskDraft]:
    """The drafts with ḡ of their tasks and R_C (Eq. (4))."""
    means = {group.task.index: group.mean for group in attempted}
    measured = [replace(draft, solver_mean=means.get(draft.index)) for draft in drafts]
    return [replace(draft, reward=_challenger_reward(card.challenger_reward, draft)) for draft in measured]


def _challenger_reward(card: ChallengerRewardSection, draft: TaskDraft) -> RewardSum:
    form = rules.challenger_format(card, draft.turns, draft.order.searches)
    failed = draft.rejected in ("no_task", "no_rubrics")
    format_score = 0.0 if failed and card.failure_zeroes_format else form.score
    difficulty = 0.0 if draft.solver_mean is None else rules.difficulty_reward(draft.solver_mean, card.target)
    passed = draft.rejected not in rules.GATES
    parts = {
        "format": format_score,
        "think": form.think,
        "tool": form.tool,
        "structure": form.result,
        "difficulty": difficulty if passed else 0.0,
    }
    if draft.solver_mean is not None:
        parts["solver_mean"] = draft.solver_mean
    for gate, verdict in draft.gates.items():
        parts[f"gate_{gate}"] = float(bool(verdict))
    return RewardSum(rules.challenger_reward(card, format_score, passed, difficulty), parts)


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
        (draft.index, gate): messages.for_gate(step.cfg, gate, draft.task or "", draft.order.document)
        for draft in drafts
        if not draft.rejected
        for gate in rules.GATES
    }
    replies = step.ask(GATE_JUDGE, list(questions.values()), rubrics.score_of, rubrics.NUDGE.text(step.cfg))
    answers = replies.by(questions)
    passed = []
    for draft in drafts:
        if not draft.rejected:
            replies_to = {gate: answers[draft.index, gate] for gate in rules.GATES}
            verdicts = {gate: reply.read for gate, reply in replies_to.items()}
            judged = [Judgement(GATE_JUDGE, gate, reply.given, reply.read) for gate, reply in replies_to.items()]
            rejected = next((gate for gate, verdict in verdicts.items() if not verdict), "")
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
    for draft in drafts:
        if not draft.rejected:
            results = dict.fromkeys(searching.results_read(draft.sample, dialect))  # without duplicates
            sources = [draft.order.document, *results]
            questions[draft.index] = messages.for_rubric_writer(step.cfg, draft.task or "", sources)
    replies = step.ask(RUBRIC_WRITER, list(questions.values()), read, messages.RUBRICS_NUDGE.text(step.cfg))
    answers = replies.by(questions)
    written = []
    for draft in drafts:
        if not draft.rejected:
            rubric = answers[draft.index].read or ()
            judged = Judgement(RUBRIC_WRITER, "", answers[draft.index].given, len(rubric) or None)
            rejected = "" if rubric else "no_rubrics"
            draft = replace(draft, rubric=rubric, rejected=rejected, judgements=(*draft.judgements, judged))
        written.append(draft)
    return written


def grader(card: ScopeSection, judge: Role) -> Grader:
    """The grading of the solver's attempts by a judge."""

    def read(tools: Tools, answer: str) -> str:
        return documents.cut(answer, card.solver_reward.hard_limit, tools.tokens) if card.cut_answer else answer

    return Grader(judge, card.prompts, card.ungraded, card.min_graded, read)


# -------------------------------------------------------------------------------------------------------------- solver
def tasks_of(drafts: Sequence[TaskDraft]) -> list[RubricTask]:
    """The tasks the solver gets from the drafts that were not rejected."""
    return [RubricTask(draft.index, draft.task or "", draft.rubric) for draft in drafts if not draft.rejected]


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
            attempts.append(TaskAttempt(sample, turns, answer, length))
        attempted.append(AttemptedTask(task, tuple(attempts)))
    return attempted


def grade(step: Step[ScopeSection], attempted: Sequence[AttemptedTask]) -> list[AttemptedTask]:
    """b(o, q, 𝒢) and g(o, 𝒢) of every attempt, and ḡ of every task; one request per criterion, all in one batch."""
    cases = {
        (group.task.index, number): RubricCase(group.task.question, attempt.answer, group.task.rubric)
        for group in attempted
        for number, attempt in enumerate(group.attempts)
    }
    grading = grader(step.card, step.roles[GRADER])
    grades, replies = rubrics.grade(step.cfg, grading, step.tools, list(cases.values()))
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


def reward_solver(card: ScopeSection, attempted: Sequence[AttemptedTask]) -> list[AttemptedTask]:
    """The attempts with R_S (Eq. (6)). An answer that the judge failed to grade has no part `rubric`; its score counts
    as 0."""
    rewarded = []
    for group in attempted:
        attempts = [replace(each, reward=_solver_reward(card.solver_reward, each)) for each in group.attempts]
        rewarded.append(replace(group, attempts=tuple(attempts)))
    return rewarded


def _solver_reward(card: SolverRewardSection, attempt: TaskAttempt) -> RewardSum:
    score = attempt.graded.score
    form = rules.solver_format(card, attempt.turns)
    factor = rules.length_factor(card, attempt.tokens)
    search = rules.search_reward(attempt.turns, card.searches)
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
    return RewardSum(rules.solver_reward(card, score or 0.0, factor, form.score, search), parts)
