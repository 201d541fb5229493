"""Search Self-play (SSP): one policy proposes search questions for known answers and solves them.

Algorithm 1 of the paper and where each of its lines happens:

| line | in our words | where |
|---|---|---|
| 1 | for each step that changes the parameters | one call of `play` by the loop |
| 2 | a batch of known answers | `open_slots` |
| 3 | the proposer searches, then writes one question for each answer | `propose` |
| 4 | keep what passes the rules and can be answered from the proposer's own material | `verify` |
| 5 | for each question kept | `fill_slots` |
| 6 | the solver searches for the answer, n times | `solve` |
| 7 | solver's reward: 1 if the answer is right | `grade_solver` |
| 8 | proposer's reward: 1 minus the solver's mean | `reward_proposer` |
| 9 | end for | `episodes` |
| 10 | update with the solver's episodes, by GRPO | `updates`, done by the loop |
| 11 | update with the proposer's episodes, by REINFORCE | `updates`, done by the loop |
| 12 | end for | `next_memory` |

See docs/ssp.md for a description, and docs/fidelity.md for what the paper leaves open or its code does differently.
"""

from __future__ import annotations

from pathlib import Path

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import grading
from scope_jax.play.defaults import ACTOR, adopt, finished, iterations, policies, total_steps, uses_base
from scope_jax.play.system import Memory
from scope_jax.play.tools import Tools
from scope_jax.systems.ssp import instructions
from scope_jax.systems.ssp.exams import exam
from scope_jax.systems.ssp.pool import next_memory
from scope_jax.systems.ssp.proposer import attempts, open_slots, propose, reward_proposer
from scope_jax.systems.ssp.records import Proposal
from scope_jax.systems.ssp.rows import episodes, measure
from scope_jax.systems.ssp.solver import fill_slots, grade_solver, solve
from scope_jax.systems.ssp.verification import verify
from scope_jax.text import templates

__all__ = [
    "adopt",
    "exam",
    "finished",
    "iterations",
    "policies",
    "total_steps",
    "uses_base",
]  # what the loop asks of the game beside the functions below


def searches(cfg: Config) -> bool:
    """Proposer and solver do."""
    return True


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The outside grader and verifier, if the card has one."""
    return {} if cfg.judge is None else {"judge": cfg.judge}


def source(cfg: Config) -> Source:
    """Ground-truth answers."""
    assert cfg.data.answers is not None  # Config sees to it
    return Source(cfg.data.answers, "answers", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """Of the roles that search."""
    return templates.system_files(cfg.ssp.prompts, instructions.SEARCHING)


def start(cfg: Config) -> Memory:
    """An empty pool of questions."""
    return {"pool": []}


def updates(cfg: Config) -> tuple[Update, ...]:
    """Algorithm 1 l.10 and l.11 in the card's order; a role that does not learn has no update."""
    cards = {"solver": cfg.ssp.solver, "proposer": cfg.ssp.proposer}
    return tuple(
        Update(ACTOR, cards[role].loss, (RoleShare(role),))
        for role in cfg.ssp.update_order
        if cfg.ssp.train in ("both", role)
    )


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 up to the updates: episodes of both roles, the memory after it, metrics.

    Pure: every choice is drawn from (seed, step, place in the batch), and `memory` is not changed.
    """
    tallies: list[grading.Grades] = []
    # l.1: a step is one call
    # l.2: the batch of answers, one slot for each question to be written
    rows = tools.rows(step * cfg.train.batch_size, cfg.train.batch_size)
    slots = open_slots(cfg, rows, step)
    proposals: list[Proposal] = []
    failed = slots
    for attempt in range(attempts(cfg)):
        # l.3: a question for each answer (for those that failed so far, when resampling)
        fresh = propose(cfg, tools, failed, step, attempt)
        # l.4: the rules were applied as it was read; now verify it
        fresh, grades = verify(cfg, tools, fresh, proposals, step)
        tallies.append(grades)
        proposals += fresh
        failed = [proposal.slot for proposal in fresh if proposal.reason]
        if not failed:
            break
    # l.5: the questions kept; slots without one are filled
    problems = fill_slots(cfg, proposals, memory["pool"], step)
    # l.6: n attempts at each
    solved = solve(cfg, tools, problems)
    # l.7: right or wrong
    solved, grades = grade_solver(cfg, tools, solved)
    tallies.append(grades)
    # l.8: the proposer gains what the solver lost
    gains = reward_proposer(cfg, slots, proposals, solved)
    # l.9: rows of both roles
    trained = episodes(cfg, step, solved, proposals, gains)
    # l.10, l.11: the loop asks `updates` and does them with these rows
    # l.12: what the next step needs to know
    after = next_memory(cfg, memory, solved, step)
    metrics = measure(cfg, len(slots), solved, proposals, gains, len(after["pool"]))
    asked = {
        "judge/requests": sum(g.judged for g in tallies),
        "judge/unparsed": sum(g.unparsed for g in tallies),
        "judge/refused": sum(g.refused for g in tallies),
    }
    return trained, after, metrics | {name: float(count) for name, count in asked.items()}
