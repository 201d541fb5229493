"""SCOPE: two policies trained from one checkpoint, a challenger that writes open-ended tasks and a solver. The frozen
base model is the judge.

See docs/scope.md for a description, and for what the paper leaves open or the released code does
differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.games.scope import challenger, drawing, instructions, judging, phases, records, rules, solver
from scope_jax.games.scope.challenger import Tally, propose
from scope_jax.games.scope.exams import exam
from scope_jax.games.scope.instructions import check_prompts
from scope_jax.games.scope.judging import JOBS, card_of
from scope_jax.games.scope.options import ScopeSection, check, options
from scope_jax.games.scope.phases import advance, sampled_tasks
from scope_jax.games.scope.records import Draft, Problem, Solved, problem_of
from scope_jax.games.scope.rows import measure_drafts, measure_solved, of_challenger, of_solver
from scope_jax.games.scope.solver import grade, solve
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import metric_names
from scope_jax.play.game import Game, Memory, Panel, Starter
from scope_jax.play.rewards import mean
from scope_jax.play.tools import Tools
from scope_jax.retrieval.rows import Row
from scope_jax.text import templates

Played = tuple[list[Episode], Memory, Metrics]


def policies(cfg: Config) -> tuple[str, ...]:
    """Challenger and solver; only the solver when training on curated prompts."""
    return (solver.POLICY,) if options(cfg).mode == "curated" else (challenger.POLICY, solver.POLICY)


def uses_base(cfg: Config) -> bool:
    """True if the base model does at least one of the judge's jobs."""
    return any(card_of(cfg, job).endpoint is None for job in _jobs(cfg))


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """External models that do a job of the judge in place of the base model, by job."""
    jobs = [judging.judge_of(cfg, job) for job in _jobs(cfg)]
    return {name: table for job in jobs for name, table in job.outside.items()}


def _jobs(cfg: Config) -> tuple[str, ...]:
    """The judge's jobs under this card."""
    if options(cfg).mode == "curated":
        return ("grader",)
    return JOBS if options(cfg).quality_gates else tuple(job for job in JOBS if job != "gates")


def source(cfg: Config) -> Source:
    """Documents from which tasks are written, or curated prompts with rubrics."""
    if options(cfg).mode == "curated":
        return Source(cfg.data.prompts or "", "tasks", cfg.data)
    if cfg.data.documents is not None:
        return Source(cfg.data.documents, "documents", cfg.data)
    assert cfg.retrieval is not None  # Config has checked it
    where = cfg.retrieval.model_dump(include={"columns", "split", "hub_config"})
    return Source(cfg.retrieval.corpus or "", "documents", cfg.data.model_copy(update=where))


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of the roles that search."""
    return templates.system_files(options(cfg).prompts, instructions.SEARCHING)


def start(cfg: Config) -> Memory:
    """The memory at the first stage of the first iteration."""
    return phases.first(cfg)


def finished(cfg: Config, memory: Memory, step: int) -> bool:
    """True after the last iteration."""
    return memory["iteration"] > options(cfg).iterations


def total_steps(cfg: Config) -> int | None:
    """Known for curated prompts; None in self-play, where the number of task batches depends on the run."""
    return options(cfg).iterations * options(cfg).steps_per_iteration if options(cfg).mode == "curated" else None


def iterations(cfg: Config, memory: Memory) -> int:
    """Number of completed iterations."""
    return memory["iteration"] - 1


def waits(cfg: Config, memory: Memory) -> bool:
    """True at the beginning of a stage: tasks are written by the trained challenger (l.21), and solved by the solver of
    the iteration before."""
    return memory["place"] == 0


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """At the start of an iteration, the new card decides whether its challenger is trained."""
    return phases.adopted(cfg, memory, before)


def updates(cfg: Config) -> tuple[Update, ...]:
    """Algorithm 1 l.17 and l.33: each policy has its own role's loss card; a step trains only one of them."""
    cards = {challenger.POLICY: options(cfg).challenger, solver.POLICY: options(cfg).solver}
    return tuple(Update(name, cards[name].loss, (RoleShare(name),)) for name in policies(cfg))


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> Played:
    """One step of the current stage: its episodes, the memory after it, metrics.

    Pure: all randomness is derived from the seed and the position in the run, and `memory` is not modified.
    """
    # l.1: the next rows of the stream; a solver step in self-play needs none
    items = next_rows(cfg, tools, memory)
    # l.2: the training loop initialised `policies` from the base model, and keeps that model if `uses_base`
    # l.3: the memory holds the current iteration and stage
    stages = {"challenger": challenger_step, "tasks": task_step, "solver": solver_step}
    episodes, after, metrics = stages[memory["stage"]](cfg, tools, memory, items)
    metrics["iteration"] = float(memory["iteration"])
    return episodes, after, metrics


def next_rows(cfg: Config, tools: Tools, memory: Memory) -> list[Row]:
    """The rows of this step: no document is reused before all have been used."""
    return tools.rows(memory["drawn"], phases.rows_needed(cfg, memory))


def challenger_step(cfg: Config, tools: Tools, memory: Memory, items: Sequence[Row]) -> Played:
    """Stage 1: the challenger writes tasks, rewarded if the current solver finds them neither too easy nor too hard."""
    # l.4: stage 1
    card, tally = options(cfg), Tally({})
    first, total = memory["place"] * card.challenger_batch, card.steps_per_iteration * card.challenger_batch
    # l.5, l.6: documents, task types and expected searches, stratified over the iteration
    orders = drawing.orders(cfg, tools.tokens, items, first, total, f"iteration {memory['iteration']}")
    # l.7: G drafts per document
    drafts = propose(cfg, tools, orders, card.challenger.samples, card.challenger.sampling)
    # l.8, l.9: the quality gates, and rubrics for the drafts that pass
    drafts = examine(cfg, tools, drafts, tally)
    # l.10: N attempts by the current solver at each task
    solved = solve(cfg, tools, problems_of(drafts), card.n_train, card.estimate)
    # l.11: grade them
    solved, replies = grade(cfg, tools, solved)
    tally.add("grader", replies)
    means = {int(group.problem.name): solver.mean_score(cfg, group) for group in solved}
    # l.12, l.13, l.14, l.15: Eq. (4); a rejected draft gets only the format term
    written = of_challenger(cfg, drafts, means, card.challenger.sampling, trained=True)
    attempts = of_solver(cfg, solved, card.estimate, trained=False)
    metrics = measure_drafts(cfg, drafts, written) | measure_solved(cfg, solved, attempts, "estimate")
    # l.16: the memory for the next step
    after = advance(cfg, memory, drawn=len(items), tasks=[], measured=[])
    # l.17: the training loop calls `updates` and trains on the challenger's episodes
    return written + attempts, after, metrics | tally.counts


def task_step(cfg: Config, tools: Tools, memory: Memory, items: Sequence[Row]) -> Played:
    """Stage 2, first part: tasks are written from a batch of documents, and those of suitable difficulty are kept."""
    # l.18: stage 2
    card, tally = options(cfg), Tally({})
    # l.19: the memory had no tasks when the iteration began
    kept = {task["document"] for task in memory["tasks"]}
    where = f"iteration {memory['iteration']} tasks {memory['place']}"
    # l.20: documents that have no task yet
    orders = drawing.orders(cfg, tools.tokens, items, 0, len(items), where)
    orders = [order for order in orders if order.key not in kept]
    # l.21: one draft per document
    drafts = propose(cfg, tools, orders, 1, card.creation)
    # l.22: gates and rubrics
    drafts = examine(cfg, tools, drafts, tally)
    # l.23: a few attempts at each task, graded
    solved = solve(cfg, tools, problems_of(drafts), card.n_filter, card.creation)
    solved, replies = grade(cfg, tools, solved)
    tally.add("grader", replies)
    # l.24, l.25, l.26: the difficulty window
    tasks = retain(cfg, drafts, solved)
    means = {int(group.problem.name): solver.mean_score(cfg, group) for group in solved}
    written = of_challenger(cfg, drafts, means, card.creation, trained=False)
    attempts = of_solver(cfg, solved, card.creation, trained=False)
    # l.27: continue with the next batch, or with the solver
    after = advance(cfg, memory, drawn=len(items), tasks=tasks, measured=[])
    metrics = measure_drafts(cfg, drafts, written) | measure_solved(cfg, solved, attempts, "solver")
    metrics = {f"creation/{name}": value for name, value in metrics.items()} | tally.counts
    metrics["tasks/yield"] = len(tasks) / len(items)
    metrics["tasks/kept"] = float(min(len(memory["tasks"]) + len(tasks), card.target_tasks))
    return written + attempts, after, metrics


def solver_step(cfg: Config, tools: Tools, memory: Memory, items: Sequence[Row]) -> Played:
    """Stage 2, second part: the solver is trained on a batch of tasks."""
    card, tally = options(cfg), Tally({})
    # l.28, l.29: tasks of this iteration drawn without replacement, or curated prompts
    if card.mode == "curated":
        problems = [problem_of(row, f"{place}") for place, row in enumerate(items)]
    else:
        problems = [problem_of(task, f"{place}") for place, task in enumerate(sampled_tasks(cfg, memory))]
    # l.30: G attempts at each
    solved = solve(cfg, tools, problems, card.solver.samples, card.solver.sampling)
    solved, replies = grade(cfg, tools, solved)
    tally.add("grader", replies)
    # l.31, l.32: Eq. (6)
    attempts = of_solver(cfg, solved, card.solver.sampling, trained=True)
    metrics = measure_solved(cfg, solved, attempts, "solver") | tally.counts
    # l.33: the training loop calls `updates` and trains on these episodes
    # l.34: the next step, or the next iteration
    means = [value for group in solved if (value := solver.mean_score(cfg, group)) is not None]
    measured = [mean(means)] if means else []
    after = advance(cfg, memory, drawn=len(items), tasks=[], measured=measured)
    if after["iteration"] > memory["iteration"] and (whole := memory["measured"] + measured):
        metrics["iteration/task_score"] = mean(whole)
    # l.35: the training loop calls `finished`
    return attempts, after, metrics


def examine(cfg: Config, tools: Tools, drafts: Sequence[Draft], tally: Tally) -> list[Draft]:
    """Drafts after the judge's checks, in the card's order; the first failed check is the reason for rejection."""
    jobs = (challenger.pass_gates, challenger.write_rubrics)
    examined = list(drafts)
    for job in jobs if options(cfg).gates_first else reversed(jobs):
        examined = job(cfg, tools, examined, tally)
    return examined


def problems_of(drafts: Sequence[Draft]) -> list[Problem]:
    """The problems the solver gets from the drafts that were not rejected, named by their index in `drafts`."""
    return [
        Problem(f"{place}", draft.task or "", draft.rubric) for place, draft in enumerate(drafts) if not draft.rejected
    ]


def retain(cfg: Config, drafts: Sequence[Draft], solved: Sequence[Solved]) -> list[dict[str, Any]]:
    """The tasks with ℓ ≤ ḡ ≤ u as plain data, one per document (App. G)."""
    tasks: dict[str, dict[str, Any]] = {}
    for group in solved:
        draft, score = drafts[int(group.problem.name)], solver.mean_score(cfg, group)
        if rules.in_window(score, options(cfg).window) and draft.order.key not in tasks:
            tasks[draft.order.key] = {
                "question": group.problem.question,
                "rubric": [criterion.plain() for criterion in group.problem.rubric],
                "document": draft.order.key,
                "task_type": draft.order.kind,
                "score": score,
            }
    return list(tasks.values())


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    solved = (
        "reward rubric format think tool answer length search task_score answered answer_tokens ungraded "
        f"verdicts_missing searches {metric_names.LENGTHS}"
    )
    drafts = (
        "valid rubrics_parsed rubric_items reward format difficulty solver_mean structure think tool "
        f"{metric_names.LENGTHS}"
    )
    drafted = [
        *metric_names.of(
            {"challenger": f"{drafts} searches", "gates": "passed entity relevance", "rejected": records.REASONS}
        ),
        *metric_names.of({"challenger/valid": options(cfg).task_types}),
    ]
    yield from drafted
    yield from metric_names.of(
        {"creation": [*drafted, *metric_names.of({"solver": solved})], "solver": solved, "estimate": solved}
    )
    yield from ("iteration", "iteration/task_score", "tasks/kept", "tasks/yield")
    yield from metric_names.of({f"judge/{job}": metric_names.JUDGE for job in ("gates", "rubric_writer", "grader")})


CONVERSATIONS = {  # Table 11, App. E
    "": ("xml", "chat"),
    "qwen3": ("hermes", "chat-trimmed"),
    "qwen3_moe": ("hermes", "chat-trimmed"),
    "olmo3": ("function", "chat"),
}
GAME = Game(
    name="scope",
    options=ScopeSection,
    source=source,
    play=play,
    updates=updates,
    exam=exam,
    check=check,
    policies=policies,
    uses_base=uses_base,
    searches=True,
    judges=judges,
    system_messages=system_messages,
    check_prompts=check_prompts,
    start=start,
    finished=finished,
    total_steps=total_steps,
    iterations=iterations,
    waits=waits,
    adopt=adopt,
    data=("documents", "prompts"),
    batch="scope.challenger_batch and scope.solver_batch",
    resumable=("iterations",),
    starter=Starter(conversations=CONVERSATIONS),
    panels=(
        Panel("Held-out rubric score", ("/score", "/exact"), True, of_exams=True),
        Panel(
            "Mean rubric score of tasks",
            ("estimate/task_score", "creation/solver/task_score", "solver/task_score"),
            True,
        ),
        Panel("Mean reward", ("challenger/reward", "solver/reward"), False),
        Panel("Searches per rollout", ("challenger/searches", "solver/searches"), False),
        Panel("Drafts: gates passed, accepted, kept", ("gates/passed", "challenger/valid", "tasks/yield"), True),
        Panel("Tokens of an answer", ("estimate/answer_tokens", "solver/answer_tokens"), False),
        Panel("Gradient norm before the clip", ("challenger/grad_norm", "solver/grad_norm"), False, log=True),
    ),
    metrics=metrics,
)
