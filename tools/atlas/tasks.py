"""Open-ended tasks about named subjects ("entities"), their rubrics, and the training and held-out sets.

An entity is a name whose document has at least TOLD facts. A task names one to three entities ("Explain Seine and
France"); a complete report gives, for each entity, its name and the first TOLD sentences of its document, and a rubric
asks for some of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scope_jax.text import templates
from tools.atlas.corpus import documents
from tools.atlas.facts import ASSETS, World

PROMPTS = ASSETS / "prompts" / "scope"
KINDS = ("long_form_qa", "summarization", "planning", "writing")
SENTENCE = re.compile(r"The (\w+) of (\w+) is (\w+)\.")
CRITERION = re.compile(r"The (\w+) of (\w+): (\w+)")  # the same fact as a rubric asks for it
TOLD = 3  # sentences per entity in a complete report
MOST_ENTITIES = 3
PRIORITIES = ("critical", "important", "bonus")  # of the first, second and third sentence about an entity
ASKED = {1: (3,), 2: (2, 2), 3: (2, 2, 1)}  # sentences of each entity that a rubric asks for: 3 to 5 criteria
TASK_SEED = 17
SET_SIZES = {"train": 16, "held_out": 40}  # tasks of each kind and number of entities


@dataclass(frozen=True)
class Entity:
    """A name, its row in the corpus, and the fact sentences of its document in order."""

    name: str
    row: Mapping[str, str]
    sentences: tuple[str, ...]

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The other names in its document, without repetition."""
        words = [name for sentence in self.sentences for name in SENTENCE.findall(sentence)[0][1:]]
        return tuple(name for name in dict.fromkeys(words) if name != self.name)

    @property
    def names(self) -> set[str]:
        """All names in its document, its own included."""
        return {self.name, *self.neighbours}


def entities(world: World) -> dict[str, Entity]:
    """Every entity by name, in alphabetical order."""
    made = {}
    for name, row in zip(world.names, documents(world), strict=True):
        sentences = tuple(match.group() for match in SENTENCE.finditer(row["text"]))
        if len(sentences) >= TOLD and row["text"].startswith(sentences[0]):
            made[name] = Entity(name, row, sentences)
    return made


def trains(world: World, entity: Entity) -> bool:
    """True if neither the entity nor any name in its document is held out."""
    return not world.held_out & entity.names


def listed(names: Sequence[str]) -> str:
    """ "Seine and France"."""
    return " and ".join(names)


def task(kind: str, names: Sequence[str]) -> str:
    """The task of a kind about these entities; it begins with the words that the game's prompt gives for the kind.

    It has no full stop: the token after a name then tells a document (a full stop or "is" follows) from a task.
    """
    return f"{templates.load(PROMPTS, f'type_{kind}', known=(), required=())} {listed(names)}"


def rubric(asked: Sequence[Entity]) -> list[tuple[str, str]]:
    """(priority, criterion) of each item; an entity's first criterion begins with its name, so that the document to
    copy from is found by its title. A criterion has no "is": only in the graded answer does a value follow an "is"."""
    return [
        (PRIORITIES[place], f"{entity.name}: {_criterion(sentence)}" if place == 0 else _criterion(sentence))
        for entity, count in zip(asked, ASKED[len(asked)], strict=True)
        for place, sentence in enumerate(entity.sentences[:count])
    ]


def _criterion(sentence: str) -> str:
    attribute, entity, value = SENTENCE.findall(sentence)[0]
    return f"The {attribute} of {entity}: {value}"


def report(facts: Sequence[tuple[str, Sequence[str]]]) -> str:
    """An answer: for each entity, its name and the sentences about it."""
    return " ".join(f"{name}: {' '.join(sentences)}" for name, sentences in facts)


def stated(criterion: str) -> list[str]:
    """The fact that a criterion asks for, in the format of the exact score: ["The mouth of Seine is", "Channel"]."""
    found = CRITERION.search(criterion)
    if found is None:
        raise ValueError(f"the criterion {criterion!r} holds no fact")
    attribute, entity, value = found.groups()
    return [f"The {attribute} of {entity} is", value]


def fact_of(criterion: str) -> str:
    """The sentence that a criterion asks for."""
    statement, value = stated(criterion)
    return f"{statement} {value}."


# ---------------------------------------------------------------------------------------------------------------- files
def source_documents(world: World) -> list[dict[str, Any]]:
    """The documents that a challenger may get: those of train entities."""
    return [dict(entity.row) for entity in entities(world).values() if trains(world, entity)]


def task_sets(world: World) -> dict[str, list[dict[str, Any]]]:
    """Rows (id, question, rubric, task_type, evidence_ids) of "train" and "held_out", in the format of curated tasks.

    A held-out task is about held-out entities only, a train task about none. The second and third entity come from the
    first one's document if it names any that qualify.
    """
    every = entities(world)
    rng = np.random.default_rng(TASK_SEED)
    sets: dict[str, list[dict[str, Any]]] = {}
    for name, size in SET_SIZES.items():
        fit = {
            entity.name: entity
            for entity in every.values()
            if (entity.name in world.held_out if name == "held_out" else trains(world, entity))
        }
        rows = []
        for kind in KINDS:
            for count in range(1, MOST_ENTITIES + 1):
                for place in rng.permutation(len(fit))[:size]:
                    chosen = _company(list(fit.values())[place], fit, count, rng)
                    rows.append(_row(f"{name}-{len(rows):04d}", kind, chosen))
        sets[name] = rows
    return sets


def _company(entity: Entity, fit: Mapping[str, Entity], count: int, rng: np.random.Generator) -> list[Entity]:
    near = [fit[name] for name in entity.neighbours if name in fit]
    near = [near[i] for i in rng.permutation(len(near))]
    near_names = {entity.name, *(other.name for other in near)}
    far = [fit[name] for name in fit if name not in near_names]
    return [entity, *near, *(far[i] for i in rng.permutation(len(far))[:MOST_ENTITIES])][:count]


def _row(number: str, kind: str, asked: Sequence[Entity]) -> dict[str, Any]:
    criteria = [
        {"criterion": text, "weight": 1.0, "priority": priority, "fact": stated(text)}
        for priority, text in rubric(asked)
    ]
    return {
        "id": number,
        "question": task(kind, [entity.name for entity in asked]),
        "rubric": criteria,
        "task_type": kind,
        "evidence_ids": [entity.row["id"] for entity in asked],
    }
