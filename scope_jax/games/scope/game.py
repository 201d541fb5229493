"""SCOPE as a `Game`: its roles, Algorithm 1 in stages, the memory between steps, the exam of its solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.data.rows import Row
from scope_jax.data.sources import Source
from scope_jax.games.scope import messages, roles, rules, state
from scope_jax.games.scope.options import ScopeSection, check, options
from scope_jax.games.scope.roles import CHALLENGER, SOLVER, card_roles
from scope_jax.games.scope.state import AttemptedTask, ScopeOutcome, TaskDraft
from scope_jax.grading.rewards import mean, means
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.exams import Exam
from scope_jax.play.game import Game, Panel, Starter
from scope_jax.play.step import Memory, Played, Step

ESTIMATE = "estimate"  # label of the solver's attempts that measure a draft's task
CREATION = "creation"  # labels of task generation begin with it


def play(step: Step[ScopeSection]) -> Played:
    """One step of the current stage: its episodes, and what the memory needs of it.

    Pure: all randomness is derived from the seed and the position in the run.
    """
    # l.1: no document is reused before all have been used; a solver step in self-play needs no rows
    stage = step.memory["stage"]
    rows = step.rows(step.memory["drawn"], state.rows_needed(step.card, stage))
    # l.2: all policies begin as the base model, which stays as the judge
    # l.3: the memory holds the current iteration and stage
    stages = {"challenger": challenger_step, "tasks": task_step, "solver": solver_step}
    played = stages[stage](step, rows)
    return replace(played, metrics={**played.metrics, "iteration": float(step.memory["iteration"])})


def challenger_step(step: Step[ScopeSection], rows: Sequence[Row]) -> Played:
    """Stage 1 (l.4): the challenger writes tasks, rewarded if the current solver finds them neither too easy nor too
    hard."""
    card, memory = step.card, step.memory
    # l.5, l.6: documents, task types and expected searches, stratified over the iteration
    total = card.steps_per_iteration * card.challenger_batch
    first = memory["place"] * card.challenger_batch
    orders = roles.draw_orders(step, rows, first, total, f"iteration {memory['iteration']}")
    # l.7: G drafts per document
    drafts = roles.propose(step, orders, card.challenger.samples)
    # l.8, l.9: the quality gates, and rubrics for the drafts that pass
    drafts = roles.check_drafts(step, drafts)
    # l.10: N attempts by the current solver at each task
    attempted = roles.solve(step, roles.tasks_of(drafts), card.n_train, card.estimate, ESTIMATE)
    # l.11: grade them
    attempted = roles.grade(step, attempted)
    # l.12 to l.15: Eq. (4); a rejected draft gets only the format term
    drafts = roles.reward_challenger(card, drafts, attempted)
    attempted = roles.reward_solver(card, attempted)
    episodes = challenger_episodes(drafts, trained=True) + solver_episodes(card, attempted, trained=False)
    # l.16, l.17: the training loop trains on the challenger's episodes
    metrics = measure_drafts(step, drafts) | measure_attempts(attempted, ESTIMATE)
    return Played(episodes, outcome=ScopeOutcome(rows=len(rows), tasks=[], scores=[]), metrics=metrics)


def task_step(step: Step[ScopeSection], rows: Sequence[Row]) -> Played:
    """Stage 2 (l.18), first part: tasks are written from a batch of documents, and those of suitable difficulty are
    kept."""
    card, memory = step.card, step.memory
    # l.19: the memory had no tasks when the iteration began
    known = {task["document"] for task in memory["tasks"]}
    # l.20: documents that have no task yet
    name = f"iteration {memory['iteration']} tasks {memory['place']}"
    orders = roles.draw_orders(step, rows, 0, len(rows), name)
    orders = [order for order in orders if order.key not in known]
    # l.21: one draft per document
    drafts = roles.propose(step, orders, 1, card.creation, f"{CREATION}/{CHALLENGER}")
    # l.22: gates and rubrics
    drafts = roles.check_drafts(step, drafts)
    # l.23: a few attempts at each task, graded
    attempted = roles.solve(step, roles.tasks_of(drafts), card.n_filter, card.creation, f"{CREATION}/{SOLVER}")
    attempted = roles.grade(step, attempted)
    drafts = roles.reward_challenger(card, drafts, attempted)
    attempted = roles.reward_solver(card, attempted)
    # l.24, l.25, l.26: the difficulty window
    tasks = state.retain(card, drafts)
    episodes = challenger_episodes(drafts, trained=False) + solver_episodes(card, attempted, trained=False)
    metrics = measure_drafts(step, drafts, f"{CREATION}/") | measure_attempts(attempted, f"{CREATION}/{SOLVER}")
    metrics["tasks/yield"] = len(tasks) / len(rows)
    # l.27: the memory continues with the next batch, or with the solver
    return Played(episodes, outcome=ScopeOutcome(rows=len(rows), tasks=tasks, scores=[]), metrics=metrics)


def solver_step(step: Step[ScopeSection], rows: Sequence[Row]) -> Played:
    """Stage 2, second part: the solver is trained on a batch of tasks."""
    # l.28, l.29: tasks of this iteration sampled without replacement, or curated prompts
    sampled = rows if step.card.mode == "curated" else state.sample_tasks(step)
    tasks = [state.rubric_task(task, index) for index, task in enumerate(sampled)]
    # l.30: G attempts at each
    attempted = roles.solve(step, tasks, step.card.solver.samples)
    attempted = roles.grade(step, attempted)
    # l.31, l.32: Eq. (6)
    attempted = roles.reward_solver(step.card, attempted)
    episodes = solver_episodes(step.card, attempted, trained=True)
    scores = [group.mean for group in attempted if group.mean is not None]
    outcome = ScopeOutcome(rows=len(rows), tasks=[], scores=[mean(scores)] if scores else [])
    # l.33: the training loop trains on these episodes
    # l.34, l.35: the memory continues with the next step, or the next iteration, until all are completed
    return Played(episodes, outcome=outcome, metrics=measure_attempts(attempted, SOLVER))


def remember(cfg: Config, memory: Memory, outcome: ScopeOutcome, number: int) -> tuple[Memory, Metrics]:
    """The memory after a step, the number of its tasks, and at the end of an iteration the mean score of its tasks."""
    after = state.after_step(cfg, memory, outcome)
    metrics: Metrics = {}
    if memory["stage"] == "tasks":
        metrics["tasks/kept"] = float(len(after["tasks"]))
    scores = [*memory["measured"], *outcome["scores"]]
    if after["iteration"] > memory["iteration"] and scores:
        metrics["iteration/task_score"] = mean(scores)
    return after, metrics


# ------------------------------------------------------------------------------------------------ episodes and metrics
def challenger_episodes(drafts: Sequence[TaskDraft], trained: bool) -> list[Episode]:
    """One episode per draft."""
    return [
        draft.sample.episode(
            draft.reward.value,
            parts=draft.reward.parts,
            text={
                "document": draft.order.key,
                "task_type": draft.order.kind,
                "searches_asked": draft.order.searches,
                "task": draft.task,
                "rejected": draft.rejected,
                "rubric": [criterion.plain() for criterion in draft.rubric],
                "draft": draft.index,
            },
            trained=trained,
            judgements=draft.judgements,
        )
        for draft in drafts
    ]


def solver_episodes(card: ScopeSection, attempted: Sequence[AttemptedTask], trained: bool) -> list[Episode]:
    """One episode per attempt. An attempt without a score is not trained on, unless the card says that it counts as 0.

    Neither is an attempt that is the only one of its group with a score: there is nothing to compare it with.
    """
    episodes = []
    for group in attempted:
        usable = [attempt.graded.score is not None or card.ungraded == "zero" for attempt in group.attempts]
        alone = len(usable) > 1 and sum(usable) == 1
        for attempt, has_score in zip(group.attempts, usable, strict=True):
            episode = attempt.sample.episode(
                attempt.reward.value,
                parts=attempt.reward.parts,
                text={
                    "task": group.task.question,
                    "answer": attempt.answer,
                    "answer_tokens": attempt.tokens,
                    "rubric": [criterion.plain() for criterion in group.task.rubric],
                    "verdicts": list(attempt.graded.verdicts),
                },
                trained=trained and has_score and not alone,
                judgements=attempt.graded.judgements,
            )
            episodes.append(episode)
    return episodes


def measure_drafts(step: Step[ScopeSection], drafts: Sequence[TaskDraft], prefix: str = "") -> Metrics:
    """Of drafts, what their samples and episodes do not tell; a mean over no values is left out."""
    gated = [draft for draft in drafts if draft.gates]
    written = [draft for draft in drafts if draft.rubric or draft.rejected == "no_rubrics"]
    values: dict[str, list[float]] = {
        f"{prefix}challenger/valid": [float(not draft.rejected) for draft in drafts],
        f"{prefix}challenger/rubrics_parsed": [float(bool(draft.rubric)) for draft in written],
        f"{prefix}challenger/rubric_items": [float(len(draft.rubric)) for draft in written if draft.rubric],
        f"{prefix}gates/passed": [float(all(draft.gates.values())) for draft in gated],
    }
    for gate in rules.GATES:
        values[f"{prefix}gates/{gate}"] = [float(bool(draft.gates[gate])) for draft in gated]
    for kind in step.card.task_types:
        of_kind = [draft for draft in drafts if draft.order.kind == kind]
        values[f"{prefix}challenger/valid/{kind}"] = [float(not draft.rejected) for draft in of_kind]
    return means(values)


def measure_attempts(attempted: Sequence[AttemptedTask], label: str) -> Metrics:
    """Of attempts, what their samples and episodes do not tell; a mean over no values is left out."""
    attempts = [attempt for group in attempted for attempt in group.attempts]
    verdicts = [verdict for attempt in attempts for verdict in attempt.graded.verdicts]
    values: dict[str, list[float]] = {
        f"{label}/task_score": [group.mean for group in attempted if group.mean is not None],
        f"{label}/answered": [float(attempt.answer is not None) for attempt in attempts],
        f"{label}/answer_tokens": [float(attempt.tokens) for attempt in attempts if attempt.answer is not None],
        f"{label}/ungraded": [float(attempt.graded.score is None) for attempt in attempts],
        f"{label}/verdicts_missing": [float(verdict is None) for verdict in verdicts],
    }
    return means(values)


# ------------------------------------------------------------------------------------------------------------ the game
def exam(cfg: Config) -> Exam:
    """Tasks with rubrics, answered as in training and graded by the card's grader."""
    return Exam(
        role=roles.solver_role(cfg),
        prompt=lambda row, tokens: messages.for_solver(cfg, row["question"], cfg.evaluate.max_turns),
        read=lambda completion: rules.answer_of(rules.parse_turns(cfg, completion, "answer")),
        measures=("rubric", "exact"),
        grader=roles.grader(options(cfg), roles.grader_role(cfg)),
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


def total_steps(cfg: Config) -> int | None:
    """Known for curated prompts; None in self-play, where the number of task batches depends on the run."""
    return options(cfg).iterations * options(cfg).steps_per_iteration if options(cfg).mode == "curated" else None


GAME = Game(
    name="scope",
    options=ScopeSection,
    roles=card_roles,
    play=play,
    remember=remember,
    start=state.start,
    exam=exam,
    source=source,
    check=check,
    total_steps=total_steps,
    iterations=lambda cfg, memory: memory["iteration"] - 1,
    # Tasks are written by the trained challenger (l.21), and attempted by the solver of the iteration before.
    waits=lambda cfg, memory: memory["place"] == 0,
    adopt=state.adopted,
    data=("documents", "prompts"),
    batch=("scope.challenger_batch", "scope.solver_batch"),
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
)
