"""SCORE: an evaluator chooses what reports are judged by and assesses them; a solver writes them; both are one actor.

Algorithm 1 of the paper (App. E) and where each of its lines happens. Algorithm 2 is l.32: conclusions and their
agreement are `pairwise`, R_eval is `evaluator_rewards`, and the loop keeps the baseline b_t (advantage "ema").

| line | in our words | where |
|---|---|---|
| 1 | given: the actor in two roles, queries, a pool of dimensions | `policies`, `source`; all else is the card's |
| 2 | the trained actor | `policies` |
| 3 | a scheduler without statistics | `start` |
| 4 | the default harness | `start` |
| 5 | b_0 = 0 | `updates`, kept by the loop |
| 6 | for each step | one call of `play` by the loop |
| 7 | phase 1 | `get_constraints` |
| 8 | dimensions to require, to avoid, to try | `get_constraints` |
| 9 | the harness in force | `in_force` |
| 10 | phase 2 | `draw_queries` |
| 11 | a batch of queries | `draw_queries` |
| 12 | the rubric prompt | `sample_rubrics` |
| 13 | the evaluator samples a rubric | `sample_rubrics` |
| 14 | phase 3 | `write_reports` |
| 15 | for each query, K times | `write_reports` |
| 16 | the solver searches and writes a report under the rubric | `write_reports` |
| 17 | with what it read | `write_reports` |
| 18 | end for | `write_reports` |
| 19 | phase 4 | `assess` |
| 20 | the evaluator searches on its own | `assess` |
| 21 | for each report | `assess` |
| 22 | scores on every dimension, R_s | `assess` |
| 23 | nothing for an assessment with too few searches | `assess` |
| 24 | end for | `assess` |
| 25 | phase 5 | `solver_episodes` |
| 26 | for each query | `solver_episodes` |
| 27 | mean and deviation of its rewards | `updates`, done by the loop |
| 28 | advantages | `updates`, done by the loop |
| 29 | end for | `updates`, done by the loop |
| 30 | update with the reports, by GRPO | `updates`, done by the loop |
| 31 | phase 6 | `pairwise` |
| 32 | consistency, centred, and the update with the rubric, by REINFORCE | `evaluator_rewards`, `evaluator_episodes` |
| 33 | phase 7 | `update_stats` |
| 34 | the scheduler's statistics | `update_stats` |
| 35 | every M steps | `due` |
| 36 | the statistics since the last time | `record` |
| 37 | a new harness | `refresh` |
| 38 | else | `next_memory` |
| 39 | the harness stays | `next_memory` |
| 40 | end if | `next_memory` |
| 41 | end for | `next_memory` |

docs/score.md tells the game to its users, docs/fidelity.md lists what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play.defaults import finished, iterations, total_steps
from scope_jax.play.system import Memory
from scope_jax.play.tools import BASE, Tools
from scope_jax.systems.score import harness, instructions, rows, talking
from scope_jax.systems.score.consistency import pairwise
from scope_jax.systems.score.evaluator import Query, assess, sample_rubrics
from scope_jax.systems.score.exams import exam
from scope_jax.systems.score.harness import in_force
from scope_jax.systems.score.refreshing import MODEL, Refresh, due, load_replay, refresh
from scope_jax.systems.score.rows import evaluator_episodes, evaluator_rewards, solver_episodes
from scope_jax.systems.score.scheduler import begun, get_constraints, update_stats
from scope_jax.systems.score.solver import write_reports
from scope_jax.systems.score.statistics import Record, record
from scope_jax.text import templates

__all__ = ["exam", "finished", "iterations", "total_steps"]  # of the game, beside the functions below


def policies(cfg: Config) -> tuple[str, ...]:
    """The shared actor, or one policy for each role that learns."""
    return tuple(dict.fromkeys(talking.policy_of(cfg, role) for role in cfg.score.train))


def uses_base(cfg: Config) -> bool:
    """True if a role with separate weights is not trained: the base plays it."""
    return BASE in (talking.policy_of(cfg, "solver"), talking.policy_of(cfg, "evaluator"))


def searches(cfg: Config) -> bool:
    """True: the solver and the evaluator search."""
    return True


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external model that writes harnesses, if the card has one."""
    card = cfg.score.harness
    return {MODEL: card.endpoint} if card.driver == "endpoint" and card.endpoint is not None else {}


def source(cfg: Config) -> Source:
    """User questions."""
    assert cfg.data.queries is not None  # Config has checked it
    return Source(cfg.data.queries, "queries", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of the roles that have one."""
    return templates.system_files(cfg.score.prompts, instructions.ROLES)


def start(cfg: Config) -> Memory:
    """No statistics, and the default harness. Raises ValueError for a harness or a file of them that cannot be used."""
    if cfg.score.harness.driver == "replay" and cfg.score.harness.file is not None:
        load_replay(cfg.score.harness.file)
    return {"scheduler": begun(), "harness": harness.begun(cfg), "statistics": []}


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """The harness of the other run, where it is valid under this card."""
    return {**memory, "harness": harness.adopted(cfg, memory["harness"])}


def updates(cfg: Config) -> tuple[Update, ...]:
    """l.30, l.32: the solver's update, then the evaluator's on the parameters after it."""
    card = cfg.score
    made = {
        "solver": Update(talking.policy_of(cfg, "solver"), card.solver.loss, (RoleShare("solver"),)),
        "evaluator": Update(
            talking.policy_of(cfg, "evaluator"),
            card.evaluator.loss,
            (RoleShare("evaluator", weight=card.evaluator_scale),),
        ),
    }
    return tuple(update for role, update in made.items() if role in card.train)


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 up to the updates: episodes of both roles, the memory after it, metrics.

    Pure but for what an outside model of the harness says; `memory` is not changed.
    """
    # l.1, l.2: the loop trains `policies` on rows of `source`
    # l.3, l.4: the run began with the memory that `start` gives
    # l.5: `updates` says how the baseline moves; the loop keeps it
    # l.6: a step is one call
    # l.7, l.8: what the scheduler would like, among what the harness admits
    wishes = get_constraints(cfg, memory["scheduler"], in_force(cfg, memory))
    # l.9: the harness of this step
    now = in_force(cfg, memory)
    # l.10, l.11: the batch
    queries = draw_queries(cfg, tools, step)
    # l.12, l.13: a rubric for the batch, or one for each query
    drafts, rubrics = sample_rubrics(cfg, tools, now, wishes, queries)
    # l.14, l.15, l.16, l.17, l.18: K reports on each
    reports = write_reports(cfg, tools, queries, rubrics)
    # l.19, l.20, l.21, l.22, l.23, l.24: assessed with the evaluator's own searches
    reports, calls = assess(cfg, tools, now, queries, reports)
    # l.25, l.26: rows of the solver
    episodes = solver_episodes(cfg, queries, reports, calls)
    # l.27, l.28, l.29, l.30: the loop asks `updates` and does the first with these rows
    # l.31: how alike the reports' conclusions are
    groups = [[report.conclusion for report in reports if report.place == i] for i in range(len(queries))]
    consistency = pairwise(groups, cfg.score.idf)
    # l.32: rows of the evaluator, for the second update
    gains = evaluator_rewards(cfg, drafts, consistency)
    episodes += evaluator_episodes(cfg, drafts, gains, step)
    # l.33, l.34: the dimensions that were used, and what came of them
    shared = [consistency] if cfg.score.rubric_scope == "step" else [[value] for value in consistency]
    scheduler = update_stats(cfg, memory["scheduler"], [draft.rubric for draft in drafts], shared[: len(drafts)])
    # l.35: every M steps
    time = due(cfg, step)
    # l.36: statistics
    known = [*memory["statistics"], record(cfg, step, drafts, reports, consistency)]
    # l.37: a new harness
    new = refresh(cfg, tools, memory["harness"], known, step) if time else None
    # l.38, l.39, l.40, l.41: what the next step needs to know
    after = next_memory(cfg, memory, scheduler, known, new)
    metrics = rows.measure(cfg, drafts, reports, calls, consistency)
    episodes += rows.harness_episodes(memory["harness"], new, step)
    return episodes, after, metrics | rows.measure_harness(now, memory["harness"], new)


def draw_queries(cfg: Config, tools: Tools, step: int) -> Sequence[Query]:
    """l.11: the next B rows of the stream."""
    return tools.rows(step * cfg.train.batch_size, cfg.train.batch_size)


def next_memory(
    cfg: Config, memory: Memory, scheduler: Mapping[str, Any], known: Sequence[Record], new: Refresh | None
) -> Memory:
    """The memory after a step; statistics begin anew after a refresh, and only those of M steps are kept."""
    kept = [] if new is not None else list(known)[-cfg.score.harness.every :]
    state = memory["harness"] if new is None else new.state
    return {"scheduler": dict(scheduler), "harness": state, "statistics": kept}
