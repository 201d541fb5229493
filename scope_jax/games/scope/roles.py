"""SCOPE's roles: the challenger drafts tasks, the solver attempts them (§3.1), the judge passes, grades and writes
rubrics (§2, App. G)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_jax.config import Config, SamplingSection
from scope_jax.data.keys import rng
from scope_jax.games.scope import messages, rules
from scope_jax.games.scope.options import options
from scope_jax.games.scope.state import AttemptedTask, RubricTask, TaskAttempt, TaskDraft, TaskOrder
from scope_jax.learner.types import Judgement, Metrics
from scope_jax.play import documents, rubrics, searching
from scope_jax.play.asking import Judge
from scope_jax.play.rubrics import UNGRADED, Criterion, Grader, RubricCase
from scope_jax.play.tool_calls import SEARCH_NAME
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.text import dialects

CHALLENGER, SOLVER = "challenger", "solver"  # the policies, too
JOBS = ("gates", "rubric_writer", "grader")  # of the judge


# ----------------------------------------------------------------------------------------------------------- searching
def searcher(cfg: Config, final: str, at_search: bool = True) -> dict[str, Any]:
    """What lets an agent, or an exam, search in episodes that end with `<final>`: only the first search of a turn is
    run, and all text after it is dropped, including a `<final>` or invented results.

    at_search: the closing tag of a search ends a turn.
    """
    stops = dialects.load(cfg.model.dialect).stops(SEARCH_NAME) if at_search else ()
    return {
        "tools": (SEARCH_NAME,),
        "calls": "first",
        "finals": (final,),
        "stop": (*stops, f"</{final}>"),
        "malformed": "remind",
        "reminder": messages.not_run(cfg),
    }


def solver(cfg: Config) -> dict[str, Any]:
    """`searcher` of the solver."""
    return searcher(cfg, "answer", options(cfg).solver_stops_at_search)


def turns_left(cfg: Config, searches: int) -> Callable[[int], str | None]:
    """The remark after the results of a challenger that is to search so often: how many turns are left for searches. A
    search after the last of them is not run (the dynamic turns of the released code)."""
    return lambda turns: messages.turns_left(cfg, searches - turns) if turns <= searches else None


# ---------------------------------------------------------------------------------------------------------- challenger
def draw_orders(
    cfg: Config, tokens: Callable[[str], int], rows: Sequence[Mapping[str, Any]], first: int, total: int, name: str
) -> list[TaskOrder]:
    """An order for each document row: positions `first` onwards of the `total` prompts that are stratified together.

    name: of that set of prompts ("iteration 2", for example), so that each set is drawn independently.
    """
    turns = dict(enumerate(options(cfg).search_turns, start=1))
    searches = _spread(total, turns, "scope searches", cfg.seed, name)
    kinds = _spread(total, options(cfg).task_types, "scope types", cfg.seed, name)
    orders = []
    for index, row in enumerate(rows):
        key, text = documents.document_of(row)
        text = documents.cut(text, options(cfg).document_tokens, tokens)
        orders.append(TaskOrder(index, key, text, kinds[first + index], searches[first + index]))
    return orders


def _spread(count: int, weights: Mapping[Any, float], *names: int | str) -> list[Any]:
    """`count` values, stratified by their weights and shuffled with rng(names)."""
    shares = rules.stratify(count, list(weights.values()))
    values = [value for value, share in zip(weights, shares, strict=True) for _ in range(share)]
    return [values[index] for index in rng(*names).permutation(count)]


def propose(
    cfg: Config, tools: Tools, orders: Sequence[TaskOrder], samples: int, sampling: SamplingSection
) -> list[TaskDraft]:
    """(o^C, q) ~ Rollout(C, d): `samples` episodes for each order, with task extracted and format scored."""
    card, dynamic = options(cfg).challenger_reward, options(cfg).dynamic_turns
    rollouts = []
    for order in orders:
        remark = turns_left(cfg, order.searches) if dynamic else None
        rollouts.append(Rollout(f"{order.index}", messages.for_challenger(cfg, order), remark=remark))
    agent = Agent.of_role(options(cfg).challenger, CHALLENGER, sampling, **searcher(cfg, "task"))
    drafts = []
    for order, rollout, group in zip(orders, rollouts, tools.play("challenger", rollouts, agent, samples), strict=True):
        for completion in group:
            turns = rules.parse_turns(cfg, completion, "task")
            form = rules.challenger_format(card, turns, order.searches)
            task = rules.task_of(turns, card.require_question)
            rejected = "no_task" if task is None else ""
            searches = rules.searches_run(turns)
            drafts.append(TaskDraft(order, rollout.messages, completion, form, searches, task, rejected))
    return drafts


def reward_challenger(cfg: Config, draft: TaskDraft, solver_mean: float | None) -> tuple[float, dict[str, float]]:
    """(R_C, its parts) of a draft (Eq. (4)). solver_mean: ḡ of its task, or None if it has no score."""
    card = options(cfg).challenger_reward
    failed = draft.rejected in ("no_task", "no_rubrics")
    format_score = 0.0 if failed and card.failure_zeroes_format else draft.format.score
    difficulty = 0.0 if solver_mean is None else rules.difficulty_reward(solver_mean, card.target)
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
    return rules.challenger_reward(card, format_score, passed, difficulty), parts


# --------------------------------------------------------------------------------------------------------------- judge
def judge_of(cfg: Config, job: str) -> Judge:
    """The base model or an endpoint, for one of `JOBS`."""
    return Judge(job, f"scope.{job}", getattr(options(cfg), job))


def check_drafts(cfg: Config, tools: Tools, drafts: Sequence[TaskDraft]) -> tuple[list[TaskDraft], Metrics]:
    """Drafts after the judge's checks, in the card's order, and its counts; the first failed check is the reason for
    rejection."""
    checks = (pass_gates, write_rubrics) if options(cfg).gates_first else (write_rubrics, pass_gates)
    counts: Metrics = {}
    for check in checks:
        drafts, counted = check(cfg, tools, drafts)
        counts |= counted
    return list(drafts), counts


def pass_gates(cfg: Config, tools: Tools, drafts: Sequence[TaskDraft]) -> tuple[list[TaskDraft], Metrics]:
    """QG(q, d): the drafts with the verdict of each gate. Both must be 1; a gate without a verdict counts as failed."""
    if not options(cfg).quality_gates:
        return list(drafts), {}
    questions = {
        (index, gate): messages.for_gate(cfg, gate, draft.task or "", draft.order.document)
        for index, draft in enumerate(drafts)
        if not draft.rejected
        for gate in rules.GATES
    }
    nudge = messages.nudge(cfg, "score")
    replies = judge_of(cfg, "gates").ask(tools, list(questions.values()), rubrics.score_of, nudge)
    answers = replies.by(questions)
    passed = []
    for index, draft in enumerate(drafts):
        if not draft.rejected:
            verdicts = {gate: answers[index, gate].read for gate in rules.GATES}
            judged = [Judgement("gates", gate, answers[index, gate].given, verdicts[gate]) for gate in rules.GATES]
            rejected = next((gate for gate in rules.GATES if not verdicts[gate]), "")
            draft = replace(draft, gates=verdicts, rejected=rejected, judgements=(*draft.judgements, *judged))
        passed.append(draft)
    return passed, replies.counts("gates")


def write_rubrics(cfg: Config, tools: Tools, drafts: Sequence[TaskDraft]) -> tuple[list[TaskDraft], Metrics]:
    """𝒢 ~ J(· | q, d): the drafts with rubrics, written from the source document and what the challenger read."""
    card, dialect = options(cfg), dialects.load(cfg.model.dialect)

    def read(reply: str) -> tuple[Criterion, ...] | None:
        return rules.rubric_of(reply, card.rubric_weights, card.min_rubrics, card.max_rubrics)

    questions = {}
    for index, draft in enumerate(drafts):
        if not draft.rejected:
            results = dict.fromkeys(searching.results_read(draft.completion, dialect))  # without duplicates
            questions[index] = messages.for_rubric_writer(cfg, draft.task or "", [draft.order.document, *results])
    nudge = messages.nudge(cfg, "rubrics")
    replies = judge_of(cfg, "rubric_writer").ask(tools, list(questions.values()), read, nudge)
    answers = replies.by(questions)
    written = []
    for index, draft in enumerate(drafts):
        if not draft.rejected:
            rubric = answers[index].read or ()
            judged = Judgement("rubric_writer", "", answers[index].given, len(rubric) or None)
            rejected = "" if rubric else "no_rubrics"
            draft = replace(draft, rubric=rubric, rejected=rejected, judgements=(*draft.judgements, judged))
        written.append(draft)
    return written, replies.counts("rubric_writer")


def grader(cfg: Config) -> Grader:
    """The grader of the solver's attempts."""
    card = options(cfg)

    def read(tools: Tools, answer: str) -> str:
        return documents.cut(answer, card.solver_reward.hard_limit, tools.tokens) if card.cut_answer else answer

    return Grader(judge_of(cfg, "grader"), card.prompts, card.ungraded, card.min_graded, read)


# -------------------------------------------------------------------------------------------------------------- solver
def tasks_of(drafts: Sequence[TaskDraft]) -> list[RubricTask]:
    """The tasks the solver gets from the drafts that were not rejected."""
    return [
        RubricTask(index, draft.task or "", draft.rubric) for index, draft in enumerate(drafts) if not draft.rejected
    ]


def solve(
    cfg: Config, tools: Tools, tasks: Sequence[RubricTask], samples: int, sampling: SamplingSection
) -> list[AttemptedTask]:
    """o^S_{1:N} ~ Rollout(S, q, N) for each task, with answers extracted; not yet graded."""
    rollouts = [Rollout(f"{task.index}", messages.for_solver(cfg, task.question)) for task in tasks]
    agent = Agent.of_role(options(cfg).solver, SOLVER, sampling, **solver(cfg))
    attempted = []
    for task, rollout, group in zip(tasks, rollouts, tools.play("solver", rollouts, agent, samples), strict=True):
        attempts = []
        for completion in group:
            turns = rules.parse_turns(cfg, completion, "answer")
            answer = rules.answer_of(turns)
            attempts.append(TaskAttempt(completion, turns, answer, tools.tokens(answer) if answer else 0, UNGRADED))
        attempted.append(AttemptedTask(task, rollout.messages, tuple(attempts)))
    return attempted


def grade(cfg: Config, tools: Tools, attempted: Sequence[AttemptedTask]) -> tuple[list[AttemptedTask], Metrics]:
    """b(o, q, 𝒢) and g(o, 𝒢) of every attempt, ḡ of every task, and the judge's counts; one request per criterion,
    all in one batch."""
    cases = {
        (group.task.index, sample): RubricCase(group.task.question, attempt.answer, group.task.rubric)
        for group in attempted
        for sample, attempt in enumerate(group.attempts)
    }
    grades, replies = rubrics.grade(cfg, grader(cfg), tools, list(cases.values()))
    by_attempt = dict(zip(cases, grades, strict=True))
    graded = []
    for group in attempted:
        attempts = [replace(a, graded=by_attempt[group.task.index, n]) for n, a in enumerate(group.attempts)]
        scores = [attempt.graded.score for attempt in attempts]
        answered = [attempt.answer is not None for attempt in attempts]
        mean = rules.mean_score(scores, answered, options(cfg).missing_answer)
        graded.append(replace(group, attempts=tuple(attempts), mean=mean))
    return graded, replies.counts("grader")


def reward_solver(cfg: Config, attempt: TaskAttempt) -> tuple[float, dict[str, float]]:
    """(R_S, its parts) of an attempt (Eq. (6)). An answer that the judge failed to grade has no part `rubric`; its
    score counts as 0."""
    card, score = options(cfg).solver_reward, attempt.graded.score
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
    return rules.solver_reward(card, score or 0.0, factor, form.score, search), parts
