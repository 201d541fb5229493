"""SPICE: one policy writes tasks from documents and, without the documents, solves them.

See docs/spice.md for a description, and for what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scope_jax.config import Config, JudgeSection
from scope_jax.data.sources import Source
from scope_jax.games.spice import challenger, instructions, records
from scope_jax.games.spice.challenger import OUTSIDE, attempt, keep, learns, select
from scope_jax.games.spice.instructions import check_prompts
from scope_jax.games.spice.options import SpiceSection, check, options
from scope_jax.games.spice.reasoner import grade, prediction_of, solve
from scope_jax.games.spice.records import Attempt, Document, Tried
from scope_jax.games.spice.rows import key_of, measure, of_challenger, of_reasoner
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import metric_names
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, Game, Memory, Panel
from scope_jax.play.tools import Tools
from scope_jax.text import templates


def uses_base(cfg: Config) -> bool:
    """True if the base model is the challenger."""
    return options(cfg).challenger.model == "base" and options(cfg).challenger.endpoint is None


def judges(cfg: Config) -> dict[str, JudgeSection]:
    """The external model used as the challenger, if the card has one."""
    card = options(cfg).challenger
    if card.endpoint is None:
        return {}
    sampling = {"temperature": card.sampling.temperature, "max_tokens": card.sampling.max_tokens}
    return {OUTSIDE: JudgeSection(**card.endpoint.model_dump(), **sampling)}


def source(cfg: Config) -> Source | None:
    """Documents; None if tasks are written without a corpus."""
    if not options(cfg).corpus:
        return None
    assert cfg.data.documents is not None  # Config has checked it
    return Source(cfg.data.documents, "documents", cfg.data)


def system_messages(cfg: Config) -> tuple[Path, ...]:
    """System message files of both roles."""
    return templates.system_files(options(cfg).prompts, instructions.ROLES)


def start(cfg: Config) -> Memory:
    """No documents drawn yet."""
    return {"drawn": 0}


def updates(cfg: Config) -> tuple[Update, ...]:
    """Algorithm 1 l.21 to l.28: one update of the actor by the trained roles; advantages are within groups."""
    weights = {"challenger": options(cfg).challenger_weight, "reasoner": 1.0}
    roles = weights if options(cfg).train == "both" else (options(cfg).train,)
    return (Update(ACTOR, options(cfg).loss, tuple(RoleShare(role, weight=weights[role]) for role in roles)),)


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
    answered = of_reasoner(cfg, learned, trained=options(cfg).train != "challenger")
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
    if not options(cfg).corpus:
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
    if options(cfg).reasoner_rollouts == "fresh" and options(cfg).train == "both":
        return grade(cfg, tools, solve(cfg, tools, chosen, again=True))
    keys = {key_of(one) for one in chosen}
    return [one for one in tried if key_of(one.attempt) in keys], grade(cfg, tools, [])[1]


def next_memory(cfg: Config, memory: Memory) -> Memory:
    """The position in the stream of documents after a batch."""
    return {"drawn": memory["drawn"] + cfg.train.batch_size}


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    yield from metric_names.of(
        {
            "challenger": f"reward valid attempts documents pass_rate {metric_names.LENGTHS}",
            "reasoner": f"reward answered no_spread {metric_names.LENGTHS}",
            "kinds": ["multiple_choice", *options(cfg).answer_types],
            "math": "given_up unreadable",
            "rejected": records.REASONS,
        }
    )


GAME = Game(
    name="spice",
    options=SpiceSection,
    source=source,
    play=play,
    updates=updates,
    exam=exam,
    check=check,
    uses_base=uses_base,
    judges=judges,
    system_messages=system_messages,
    check_prompts=check_prompts,
    start=start,
    data=("documents",),
    panels=(
        ACCURACY,
        Panel("Pass rate of tasks", ("challenger/pass_rate", "reasoner/reward"), True),
        Panel("Challenger's reward", ("challenger/reward",), False),
        Panel("Valid attempts, documents with a task", ("challenger/valid", "challenger/documents"), True),
        Panel("Attempts at a document", ("challenger/attempts",), False),
        GRADIENT,
    ),
    metrics=metrics,
)
