"""Search Self-play (SSP): one policy proposes search questions for known answers and solves them.

See docs/ssp.md for a description, and for what the paper leaves open or the released code does
differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.games.ssp import instructions, rules
from scope_jax.games.ssp.exams import exam
from scope_jax.games.ssp.instructions import check_prompts
from scope_jax.games.ssp.options import SSPSection, check, options
from scope_jax.games.ssp.pool import next_memory
from scope_jax.games.ssp.proposer import attempts, open_slots, propose, reward_proposer
from scope_jax.games.ssp.records import Proposal
from scope_jax.games.ssp.rows import episodes, measure
from scope_jax.games.ssp.solver import fill_slots, grade_solver, solve
from scope_jax.games.ssp.verification import verify
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import grading, metric_names
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, REWARD, Game, Memory, Panel, Starter
from scope_jax.play.tools import Tools
from scope_jax.text import templates


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external model, if the card uses it as grader or verifier."""
    used = options(cfg).grader != "exact-match" or options(cfg).verify == "judge"
    return {"judge": cfg.judge} if cfg.judge is not None and used else {}


def source(cfg: Config) -> Source:
    """Ground-truth answers."""
    assert cfg.data.answers is not None  # Config has checked it
    return Source(cfg.data.answers, "answers", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of the roles that search."""
    return templates.system_files(options(cfg).prompts, instructions.SEARCHING)


def start(cfg: Config) -> Memory:
    """An empty pool of questions."""
    return {"pool": []}


def updates(cfg: Config) -> tuple[Update, ...]:
    """Algorithm 1 l.10 and l.11 in the card's order; a role that is not trained has no update."""
    cards = {"solver": options(cfg).solver, "proposer": options(cfg).proposer}
    return tuple(
        Update(ACTOR, cards[role].loss, (RoleShare(role),))
        for role in options(cfg).update_order
        if options(cfg).train in ("both", role)
    )


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 up to the updates: episodes of both roles, the memory after it, metrics.

    Pure: all randomness is derived from (seed, step, position in the batch), and `memory` is not modified.
    """
    tallies: list[grading.Grades] = []
    # l.1: a step is one call
    # l.2: the batch of answers, with one slot per question to be written
    rows = tools.rows(step * cfg.train.batch_size, cfg.train.batch_size)
    slots = open_slots(cfg, rows, step)
    proposals: list[Proposal] = []
    failed = slots
    for attempt in range(attempts(cfg)):
        # l.3: a question for each answer (when resampling, for each slot that has failed so far)
        fresh = propose(cfg, tools, failed, step, attempt)
        # l.4: `propose` has applied the rules; now verify the questions
        fresh, grades = verify(cfg, tools, fresh, proposals, step)
        tallies.append(grades)
        proposals += fresh
        failed = [proposal.slot for proposal in fresh if proposal.reason]
        if not failed:
            break
    # l.5: the valid questions; slots without one are filled from the pool or with dummies
    problems = fill_slots(cfg, proposals, memory["pool"], step)
    # l.6: n attempts at each
    solved = solve(cfg, tools, problems)
    # l.7: correct or wrong
    solved, grades = grade_solver(cfg, tools, solved)
    tallies.append(grades)
    # l.8: the proposer's rewards
    rewards = reward_proposer(cfg, slots, proposals, solved)
    # l.9: episodes of both roles
    played = episodes(cfg, step, solved, proposals, rewards)
    # l.10, l.11: the training loop calls `updates` and trains on these episodes
    # l.12: the memory for the next step
    after = next_memory(cfg, memory, solved, step)
    metrics = measure(cfg, len(slots), solved, proposals, rewards, len(after["pool"]))
    return played, after, metrics | grading.counts(tallies)


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    yield from metric_names.of(
        {
            "solver": f"reward format searches {metric_names.LENGTHS}",
            "proposer": f"reward valid episodes searches {metric_names.LENGTHS}",
            "slots": "fresh replay dummy",
            "pool": "size",
            "verify": "passed",
            "judge": metric_names.JUDGE,
            "rejected": rules.REASONS,
        }
    )


GAME = Game(
    name="ssp",
    options=SSPSection,
    source=source,
    play=play,
    updates=updates,
    exam=exam,
    check=check,
    searches=True,
    judges=judges,
    system_messages=system_messages,
    check_prompts=check_prompts,
    start=start,
    data=("answers", "min_searches", "max_searches"),
    starter=Starter(options={"grader": "exact-match", "verify": "policy"}),  # no external judge
    panels=(
        ACCURACY,
        REWARD,
        Panel("Valid questions", ("/valid",), True),
        Panel("Searches per episode", ("/searches",), False),
        GRADIENT,
    ),
    metrics=metrics,
)
