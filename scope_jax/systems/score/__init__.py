"""SCORE: an evaluator chooses a rubric and assesses reports, a solver writes them; both roles share one actor.

Algorithm 1 of the paper (App. E) and where each of its lines happens. Algorithm 2 is l.32: `pairwise` computes the
consistency of the conclusions, `evaluator_rewards` R_eval, and the training loop keeps the baseline b_t (advantage
"ema").

| line | in our words | where |
|---|---|---|
| 1 | input: the actor in two roles, queries, a pool of dimensions | `policies`, `source`; the rest is in the card |
| 2 | output: the trained actor | `policies` |
| 3 | initialise the scheduler | `start` |
| 4 | initialise the harness with the default | `start` |
| 5 | initialise the baseline: b_0 = 0 | `updates`, kept by the loop |
| 6 | for each step | one call of `play` by the loop |
| 7 | phase 1 | `get_constraints` |
| 8 | required and avoided dimensions, exploration hints | `get_constraints` |
| 9 | constraints of the harness in force | `in_force` |
| 10 | phase 2 | `draw_queries` |
| 11 | sample a batch of queries | `draw_queries` |
| 12 | build the rubric prompt | `sample_rubrics` |
| 13 | sample a rubric from the evaluator | `sample_rubrics` |
| 14 | phase 3 | `write_reports` |
| 15 | for each query and each of K rollouts | `write_reports` |
| 16 | sample a report from the solver, given query and rubric | `write_reports` |
| 17 | record the search results it read | `write_reports` |
| 18 | end for | `write_reports` |
| 19 | phase 4 | `assess` |
| 20 | the evaluator gathers evidence of its own | `assess` |
| 21 | for each query and each rollout | `assess` |
| 22 | scores of the evaluator, reward R_s | `assess` |
| 23 | reward 0 if the search depth is below τ_s | `assess` |
| 24 | end for | `assess` |
| 25 | phase 5 | `solver_episodes` |
| 26 | for each query | `solver_episodes` |
| 27 | mean and standard deviation of its rewards | `updates`, done by the loop |
| 28 | advantages | `updates`, done by the loop |
| 29 | end for | `updates`, done by the loop |
| 30 | GRPO update of the actor, with KL term | `updates`, done by the loop |
| 31 | phase 6 | `pairwise` |
| 32 | Algorithm 2: consistency reward, REINFORCE update of the actor | `evaluator_rewards`, `evaluator_episodes` |
| 33 | phase 7 | `update_stats` |
| 34 | update the scheduler's statistics | `update_stats` |
| 35 | if t mod M = 0 | `due` |
| 36 | collect training statistics | `record` |
| 37 | generate a new harness | `refresh` |
| 38 | else | `next_memory` |
| 39 | keep the harness | `next_memory` |
| 40 | end if | `next_memory` |
| 41 | end for | `next_memory` |

docs/score.md is the user's guide; docs/fidelity.md lists what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play.defaults import finished, iterations, total_steps, waits
from scope_jax.play.system import Memory
from scope_jax.play.tools import BASE, Tools
from scope_jax.systems.score import conversation, harness, instructions, rows
from scope_jax.systems.score.consistency import pairwise
from scope_jax.systems.score.evaluator import Query, assess, sample_rubrics
from scope_jax.systems.score.exams import exam
from scope_jax.systems.score.harness import in_force
from scope_jax.systems.score.instructions import check_prompts
from scope_jax.systems.score.refreshing import MODEL, Refresh, due, load_replay, probe, refresh
from scope_jax.systems.score.rows import evaluator_episodes, evaluator_rewards, solver_episodes
from scope_jax.systems.score.scheduler import get_constraints, initial_state, update_stats
from scope_jax.systems.score.solver import write_reports
from scope_jax.systems.score.statistics import Record, record
from scope_jax.text import templates

__all__ = [
    "check_prompts",
    "exam",
    "finished",
    "iterations",
    "total_steps",
    "waits",
]  # of the game, beside the functions below


def policies(cfg: Config) -> tuple[str, ...]:
    """The shared actor, or one policy for each trained role."""
    return tuple(dict.fromkeys(conversation.policy_of(cfg, role) for role in cfg.score.train))


def uses_base(cfg: Config) -> bool:
    """True if one of two separate policies is not trained: the base plays its role."""
    return BASE in (conversation.policy_of(cfg, "solver"), conversation.policy_of(cfg, "evaluator"))


def searches(cfg: Config) -> bool:
    """True: the solver and the evaluator search."""
    return True


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external model that writes harnesses, if the card's driver is "endpoint"."""
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
    """No statistics, and the card's harness. Raises CardError for an invalid harness, or an invalid file of them."""
    if cfg.score.harness.driver == "replay" and cfg.score.harness.file is not None:
        load_replay(cfg.score.harness.file)
    return {"scheduler": initial_state(), "harness": harness.initial_state(cfg), "statistics": []}


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """The memory of the other run; its harness is replaced by this card's if it is of the other card, or not valid
    here."""
    return {**memory, "harness": harness.adopted(cfg, memory["harness"], memory["scheduler"]["step"])}


def updates(cfg: Config) -> tuple[Update, ...]:
    """l.30, l.32: the solver's update, then the evaluator's on the parameters after it."""
    card = cfg.score
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
    consistency = pairwise(groups, cfg.score.idf)
    # l.32: the evaluator's episodes, for the second of `updates`
    gains = evaluator_rewards(cfg, drafts, consistency)
    episodes += evaluator_episodes(cfg, drafts, gains, step)
    # l.33, l.34: which dimensions were used, and how consistent the reports were
    shared = [consistency] if cfg.score.rubric_scope == "step" else [[value] for value in consistency]
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
    kept = [] if new is not None else list(known)[-cfg.score.harness.every :]
    return {"scheduler": dict(scheduler), "harness": dict(state if new is None else new.state), "statistics": kept}
