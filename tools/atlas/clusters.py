"""Clusters of related documents for SPELL, and its questions about held-out entities.

A document is about one name: the facts about it, numbers included, some facts whose value it is, and some numbers of
its neighbours. A cluster is documents about names that lie next to each other, so that chains of facts lead from one
document to another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tools.atlas.corpus import document_id, title_of
from tools.atlas.facts import Fact, World, grouped, load_numbers
from tools.atlas.questions import Chain, chain_question, walks
from tools.atlas.rows import Split, pick, some

Task = Literal["qa", "math"]
TASKS: tuple[Task, ...] = ("qa", "math")
DOCUMENTS = 4  # of a cluster
MENTIONS = 2  # most facts of a document whose value is its name
NUMBERS = 2  # most numbers of neighbours
HOPS = (1, 2, 3)
CLUSTERS = 40  # of each family
QUESTIONS = 150  # held out, of each task and number of hops, where there are as many
REPEATS = 4  # most often that one question is asked
DRAWS = 1000  # clusters that these are drawn from
SEED = 29


@dataclass(frozen=True)
class Document:
    """One document of a cluster."""

    id: str
    name: str
    title: str
    facts: tuple[Fact, ...]

    @property
    def row(self) -> dict[str, str]:
        return {"id": self.id, "title": self.title, "text": " ".join(fact.sentence for fact in self.facts)}


@dataclass(frozen=True)
class Cluster:
    """Related documents, in random order."""

    documents: tuple[Document, ...]

    @property
    def rows(self) -> list[dict[str, str]]:
        return [document.row for document in self.documents]


def facts_of(documents: Sequence[Document]) -> list[Fact]:
    """Each fact once."""
    return list(dict.fromkeys(fact for document in documents for fact in document.facts))


def chains_in(facts: Sequence[Fact], hops: int, task: Task) -> list[Chain]:
    """Chains of so many of the facts that end in a number (math) or in a name (qa), and never return to a name."""
    return [chain for chain in walks(facts, hops)[hops] if chain[-1].is_number == (task == "math")]


class ClusterSampler:
    """Draws clusters from the part of the world that a split shows.

    "train" shows nothing that is held out; in "held_out" every document is about a held-out name.
    """

    def __init__(self, world: World, split: Split, rng: np.random.Generator) -> None:
        self.world, self.rng = world, rng
        every = (*world.facts, *load_numbers(world))
        shown = [fact for fact in every if split != "train" or world.trains(fact)]
        self._own = grouped(shown, "entity")
        self._mentions = grouped([fact for fact in shown if not fact.is_number], "value")
        self._ids = {name: document_id(number) for number, name in enumerate(world.names)}
        self.names = [name for name in self._own if split != "held_out" or name in world.held_out]
        self._known = set(self.names)
        self._neighbours = {name: self._near(name) for name in self.names}

    def _near(self, name: str) -> list[str]:
        values = [fact.value for fact in self._own[name]]
        entities = [fact.entity for fact in self._mentions.get(name, ())]
        return [other for other in dict.fromkeys([*values, *entities]) if other in self._known]

    def document(self, name: str) -> Document:
        """A document about a name, its facts in random order."""
        own = list(self._own[name])
        mentions = some(self._mentions.get(name, ()), MENTIONS, self.rng)
        near = [*(fact.value for fact in own), *(fact.entity for fact in mentions)]
        numbers = [fact for other in near for fact in self._own.get(other, ()) if fact.is_number]
        facts = list(dict.fromkeys([*own, *mentions, *some(numbers, NUMBERS, self.rng)]))
        return Document(self._ids[name], name, title_of(self.world, name), tuple(some(facts, len(facts), self.rng)))

    def cluster(self, family: Task) -> Cluster:
        """Documents about names that are linked by facts; in the family math, every one of them has a number."""
        while True:
            documents = {name: self.document(name) for name in self._linked_names()}
            numbers = [any(fact.is_number for fact in document.facts) for document in documents.values()]
            if len(documents) == DOCUMENTS and (family == "qa" or all(numbers)):
                ordered = list(documents.values())
                return Cluster(tuple(ordered[int(place)] for place in self.rng.permutation(DOCUMENTS)))

    def _linked_names(self) -> list[str]:
        """DOCUMENTS names, each linked to an earlier one by a fact; fewer if there are no more links."""
        names = [pick(self.names, self.rng)]
        while len(names) < DOCUMENTS:
            places = [names[-1]] if self.rng.random() < 0.5 else names
            near = [other for name in places for other in self._neighbours[name] if other not in names]
            near = near or [other for name in names for other in self._neighbours[name] if other not in names]
            if not near:
                break
            names.append(pick(near, self.rng))
        return names


# ---------------------------------------------------------------------------------------------------------------- files
def train_clusters(world: World) -> list[dict[str, Any]]:
    """Clusters of self-play (id, family, documents); a family is called like its task."""
    sampler = ClusterSampler(world, "train", np.random.default_rng(SEED))
    return [
        {"id": f"{family}-{place:03d}", "family": family, "documents": sampler.cluster(family).rows}
        for place in range(CLUSTERS)
        for family in TASKS
    ]


def questions(world: World, task: Task) -> list[dict[str, Any]]:
    """Held-out questions of a task (id, question, answers, task, hops, context), each about a cluster of its own.

    They begin at a held-out entity. A question is asked at most REPEATS times, each time of another cluster.
    """
    sampler = ClusterSampler(world, "held_out", np.random.default_rng(SEED + 1 + TASKS.index(task)))
    asked: dict[int, list[dict[str, Any]]] = {hops: [] for hops in HOPS}
    for _ in range(DRAWS):
        cluster = sampler.cluster(task)
        for hops, rows in asked.items():
            if len(rows) == QUESTIONS:
                continue
            chains = chains_in(facts_of(cluster.documents), hops, task)
            if fit := [chain for chain in chains if chain[0].entity in world.held_out]:
                row = _row(task, hops, pick(fit, sampler.rng), cluster)
                if sum(row["question"] == other["question"] for other in rows) < REPEATS:
                    rows.append(row)
    made = [row for rows in asked.values() for row in rows]
    return [{"id": f"{task}-{place:04d}", **row} for place, row in enumerate(made)]


def _row(task: Task, hops: int, chain: Chain, cluster: Cluster) -> dict[str, Any]:
    return {
        "question": chain_question(chain),
        "answers": [chain[-1].value],
        "task": task,
        "hops": hops,
        "context": cluster.rows,
    }


def files(world: World) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The rows of SPELL's files by their paths."""
    held_out = {f"spell/questions_held_out_{task}.jsonl": questions(world, task) for task in TASKS}
    return {"spell/clusters.jsonl": train_clusters(world), **held_out}
