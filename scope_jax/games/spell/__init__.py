"""SPELL: one model asks questions about long documents, answers them, and verifies its answers.

See docs/spell.md for a description, and for what the paper leaves open or the released code does
differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.games.spell import given, instructions, rules
from scope_jax.games.spell.exams import exam
from scope_jax.games.spell.history import History, accepts, orders, push
from scope_jax.games.spell.instructions import check_prompts
from scope_jax.games.spell.options import SpellSection, check, options
from scope_jax.games.spell.questioner import ask, reward
from scope_jax.games.spell.records import Asked, Group
from scope_jax.games.spell.responder import filter_grounded, respond
from scope_jax.games.spell.rows import episodes, measure
from scope_jax.games.spell.sampling import choose
from scope_jax.games.spell.verifier import verify
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import grading, metric_names
from scope_jax.play.game import ACTOR, GRADIENT, Game, Memory, Panel
from scope_jax.play.tools import Tools
from scope_jax.text import templates


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external judge, if the card uses it in place of the rule."""
    return {"judge": cfg.judge} if cfg.judge is not None and options(cfg).rule == "judge" else {}


def source(cfg: Config) -> Source:
    """Clusters of documents, or given questions in the mode "rlvr"."""
    if options(cfg).mode == "rlvr":
        return Source(cfg.data.questions or "", "readings", cfg.data)
    assert cfg.data.clusters is not None  # Config has checked it
    return Source(cfg.data.clusters, "clusters", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of the roles that have one."""
    return templates.system_files(options(cfg).prompts, instructions.ROLES)


def start(cfg: Config) -> Memory:
    """The start of the stream and an empty history; a cluster's entry is created when its first question is added."""
    return {"position": 0, "history": {}}


def adopt(cfg: Config, memory: Memory, before: Config) -> Memory:
    """The memory, without its history if the card has other clusters, which may have the same ids."""
    return memory if cfg.data.clusters == before.data.clusters else {**memory, "history": {}}


def updates(cfg: Config) -> tuple[Update, ...]:
    """Alg. 1 l.26: one update of the trained roles; advantages over the batch for the questioner, Eq. (9), and within
    groups for the others, Eq. (8)."""
    overrides = {"questioner": options(cfg).questioner_advantage}
    shares = tuple(RoleShare(role, overrides.get(role)) for role in options(cfg).train)
    return (Update(ACTOR, options(cfg).loss, shares),)


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 up to the update: episodes of all roles, the memory after it, metrics.

    Pure: all randomness is derived from the seed and the position in the stream of clusters, or the step, and `memory`
    is not modified. In the mode "rlvr" the step is that of `given`. Raises ValueError if no cluster of the step suits a
    task of the card, or none fits into the responder's prompt.
    """
    if options(cfg).mode == "rlvr":
        return given.play(cfg, tools, memory, step)
    # l.1: the training loop initialised `policies` from the base model, and reads `source`
    # l.2, l.3: the run began with the memory returned by `start`
    # l.4: a step is one call
    # l.5: only the position in the stream and the history are carried over from the previous step
    position, history = memory["position"], memory["history"]
    asked: list[Asked] = []
    groups: list[Group] = []
    grades: list[grading.Grades] = []
    rounds = 0
    # l.6: in rounds, until the step is full or the card's maximum is reached
    while rounds < options(cfg).max_rounds and sum(group.mixed for group in groups) < options(cfg).groups:
        new_questions, new_groups, history, new_grades = draw_round(cfg, tools, position, history)
        asked, groups, grades = asked + new_questions, groups + new_groups, grades + new_grades
        position, rounds = position + options(cfg).clusters_per_round, rounds + 1
    if not asked:
        raise UserError(
            f"none of the {position - memory['position']} clusters drawn in this step is for a task with a share in "
            "spell.tasks; give their tasks a share, or set the tasks of their families in spell.families."
        )
    if all(one.reason == "documents_too_long" for one in asked):
        raise UserError(
            f"the documents of none of the {len(asked)} clusters drawn in this step fit into "
            f"spell.responder.max_prompt_tokens = {options(cfg).responder.max_prompt_tokens}; build clusters with "
            "fewer clusters.max_tokens, or raise it."
        )
    rows, metrics = settle(cfg, asked, groups, grades, step)
    return rows, {"position": position, "history": history}, metrics | {"groups/rounds": float(rounds)}


def draw_round(
    cfg: Config, tools: Tools, position: int, history: History
) -> tuple[list[Asked], list[Group], History, list[grading.Grades]]:
    """Plays one round, each cluster from `position` onwards once: returns the questions, the groups of answers to those
    that reached the responder, the updated history, and the grades by the rule.

    All clusters of a round see the history before it.
    """
    clusters = tools.rows(position, options(cfg).clusters_per_round)
    # l.7, l.8: a cluster, its task and some of its documents
    drawn = orders(cfg, history, clusters, position)
    # l.9, l.10: questions written from these documents and the history
    asked = ask(cfg, tools, drawn)
    # l.11, l.12, l.13: mark those that can be answered without documents
    asked, blind = filter_grounded(cfg, tools, asked)
    # l.14, l.15: G answers to each of the others, from all documents of the cluster
    groups, asked, informed = respond(cfg, tools, asked)
    # l.16, l.17: G judgments of each answer
    groups = verify(cfg, tools, groups)
    # l.18, l.19: the questioner's rewards; those of answers and judgments are already known
    asked = reward(cfg, asked, groups)
    # l.20, l.21: add solvable questions to the history
    after, by_place = dict(history), {order.place: order for order in drawn}
    for group in groups:
        if accepts(cfg, group.mean):
            push(cfg, after, by_place[group.place], group.question)
    # l.22, l.23, l.24: keep everything for the role-specific sampling
    return asked, groups, after, [blind, informed]


def settle(
    cfg: Config, asked: list[Asked], groups: list[Group], grades: list[grading.Grades], step: int
) -> tuple[list[Episode], Metrics]:
    """The step's episodes, with those used by the update marked as trained, and its metrics."""
    # l.25: role-specific dynamic sampling
    chosen = choose(cfg, asked, groups, step)
    rows = episodes(cfg, asked, groups, chosen)
    # l.26: the training loop calls `updates` and trains on these episodes
    # l.27: the training loop calls `finished`
    return rows, measure(cfg, asked, groups, chosen, grades)


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    yield from metric_names.of(
        {
            "questioner": f"reward valid documents remembered {metric_names.LENGTHS}",
            "responder": f"reward rule concluded {metric_names.LENGTHS}",
            "verifier": f"yes disagreement conflicting malformed groups {metric_names.LENGTHS}",
            "difficulty": "qa math choice",
            "solvable": "qa math choice",
            "questions": "asked trained",
            "groups": "mixed kept full rounds",
            "judge": metric_names.JUDGE,
            "rejected": rules.REASONS,
        }
    )


GAME = Game(
    name="spell",
    options=SpellSection,
    source=source,
    play=play,
    updates=updates,
    exam=exam,
    check=check,
    judges=judges,
    system_messages=system_messages,
    check_prompts=check_prompts,
    start=start,
    adopt=adopt,
    data=("clusters", "questions"),
    batch="spell.groups",
    panels=(
        Panel("Held-out accuracy", ("/accuracy", "/numeric"), True, of_exams=True),
        Panel("Mean reward", ("questioner/reward", "responder/reward"), False),
        Panel("Valid questions, answers with a conclusion", ("questioner/valid", "responder/concluded"), True),
        Panel(
            "Difficulty (1 - share of right answers)", ("difficulty/qa", "difficulty/math", "difficulty/choice"), True
        ),
        Panel("Verifier: yes, disagreement with the rule", ("verifier/yes", "verifier/disagreement"), True),
        GRADIENT,
    ),
    metrics=metrics,
)
