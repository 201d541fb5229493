"""SPICE: one policy writes tasks from documents and, without the documents, solves them.

Algorithm 1 of the paper and where each line is implemented. One call of `play` is one of its iterations.

| line | in our words | where |
|---|---|---|
| 1 | inputs: the model, documents, B, G, T, the penalty | `source`; the rest is in the card |
| 2 | for each iteration | one call of `play` by the loop |
| 3 | challenger phase | `play` |
| 4 | for each document of a batch | `documents` |
| 5 | draw a document | `documents` |
| 6 | the challenger attempts to write tasks from it | `attempt` |
| 7 | keep G attempts, in their ratio of valid to invalid | `keep` |
| 8 | if an attempt is valid | `tasks_to_try` |
| 9 | the reasoner answers G times, without the document | `solve`, `grade` |
| 10 | the challenger's reward by the variance, Eq. (1) | `of_challenger` |
| 11 | otherwise | `of_challenger` |
| 12 | the penalty | `of_challenger` |
| 13 | end if | `of_challenger` |
| 14 | end for | `of_challenger` |
| 15 | reasoner phase | `play` |
| 16 | one valid task of each document, at random | `select` |
| 17 | G answers to it | `tasks_to_learn` |
| 18 | for each answer | `of_reasoner` |
| 19 | reward 1 if it is correct | `of_reasoner` |
| 20 | end for | `of_reasoner` |
| 21 | one update | `updates`, done by the loop |
| 22 | for each attempt kept | `updates`, done by the loop |
| 23 | reward minus its document's mean | `updates`, done by the loop |
| 24 | end for | `updates`, done by the loop |
| 25 | for each answer | `updates`, done by the loop |
| 26 | reward minus its task's mean | `updates`, done by the loop |
| 27 | end for | `updates`, done by the loop |
| 28 | update the shared policy with both roles | `updates`, done by the loop |
| 29 | end for | `next_memory` |
| 30 | return the trained model | `finished` |

See docs/spice.md for a description, and docs/fidelity.md for what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play.defaults import ACTOR, adopt, finished, iterations, policies, searches, total_steps, waits
from scope_jax.play.exams import Exam
from scope_jax.play.system import Memory
from scope_jax.play.tools import Tools
from scope_jax.systems.spice import challenger, instructions
from scope_jax.systems.spice.challenger import OUTSIDE, attempt, keep, learns, select
from scope_jax.systems.spice.instructions import check_prompts
from scope_jax.systems.spice.reasoner import grade, prediction_of, solve
from scope_jax.systems.spice.records import Attempt, Document, Tried
from scope_jax.systems.spice.rows import key_of, measure, of_challenger, of_reasoner
from scope_jax.text import templates

__all__ = [
    "adopt",
    "check_prompts",
    "finished",
    "iterations",
    "policies",
    "searches",
    "total_steps",
    "waits",
]  # part of the game's interface, with the functions below


def uses_base(cfg: Config) -> bool:
    """True if the base model is the challenger."""
    return cfg.spice.challenger.model == "base" and cfg.spice.challenger.endpoint is None


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external model used as the challenger, if the card has one."""
    card = cfg.spice.challenger
    if card.endpoint is None:
        return {}
    sampling = {"temperature": card.sampling.temperature, "max_tokens": card.sampling.max_tokens}
    return {OUTSIDE: JudgeSection(**card.endpoint.model_dump(), **sampling)}


def source(cfg: Config) -> Source | None:
    """Documents; None if tasks are written without a corpus."""
    if not cfg.spice.corpus:
        return None
    assert cfg.data.documents is not None  # Config has checked it
    return Source(cfg.data.documents, "documents", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of both roles."""
    return templates.system_files(cfg.spice.prompts, instructions.ROLES)


def start(cfg: Config) -> Memory:
    """No documents drawn yet."""
    return {"drawn": 0}


def updates(cfg: Config) -> tuple[Update, ...]:
    """Algorithm 1 l.21 to l.28: one update of the actor by the trained roles; advantages are within groups."""
    weights = {"challenger": cfg.spice.challenger_weight, "reasoner": 1.0}
    roles = weights if cfg.spice.train == "both" else (cfg.spice.train,)
    return (Update(ACTOR, cfg.spice.loss, tuple(RoleShare(role, weight=weights[role]) for role in roles)),)


def exam(cfg: Config) -> Exam:
    """Questions answered as by the reasoner; correct if the text matches or the answer is mathematically equal."""
    return Exam(
        policy=ACTOR,
        prompt=lambda row, tokens: instructions.for_reasoner(cfg, row["question"]),
        read=prediction_of,
        measures=("accuracy",),
        accuracy=("same-text", "math"),
    )


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One iteration of Algorithm 1 up to the update: episodes of both roles, the memory after it, metrics.

    Pure: all randomness is derived from (seed, step, position in the batch), and `memory` is not modified.
    """
    # l.1: the training loop has read the data named by `source`
    # l.2: an iteration is one call
    # l.3: the challenger phase begins
    # l.4, l.5: the next documents of the stream, one segment of each
    batch = documents(cfg, tools, memory)
    # l.6: until a document has enough valid tasks, or N attempts
    made = attempt(cfg, tools, batch)
    # l.7: G attempts per document
    kept = keep(cfg, made, step)
    # l.8: the valid ones; only those for the reasoner's update if the challenger is not trained
    to_try = tasks_to_try(cfg, kept, step)
    # l.9: K answers to each, graded
    tried, unread = grade(cfg, tools, solve(cfg, tools, to_try))
    # l.10, l.11, l.12, l.13, l.14: Eq. (1)
    posed = of_challenger(cfg, kept, {key_of(one.attempt): one.pass_rate for one in tried})
    # l.15, l.16: reasoner phase: one valid task per document
    chosen = select(cfg, kept, step)
    # l.17: the answers of l.9, or new ones
    learned, late = tasks_to_learn(cfg, tools, chosen, tried)
    # l.18, l.19, l.20: correct or wrong
    answered = of_reasoner(cfg, learned, trained=cfg.spice.train != "challenger")
    names = {one.name for one in learned}
    others = of_reasoner(cfg, [one for one in tried if one.name not in names], trained=False)
    # l.21, l.22, l.23, l.24, l.25, l.26, l.27, l.28: the training loop calls `updates` and trains on these episodes
    # l.29: the position in the stream of documents
    after = next_memory(cfg, memory)
    # l.30: the training loop calls `finished`
    metrics = measure(cfg, made, posed, tried, learned)
    return posed + answered + others, after, metrics | {name: count + late[name] for name, count in unread.items()}


def documents(cfg: Config, tools: Tools, memory: Memory) -> list[Document]:
    """The batch of documents; without a corpus, the same number of empty ones."""
    first, count = memory["drawn"], cfg.train.batch_size
    if not cfg.spice.corpus:
        return [Document(place, "", "") for place in range(count)]
    return challenger.documents(cfg, tools, tools.rows(first, count), first)


def tasks_to_try(cfg: Config, kept: Sequence[Sequence[Attempt]], step: int) -> list[Attempt]:
    """The valid attempts of T_C, whose pass rates determine the challenger's rewards."""
    if not learns(cfg):
        return select(cfg, kept, step)
    return [one for own in kept for one in own if one.valid]


def tasks_to_learn(
    cfg: Config, tools: Tools, chosen: Sequence[Attempt], tried: Sequence[Tried]
) -> tuple[list[Tried], Metrics]:
    """(T_R of each document, counts of comparisons without a verdict): the earlier answers, or new ones (l.17).

    Only if both are trained can the new ones be used: an untrained challenger's tasks were answered for the reasoner
    alone, and an untrained reasoner learns from none.
    """
    if cfg.spice.reasoner_rollouts == "fresh" and cfg.spice.train == "both":
        return grade(cfg, tools, solve(cfg, tools, chosen, again=True))
    keys = {key_of(one) for one in chosen}
    return [one for one in tried if key_of(one.attempt) in keys], grade(cfg, tools, [])[1]


def next_memory(cfg: Config, memory: Memory) -> Memory:
    """The position in the stream of documents after a batch."""
    return {"drawn": memory["drawn"] + cfg.train.batch_size}
