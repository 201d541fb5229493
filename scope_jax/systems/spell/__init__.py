"""SPELL: one model asks questions about long documents, answers them, and verifies its answers.

Algorithm 1 of the paper (App. B, with its line numbers) and where each of its lines happens. A step draws clusters of
documents in rounds, until it has N questions of which some answers are right and some wrong.

| line | in our words | where |
|---|---|---|
| 1 | given: the model, clusters with tasks, m, L, N, G | `policies`, `source`; all else is the card's |
| 2 | for each cluster and task | `start` |
| 3 | a history memory of L questions, empty at first | `start` |
| 4 | for each step | one call of `play` by the loop |
| 5 | no samples of any role yet | `play` |
| 6 | while there are fewer than N groups for the responder | `play` |
| 7 | a cluster and a task | `orders` |
| 8 | m of its documents | `orders` |
| 9 | with the documents and questions of its history: what the questioner reads | `ask` |
| 10 | the questioner writes a question and its answer | `ask` |
| 11 | the responder answers it without any document | `filter_grounded` |
| 12 | if the rule finds that answer right | `filter_grounded` |
| 13 | the question is kept for its penalty | `filter_grounded` |
| 14 | and goes no further | `respond` |
| 15 | the responder answers from the whole cluster, G times | `respond` |
| 16 | for each answer | `verify` |
| 17 | the verifier compares it with the reference, G times | `verify` |
| 18 | rewards of all three roles | `reward` |
| 19 | by Eq. (4) to Eq. (7) | `reward` |
| 20 | if the question is solvable | `accepts` |
| 21 | the history memory takes it in | `push` |
| 22 | keep the question | `draw_round` |
| 23 | keep the answers | `draw_round` |
| 24 | keep the judgments | `draw_round` |
| 25 | choose what each role learns from | `choose` |
| 26 | one update of all roles | `updates`, done by the loop |
| 27 | the policy as it is then | `finished` |

docs/spell.md tells the game to its users, docs/fidelity.md lists what the paper leaves open or its code does otherwise.
"""

from __future__ import annotations

from pathlib import Path

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play.defaults import ACTOR, adopt, finished, iterations, policies, searches, total_steps, uses_base
from scope_jax.play.system import Memory
from scope_jax.play.tools import Tools
from scope_jax.systems.spell import instructions
from scope_jax.systems.spell.exams import exam
from scope_jax.systems.spell.history import History, accepts, orders, push
from scope_jax.systems.spell.questioner import ask, reward
from scope_jax.systems.spell.records import Asked, Group
from scope_jax.systems.spell.responder import filter_grounded, respond
from scope_jax.systems.spell.rows import episodes, measure
from scope_jax.systems.spell.sampling import choose
from scope_jax.systems.spell.verifier import verify
from scope_jax.text import templates

__all__ = [
    "adopt",
    "exam",
    "finished",
    "iterations",
    "policies",
    "searches",
    "total_steps",
    "uses_base",
]  # of the game, beside the functions below; the history is good under any card, as its latest questions count


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The outside model in place of the rule, if the card has it so."""
    return {"judge": cfg.judge} if cfg.judge is not None and cfg.spell.rule == "judge" else {}


def source(cfg: Config) -> Source:
    """Clusters of documents."""
    assert cfg.data.clusters is not None  # Config sees to it
    return Source(cfg.data.clusters, "clusters", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """Of those roles that have one."""
    return templates.system_files(cfg.spell.prompts, instructions.ROLES)


def start(cfg: Config) -> Memory:
    """The beginning of the stream, and no history: a cluster's memory is there as soon as a question enters it."""
    return {"position": 0, "history": {}}


def updates(cfg: Config) -> tuple[Update, ...]:
    """Alg. 1 l.26: one update of the roles that learn; the questioner's rewards are compared over the batch, Eq. (9),
    those of the others in their groups, Eq. (8)."""
    own = {"questioner": cfg.spell.questioner_advantage}
    shares = tuple(RoleShare(role, own.get(role)) for role in cfg.spell.train)
    return (Update(ACTOR, cfg.spell.loss, shares),)


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 up to the update: episodes of all roles, the memory after it, metrics.

    Pure: every choice is drawn from the seed and the place in the stream of clusters, or the step, and `memory` is not
    changed.
    """
    # l.1: the loop made `policies` from the base, and reads `source`
    # l.2, l.3: the run began with the memory that `start` gives
    # l.4: a step is one call
    # l.5: nothing is kept from the step before but the place in the stream and the history
    position, history = memory["position"], memory["history"]
    asked: list[Asked] = []
    groups: list[Group] = []
    rounds = 0
    # l.6: in rounds, until the step is full or the card says that it is enough
    while rounds < cfg.spell.max_rounds and sum(group.mixed for group in groups) < cfg.spell.groups:
        fresh, answered, history = draw_round(cfg, tools, position, history)
        asked, groups = asked + fresh, groups + answered
        position, rounds = position + cfg.spell.clusters_per_round, rounds + 1
    rows, metrics = settle(cfg, asked, groups, step)
    return rows, {"position": position, "history": history}, metrics | {"groups/rounds": float(rounds)}


def draw_round(cfg: Config, tools: Tools, position: int, history: History) -> tuple[list[Asked], list[Group], History]:
    """The clusters from `position` on, each played once: questions, the groups of answers to those that were put to the
    responder, and the history after them. Clusters of a round see the history before it."""
    clusters = tools.rows(position, cfg.spell.clusters_per_round)
    # l.7, l.8: a cluster, its task, some of its documents
    drawn = orders(cfg, history, clusters, position)
    # l.9, l.10: questions from these and what is remembered
    asked = ask(cfg, tools, drawn)
    # l.11, l.12, l.13: those that need no document
    asked = filter_grounded(cfg, tools, asked)
    # l.14, l.15: G answers to each of the others, from all documents
    groups, asked = respond(cfg, tools, asked)
    # l.16, l.17: G judgments of each answer
    groups = verify(cfg, tools, groups)
    # l.18, l.19: answers and judgments know theirs
    asked = reward(cfg, asked, groups)
    # l.20, l.21: what is solvable is remembered
    after = dict(history)
    for group in groups:
        if accepts(cfg, group.mean):
            push(cfg, after, group.asked.order, group.question)
    # l.22, l.23, l.24: all of it, for the sampling of the roles
    return asked, groups, after


def settle(cfg: Config, asked: list[Asked], groups: list[Group], step: int) -> tuple[list[Episode], Metrics]:
    """The step's episodes, those that the update learns from marked as trained, and its metrics."""
    # l.25: role-specific dynamic sampling
    chosen = choose(cfg, asked, groups, step)
    rows = episodes(cfg, asked, groups, chosen)
    # l.26: the loop asks `updates` and does it with these rows
    # l.27: `finished` tells the loop
    return rows, measure(cfg, asked, groups, chosen)
