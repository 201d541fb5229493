"""SCORE: an evaluator chooses a rubric and assesses reports, a solver writes them; both roles share one actor.

See docs/score.md for a description, and for what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.games.score import conversation, harness, instructions, rows, rules
from scope_jax.games.score.consistency import pairwise
from scope_jax.games.score.evaluator import Query, assess, sample_rubrics
from scope_jax.games.score.exams import exam
from scope_jax.games.score.harness import in_force
from scope_jax.games.score.instructions import check_prompts
from scope_jax.games.score.options import ScoreSection, check, options
from scope_jax.games.score.refreshing import MODEL, Refresh, due, load_replay, probe, refresh
from scope_jax.games.score.rows import evaluator_episodes, evaluator_rewards, solver_episodes
from scope_jax.games.score.scheduler import get_constraints, initial_state, update_stats
from scope_jax.games.score.solver import write_reports
from scope_jax.games.score.statistics import Record, record
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import metric_names
from scope_jax.play.game import GRADIENT, Game, Memory, Panel, Starter
from scope_jax.play.tools import BASE, Tools
from scope_jax.text import templates


def policies(cfg: Config) -> tuple[str, ...]:
    """The shared actor, or one policy for each trained role."""
    return tuple(dict.fromkeys(conversation.policy_of(cfg, role) for role in options(cfg).train))


def uses_base(cfg: Config) -> bool:
    """True if one of two separate policies is not trained: the base plays its role."""
    return BASE in (conversation.policy_of(cfg, "solver"), conversation.policy_of(cfg, "evaluator"))


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external model that writes harnesses, if the card's driver is "endpoint"."""
    card = options(cfg).harness
    return {MODEL: card.endpoint} if card.driver == "endpoint" and card.endpoint is not None else {}


def source(cfg: Config) -> Source:
    """User questions."""
    assert cfg.data.queries is not None  # Config has checked it
    return Source(cfg.data.queries, "queries", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of the roles that have one."""
    return templates.system_files(options(cfg).prompts, instructions.ROLES)


def start(cfg: Config) -> Memory:
    """No statistics, and the card's harness. Raises CardError for an invalid harness, or an invalid file of them."""
    if options(cfg).harness.driver == "replay" and options(cfg).harness.file is not None:
        load_replay(options(cfg).harness.file)
    return {"scheduler": initial_state(), "harness": harness.initial_state(cfg), "statistics": []}


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """The memory of the other run; its harness is replaced by this card's if it is of the other card, or not valid
    here."""
    return {**memory, "harness": harness.adopted(cfg, memory["harness"], memory["scheduler"]["step"])}


def updates(cfg: Config) -> tuple[Update, ...]:
    """l.30, l.32: the solver's update, then the evaluator's on the parameters after it."""
    card = options(cfg)
    made = {
        "solver": Update(conversation.policy_of(cfg, "solver"), card.solver.loss, (RoleShare("solver"),)),
        "evaluator": Update(
            conversation.policy_of(cfg, "evaluator"),
            card.evaluator.loss,
            (RoleShare("evaluator", weight=card.evaluator_scale),),
        ),
    }
    return tuple(update for role, update in made.items() if role in card.train)


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 without the updates: the episodes of both roles, the memory after it, metrics.

    Deterministic, except for the replies of an external model that writes harnesses. `memory` is not modified.
    """
    # l.1, l.2: the loop trains `policies` on the rows of `source`
    # l.3, l.4: `start` returned the first memory
    # l.5: the loop keeps the baseline, as the loss cards in `updates` say
    # l.6: each call is one step
    # l.7, l.8: the scheduler's constraints, among the dimensions that the harness admits
    constraints = get_constraints(cfg, memory["scheduler"], in_force(cfg, memory))
    # l.9: the harness of this step
    now = in_force(cfg, memory)
    absent = probe(cfg, tools, memory["harness"], step)
    state = memory["harness"] if absent is None else absent.state
    # l.10, l.11: the batch of queries
    queries = draw_queries(cfg, tools, step)
    # l.12, l.13: one rubric for the batch, or one for each query
    drafts, rubrics = sample_rubrics(cfg, tools, now, constraints, queries)
    # l.14, l.15, l.16, l.17, l.18: K reports on each query
    reports = write_reports(cfg, tools, queries, rubrics)
    # l.19, l.20, l.21, l.22, l.23, l.24: assessments with the evaluator's own searches
    reports, calls = assess(cfg, tools, now, queries, reports)
    # l.25, l.26: the solver's episodes, in one group per query
    episodes = solver_episodes(cfg, queries, reports, calls)
    # l.27, l.28, l.29, l.30: the loop makes the first of `updates` with these episodes
    # l.31: consistency of the conclusions
    groups = [[report.conclusion for report in reports if report.place == i] for i in range(len(queries))]
    consistency = pairwise(groups, options(cfg).idf)
    # l.32: the evaluator's episodes, for the second of `updates`
    gains = evaluator_rewards(cfg, drafts, consistency)
    episodes += evaluator_episodes(cfg, drafts, gains, step)
    # l.33, l.34: which dimensions were used, and how consistent the reports were
    shared = [consistency] if options(cfg).rubric_scope == "step" else [[value] for value in consistency]
    scheduler = update_stats(cfg, memory["scheduler"], [draft.rubric for draft in drafts], shared[: len(drafts)])
    # l.35: every M steps
    refreshing = due(cfg, step)
    # l.36: statistics since the last refresh
    known = [*memory["statistics"], record(cfg, step, drafts, reports, consistency)]
    # l.37: a new harness
    new = refresh(cfg, tools, state, known, step) if refreshing else None
    # l.38, l.39, l.40, l.41: the memory for the next step
    after = next_memory(cfg, scheduler, known, state, new)
    episodes += rows.harness_episodes(cfg, memory["harness"], [one for one in (absent, new) if one is not None])
    metrics = rows.measure(cfg, drafts, reports, calls, consistency)
    return episodes, after, metrics | rows.measure_harness(now, memory["harness"], after["harness"])


def draw_queries(cfg: Config, tools: Tools, step: int) -> Sequence[Query]:
    """l.11: the next B rows of the stream."""
    return tools.rows(step * cfg.train.batch_size, cfg.train.batch_size)


def next_memory(
    cfg: Config, scheduler: Mapping[str, Any], known: Sequence[Record], state: Mapping[str, Any], new: Refresh | None
) -> Memory:
    """The memory after a step. Statistics are cleared by a refresh; at most those of the last M steps are kept."""
    kept = [] if new is not None else list(known)[-options(cfg).harness.every :]
    return {"scheduler": dict(scheduler), "harness": dict(state if new is None else new.state), "statistics": kept}


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    yield from metric_names.of(
        {
            "solver": "reward base_score dimension_score score_spread assessed report identical_pairs mean_length "
            f"searches {metric_names.LENGTHS}",
            "evaluator": f"depth consistency valid citations_supported {metric_names.LENGTHS}",
            "scoring": f"nudged searches {metric_names.LENGTHS}",
            "harness": "dimensions min_tool_calls since refreshed invalid",
            "rejected": [*rules.REPORT_REASONS, *(f"rubric_{reason}" for reason in rules.RUBRIC_REASONS)],
        }
    )


GAME = Game(
    name="score",
    options=ScoreSection,
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
    adopt=adopt,
    data=("queries",),
    starter=Starter(conversations={"": ("observation", "chat")}),
    panels=(
        Panel("Held-out rubric score", ("/score", "/exact"), True, of_exams=True),
        Panel("Mean reward of reports", ("solver/reward",), False),
        Panel("Scores of reports", ("solver/base_score", "solver/dimension_score"), True),
        Panel("Reports, assessments, valid rubrics", ("solver/report", "solver/assessed", "evaluator/valid"), True),
        Panel("Searches per episode", ("/searches",), False),
        GRADIENT,
    ),
    metrics=metrics,
)
