"""Queries of a user about two names, three facts each; the training and held-out sets of SCORE.

The facts are numbered with words, so that a model that can only copy finds the next one after its number. The first
fact is about one name and the third about another; the second is about either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.atlas.corpus import document_id, documents
from tools.atlas.facts import Fact, World
from tools.atlas.rows import Split, pick, some

_WORD = re.compile(r"\w+")
LEADS = ("Tell me", "Find", "Look up", "Name")  # how a query begins
NUMBERS = ("first", "second", "third")
QUERY_SEED = 29
SET_SIZES: Mapping[Split, int] = {"train": 240, "held_out": 400}


@dataclass(frozen=True)
class Asked:
    """A query: its first words, and the facts that it asks for in order."""

    lead: str
    facts: tuple[Fact, Fact, Fact]

    @property
    def text(self) -> str:
        """ "Find first the mouth of Seine, second the country of Seine, third the capital of France"."""
        return f"{self.lead} {', '.join(f'{n} {fact.phrase}' for n, fact in zip(NUMBERS, self.facts, strict=True))}"

    @property
    def names(self) -> tuple[str, str]:
        """The two names that it is about."""
        return self.facts[0].entity, self.facts[2].entity


def askable(world: World, split: Split) -> dict[str, list[Fact]]:
    """The facts that queries of a split ask for, by name.

    "held_out": of held-out names; "train": of names whose document mentions no held-out name.
    """
    texts = {name: row["text"] for name, row in zip(world.names, documents(world), strict=True)}
    fits = {
        "all": lambda name: True,
        "train": lambda name: not world.held_out & set(_WORD.findall(texts[name])),
        "held_out": lambda name: name in world.held_out,
    }[split]
    return {name: list(facts) for name, facts in world.of_entity.items() if fits(name)}


def drawn(about: Mapping[str, Sequence[Fact]], rng: np.random.Generator) -> Asked:
    """A random query. about: the facts that may be asked for, by name; at least one name must have two."""
    names = list(about)
    while True:
        first, third = some(names, 2, rng)
        both = [first, third] if rng.random() < 0.5 else [third, first]
        twice = next((name for name in both if len(about[name]) > 1), None)
        if twice is not None:
            break
    taken = {name: some(about[name], 2 if name == twice else 1, rng) for name in (first, third)}
    return Asked(pick(LEADS, rng), (taken[first][0], taken[twice][1], taken[third][0]))


def statement(fact: Fact) -> str:
    """The beginning of a report's sentence about the fact: "the mouth of Seine:"."""
    return f"{fact.phrase}:"


def criterion(fact: Fact) -> str:
    """ "the mouth of Seine is Channel"; a report has a colon instead of "is"."""
    return f"{fact.phrase} is {fact.value}"


def query_sets(world: World) -> dict[str, list[dict[str, Any]]]:
    """Rows of "train" (id, question) and "held_out" (also rubric and evidence_ids, as tasks have them), all different.

    A held-out query is about two held-out names, a train query mentions none.
    """
    evidence = {name: document_id(number) for number, name in enumerate(world.names)}
    rng = np.random.default_rng(QUERY_SEED)
    sets: dict[str, list[dict[str, Any]]] = {}
    for split, size in SET_SIZES.items():
        about = askable(world, split)
        found: dict[str, Asked] = {}
        while len(found) < size:
            asked = drawn(about, rng)
            found.setdefault(asked.text, asked)
        sets[split] = [_row(f"{split}-{i:04d}", asked, split, evidence) for i, asked in enumerate(found.values())]
    return sets


def _row(number: str, asked: Asked, split: Split, evidence: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": number, "question": asked.text}
    if split == "held_out":
        row["rubric"] = [
            {"criterion": criterion(fact), "weight": 1.0, "fact": [statement(fact), fact.value]} for fact in asked.facts
        ]
        row["evidence_ids"] = [evidence[name] for name in asked.names]
    return row
