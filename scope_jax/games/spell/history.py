"""The history memory of a cluster and task: its latest solvable questions, and the documents for the next question
(section 4.1).

A questioner reads the documents of the remembered questions and m new ones, so its context grows until L questions
are remembered. Plain data, part of the game's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scope_jax.config import Config
from scope_jax.data.keys import drawn, rng
from scope_jax.games.spell.options import options
from scope_jax.games.spell.records import Entry, Order, Question
from scope_jax.games.spell.rules import allowed_tasks

History = dict[str, list[dict[str, Any]]]  # entries by "cluster/task", the latest last


def orders(cfg: Config, history: History, clusters: Sequence[Mapping[str, Any]], first: int) -> list[Order]:
    """An order for each cluster, at positions `first` onwards of the stream, that suits a task of the card."""
    found = (order(cfg, history, cluster, first + place) for place, cluster in enumerate(clusters))
    return [one for one in found if one is not None]


def order(cfg: Config, history: History, cluster: Mapping[str, Any], place: int) -> Order | None:
    """The order for the cluster at position `place` of the stream (Alg. 1 l.7, l.8): a task and new documents.

    Both are drawn with (seed, place). New documents are those from which no remembered question was written. None if
    the cluster suits no task with a share above 0.
    """
    card = options(cfg)
    task = _task(cfg, cluster, place)
    if task is None:
        return None
    key = f"{cluster['id']}/{task}"
    known = tuple(Entry.of(entry) for entry in history.get(key, ()))[-card.history :] if card.history else ()
    ids = [document["id"] for document in cluster["documents"]]
    unseen = _unseen(ids, known)
    restarts = not unseen and card.all_seen == "reset"
    if restarts:
        known, unseen = (), ids
    return Order(place, cluster, task, key, _sample(cfg, unseen, place), known, restarts)


def _task(cfg: Config, cluster: Mapping[str, Any], place: int) -> str | None:
    weights: Mapping[str, float] = {**options(cfg).tasks}
    tasks = allowed_tasks(weights, options(cfg).families, cluster["family"])
    if not tasks:
        return None
    shares = np.array([weights[task] for task in tasks])
    return tasks[int(rng("spell task", cfg.seed, place).choice(len(tasks), p=shares / shares.sum()))]


def _unseen(ids: Sequence[str], known: Sequence[Entry]) -> list[str]:
    seen = {key for entry in known for key in entry.documents}
    return [key for key in ids if key not in seen]


def _sample(cfg: Config, unseen: Sequence[str], place: int) -> tuple[str, ...]:
    """m of the documents, or all if there are fewer, in the cluster's order."""
    indices = drawn(range(len(unseen)), options(cfg).documents, rng("spell documents", cfg.seed, place))
    return tuple(unseen[index] for index in sorted(indices))


def accepts(cfg: Config, success: float) -> bool:
    """True if a question with this success rate is added to the history: r_que > 0 (Alg. 1 l.20), or also at rate 1 if
    `history_accepts` is "solved"."""
    return options(cfg).history > 0 and (
        0.0 < success < 1.0 or (success == 1.0 and options(cfg).history_accepts == "solved")
    )


def push(cfg: Config, history: History, asked: Order, question: Question) -> None:
    """Adds the question to its entry in `history`, which keeps the latest L questions (Alg. 1 l.21)."""
    read = (
        tuple(document["id"] for document in asked.documents) if options(cfg).history_documents == "seen" else asked.new
    )
    before = [] if asked.restarts else history.get(asked.key, [])
    entry = Entry(read, question.whole, question.answer)
    history[asked.key] = [*before, entry.plain()][-options(cfg).history :]
