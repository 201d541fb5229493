"""SCOPE as a `Game`: Algorithm 1 in stages, the learner's updates, episodes, metrics, the exam of its solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scope_jax.config import Config, JudgeSection, SamplingSection
from scope_jax.data.sources import Source
from scope_jax.games.scope import messages, roles, rules, state
from scope_jax.games.scope.options import ScopeSection, check, options
from scope_jax.games.scope.roles import CHALLENGER, SOLVER
from scope_jax.games.scope.state import AttemptedTask, TaskDraft
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import metric_names, searching
from scope_jax.play.exams import Exam
from scope_jax.play.game import Game, Memory, Panel, Starter
from scope_jax.play.rewards import mean, means, parts_of, shares
from scope_jax.play.tools import Tools
from scope_jax.retrieval.rows import Row
from scope_jax.text import templates

Played = tuple[list[Episode], Memory, Metrics]
# Parts of rewards that are metrics:
DRAFT_PARTS = ("format", "think", "tool", "structure", "difficulty", "solver_mean")
ATTEMPT_PARTS = ("format", "think", "tool", "answer", "length", "search", "rubric")


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> Played:
    """One step of the current stage: its episodes, the memory after it, metrics.

    Pure: all randomness is derived from the seed and the position in the run, and `memory` is not modified.
    """
    # l.1: no document is reused before all have been used; a solver step in self-play needs no rows
    rows = tools.rows(memory["drawn"], state.rows_needed(cfg, memory))
    # l.2: the training loop initialised `policies` from the base model, and keeps that model if `uses_base`
    # l.3: the memory holds the current iteration and stage
    stages = {"challenger": challenger_step, "tasks": task_step, "solver": solver_step}
    episodes, after, metrics = stages[memory["stage"]](cfg, tools, memory, rows)
    return episodes, after, metrics | {"iteration": float(memory["iteration"])}


def challenger_step(cfg: Config, tools: Tools, memory: Memory, rows: Sequence[Row]) -> Played:
    """Stage 1 (l.4): the challenger writes tasks, rewarded if the current solver finds them neither too easy nor too
    hard."""
    card = options(cfg)
    # l.5, l.6: documents, task types and expected searches, stratified over the iteration
    first, total = memory["place"] * card.challenger_batch, card.steps_per_iteration * card.challenger_batch
    orders = roles.draw_orders(cfg, tools.tokens, rows, first, total, f"iteration {memory['iteration']}")
    # l.7: G drafts per document
    drafts = roles.propose(cfg, tools, orders, card.challenger.samples, card.challenger.sampling)
    # l.8, l.9: the quality gates, and rubrics for the drafts that pass
    drafts, checks = roles.check_drafts(cfg, tools, drafts)
    # l.10: N attempts by the current solver at each task
    attempted = roles.solve(cfg, tools, roles.tasks_of(drafts), card.n_train, card.estimate)
    # l.11: grade them
    attempted, grades = roles.grade(cfg, tools, attempted)
    # l.12, l.13, l.14, l.15: Eq. (4); a rejected draft gets only the format term
    episodes = challenger_episodes(cfg, drafts, attempted, card.challenger.sampling, trained=True)
    episodes += solver_episodes(cfg, attempted, card.estimate, trained=False)
    metrics = measure_drafts(cfg, drafts, episodes) | measure_attempts(attempted, episodes, "estimate")
    # l.16, l.17: the training loop calls `updates` and trains on the challenger's episodes
    return episodes, state.advance(cfg, memory, drawn=len(rows)), metrics | checks | grades


def task_step(cfg: Config, tools: Tools, memory: Memory, rows: Sequence[Row]) -> Played:
    """Stage 2 (l.18), first part: tasks are written from a batch of documents, and those of suitable difficulty are
    kept."""
    card = options(cfg)
    # l.19: the memory had no tasks when the iteration began
    known = {task["document"] for task in memory["tasks"]}
    # l.20: documents that have no task yet
    name = f"iteration {memory['iteration']} tasks {memory['place']}"
    orders = roles.draw_orders(cfg, tools.tokens, rows, 0, len(rows), name)
    orders = [order for order in orders if order.key not in known]
    # l.21: one draft per document
    drafts = roles.propose(cfg, tools, orders, 1, card.creation)
    # l.22: gates and rubrics
    drafts, checks = roles.check_drafts(cfg, tools, drafts)
    # l.23: a few attempts at each task, graded
    attempted = roles.solve(cfg, tools, roles.tasks_of(drafts), card.n_filter, card.creation)
    attempted, grades = roles.grade(cfg, tools, attempted)
    # l.24, l.25, l.26: the difficulty window
    tasks = state.retain(cfg, drafts, attempted)
    episodes = challenger_episodes(cfg, drafts, attempted, card.creation, trained=False)
    episodes += solver_episodes(cfg, attempted, card.creation, trained=False)
    metrics = measure_drafts(cfg, drafts, episodes) | measure_attempts(attempted, episodes, "solver")
    metrics = {f"creation/{name}": value for name, value in metrics.items()} | checks | grades
    metrics["tasks/yield"] = len(tasks) / len(rows)
    metrics["tasks/kept"] = float(min(len(memory["tasks"]) + len(tasks), card.target_tasks))
    # l.27: continue with the next batch, or with the solver
    return episodes, state.advance(cfg, memory, drawn=len(rows), tasks=tasks), metrics


def solver_step(cfg: Config, tools: Tools, memory: Memory, rows: Sequence[Row]) -> Played:
    """Stage 2, second part: the solver is trained on a batch of tasks."""
    card = options(cfg)
    # l.28, l.29: tasks of this iteration drawn without replacement, or curated prompts
    drawn = rows if card.mode == "curated" else state.sampled_tasks(cfg, memory)
    tasks = [state.rubric_task(task, index) for index, task in enumerate(drawn)]
    # l.30: G attempts at each
    attempted = roles.solve(cfg, tools, tasks, card.solver.samples, card.solver.sampling)
    attempted, grades = roles.grade(cfg, tools, attempted)
    # l.31, l.32: Eq. (6)
    episodes = solver_episodes(cfg, attempted, card.solver.sampling, trained=True)
    metrics = measure_attempts(attempted, episodes, "solver") | grades
    # l.33: the training loop calls `updates` and trains on these episodes
    # l.34: the next step, or the next iteration
    scores = [group.mean for group in attempted if group.mean is not None]
    measured = [mean(scores)] if scores else []
    after = state.advance(cfg, memory, drawn=len(rows), measured=measured)
    if after["iteration"] > memory["iteration"] and (whole := memory["measured"] + measured):
        metrics["iteration/task_score"] = mean(whole)
    # l.35: the training loop calls `finished`
    return episodes, after, metrics


def policies(cfg: Config) -> tuple[str, ...]:
    """Challenger and solver; only the solver when training on curated prompts."""
    return (SOLVER,) if options(cfg).mode == "curated" else (CHALLENGER, SOLVER)


def updates(cfg: Config) -> tuple[Update, ...]:
    """Algorithm 1 l.17 and l.33: each policy has its own role's loss card; a step trains only one of them."""
    cards = {CHALLENGER: options(cfg).challenger, SOLVER: options(cfg).solver}
    return tuple(Update(name, cards[name].loss, (RoleShare(name),)) for name in policies(cfg))


# ------------------------------------------------------------------------------------------------ episodes and metrics
def challenger_episodes(
    cfg: Config,
    drafts: Sequence[TaskDraft],
    attempted: Sequence[AttemptedTask],
    sampling: SamplingSection,
    trained: bool,
) -> list[Episode]:
    """One episode per draft."""
    solver_means = {group.task.index: group.mean for group in attempted}
    episodes = []
    for index, draft in enumerate(drafts):
        reward, parts = roles.reward_challenger(cfg, draft, solver_means.get(index))
        text = {
            "document": draft.order.key,
            "task_type": draft.order.kind,
            "searches_asked": draft.order.searches,
            "task": draft.task,
            "rejected": draft.rejected,
            "rubric": [criterion.plain() for criterion in draft.rubric],
            "draft": index,
        }
        episode = Episode.from_completion(
            draft.completion,
            draft.prompt,
            text,
            role="challenger",
            policy=CHALLENGER,
            group=f"challenger/{draft.order.index}",
            reward=reward,
            parts=parts | {f"gate_{gate}": float(bool(verdict)) for gate, verdict in draft.gates.items()},
            trained=trained,
            temperature=sampling.temperature,
            judgements=draft.judgements,
        )
        episodes.append(episode)
    return episodes


def solver_episodes(
    cfg: Config, attempted: Sequence[AttemptedTask], sampling: SamplingSection, trained: bool
) -> list[Episode]:
    """One episode per attempt. An attempt without a score is not trained on, unless the card says that it counts as 0.

    Neither is an attempt that is the only one of its group with a score: there is nothing to compare it with.
    """
    episodes = []
    for group in attempted:
        usable = [a.graded.score is not None or options(cfg).ungraded == "zero" for a in group.attempts]
        alone = len(usable) > 1 and sum(usable) == 1
        for attempt, has_score in zip(group.attempts, usable, strict=True):
            reward, parts = roles.reward_solver(cfg, attempt)
            text = {
                "task": group.task.question,
                "answer": attempt.answer,
                "answer_tokens": attempt.tokens,
                "rubric": [criterion.plain() for criterion in group.task.rubric],
                "verdicts": list(attempt.graded.verdicts),
            }
            episode = Episode.from_completion(
                attempt.completion,
                group.prompt,
                text,
                role="solver",
                policy=SOLVER,
                group=f"solver/{group.task.index}",
                reward=reward,
                parts=parts,
                trained=trained and has_score and not alone,
                temperature=sampling.temperature,
                judgements=attempt.graded.judgements,
            )
            episodes.append(episode)
    return episodes


def measure_drafts(cfg: Config, drafts: Sequence[TaskDraft], episodes: Sequence[Episode]) -> Metrics:
    """The challenger's metrics of a step; a mean over no values is left out."""
    gated = [draft for draft in drafts if draft.gates]
    written = [draft for draft in drafts if draft.rubric or draft.rejected == "no_rubrics"]
    searches = [draft.searches for draft in drafts]
    values: dict[str, list[float]] = {
        "challenger/valid": [float(not draft.rejected) for draft in drafts],
        "challenger/rubrics_parsed": [float(bool(draft.rubric)) for draft in written],
        "challenger/rubric_items": [float(len(draft.rubric)) for draft in written if draft.rubric],
        "gates/passed": [float(all(draft.gates.values())) for draft in gated],
        **parts_of("challenger", episodes, *DRAFT_PARTS),
        **searching.episode_stats("challenger", [draft.completion for draft in drafts], searches),
    }
    for gate in rules.GATES:
        values[f"gates/{gate}"] = [float(bool(draft.gates[gate])) for draft in gated]
    for kind in options(cfg).task_types:
        values[f"challenger/valid/{kind}"] = [float(not d.rejected) for d in drafts if d.order.kind == kind]
    rejected = [draft.rejected for draft in drafts]
    return means(values) | shares("challenger/rejected_", rejected, rules.REASONS)


def measure_attempts(attempted: Sequence[AttemptedTask], episodes: Sequence[Episode], prefix: str) -> Metrics:
    """The solver's metrics of a step; a mean over no values is left out."""
    attempts = [attempt for group in attempted for attempt in group.attempts]
    searches = [rules.searches_run(attempt.turns) for attempt in attempts]
    verdicts = [verdict for attempt in attempts for verdict in attempt.graded.verdicts]
    values: dict[str, list[float]] = {
        f"{prefix}/task_score": [group.mean for group in attempted if group.mean is not None],
        f"{prefix}/answered": [float(attempt.answer is not None) for attempt in attempts],
        f"{prefix}/answer_tokens": [float(attempt.tokens) for attempt in attempts if attempt.answer is not None],
        f"{prefix}/ungraded": [float(attempt.graded.score is None) for attempt in attempts],
        f"{prefix}/verdicts_missing": [float(verdict is None) for verdict in verdicts],
        **parts_of("solver", episodes, *ATTEMPT_PARTS, prefix=prefix),
        **searching.episode_stats(prefix, [attempt.completion for attempt in attempts], searches),
    }
    return means(values)


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    lengths = f"reward searches {metric_names.LENGTHS}".split()
    solved = [*lengths, *ATTEMPT_PARTS, "task_score", "answered", "answer_tokens", "ungraded", "verdicts_missing"]
    rejected = metric_names.rejections(rules.REASONS).split()
    drafts = {
        "challenger": [*lengths, *DRAFT_PARTS, "valid", "rubrics_parsed", "rubric_items", *rejected],
        "challenger/valid": options(cfg).task_types,
        "gates": ["passed", *rules.GATES],
    }
    families = drafts | {"estimate": solved, "solver": solved, "tasks": "kept yield", "iteration": ["task_score"]}
    yield from ("iteration", *metric_names.of(families))
    yield from metric_names.of({f"creation/{family}": names for family, names in (drafts | {"solver": solved}).items()})
    yield from metric_names.of({f"judge/{job}": metric_names.JUDGE for job in roles.JOBS})


# ------------------------------------------------------------------------------------------------------------ the game
def exam(cfg: Config) -> Exam:
    """Tasks with rubrics, answered as in training and graded by the card's grader."""
    return Exam(
        policy=SOLVER,
        prompt=lambda row, tokens: messages.for_solver(cfg, row["question"], cfg.evaluate.max_turns),
        read=lambda completion: rules.answer_of(rules.parse_turns(cfg, completion, "answer")),
        measures=("rubric", "exact"),
        max_turns=options(cfg).solver.max_turns,
        searches=lambda completion: rules.searches_run(rules.parse_turns(cfg, completion, "answer")),
        grader=roles.grader(cfg),
        **roles.solver(cfg),
    )


def source(cfg: Config) -> Source:
    """Documents from which tasks are written, or curated prompts with rubrics."""
    if options(cfg).mode == "curated":
        return Source(cfg.data.prompts or "", "tasks", cfg.data)
    if cfg.data.documents is not None:
        return Source(cfg.data.documents, "documents", cfg.data)
    assert cfg.retrieval is not None  # Config has checked it
    where = cfg.retrieval.model_dump(include={"columns", "split", "hub_config"})
    return Source(cfg.retrieval.corpus or "", "documents", cfg.data.model_copy(update=where))


def _jobs(cfg: Config) -> tuple[str, ...]:
    """The judge's jobs under this card."""
    if options(cfg).mode == "curated":
        return ("grader",)
    return roles.JOBS if options(cfg).quality_gates else tuple(job for job in roles.JOBS if job != "gates")


def uses_base(cfg: Config) -> bool:
    """True if the base model does at least one of the judge's jobs."""
    return any(roles.judge_of(cfg, job).card.endpoint is None for job in _jobs(cfg))


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """External models that do a job of the judge in place of the base model, by job."""
    return {name: table for job in _jobs(cfg) for name, table in roles.judge_of(cfg, job).outside.items()}


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of the roles that search."""
    return templates.system_files(options(cfg).prompts, messages.SEARCHING)


def total_steps(cfg: Config) -> int | None:
    """Known for curated prompts; None in self-play, where the number of task batches depends on the run."""
    return options(cfg).iterations * options(cfg).steps_per_iteration if options(cfg).mode == "curated" else None


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
    check_prompts=messages.check_prompts,
    start=state.start,
    finished=lambda cfg, memory, step: memory["iteration"] > options(cfg).iterations,
    total_steps=total_steps,
    iterations=lambda cfg, memory: memory["iteration"] - 1,
    # Tasks are written by the trained challenger (l.21), and attempted by the solver of the iteration before.
    waits=lambda cfg, memory: memory["place"] == 0,
    adopt=state.adopted,
    data=("documents", "prompts"),
    batch="scope.challenger_batch and scope.solver_batch",
    resumable=("iterations",),
    starter=Starter(
        conversations={  # Table 11, App. E
            "": ("xml", "chat"),
            "qwen3": ("hermes", "chat-trimmed"),
            "qwen3_moe": ("hermes", "chat-trimmed"),
            "olmo3": ("function", "chat"),
        }
    ),
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
