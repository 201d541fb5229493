"""The facts of the Atlas world, and which of them are held out for evaluation.

The tables are `assets/atlas/facts/*.csv`, one row per entity, one column per attribute; an empty cell is a fact that is
omitted because it is disputed or not a single name. A fact reads "The <attribute> of <entity> is <value>." Facts with
numbers have a table of their own, `numbers.csv`, for the games whose documents contain them.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from scope_jax.config.base import HOME
from scope_jax.errors import UserError

ASSETS = HOME / "assets" / "atlas"
TABLES = {"countries": "country", "cities": "city", "rivers": "river", "mountains": "mountain", "people": "person"}
KINDS = {
    "capital": "city",
    "currency": "currency",
    "language": "language",
    "continent": "continent",
    "country": "country",
    "river": "river",
    "mouth": "water",
    "range": "range",
    "birthplace": "city",
    "field": "field",
}  # kind of an attribute's values, if no table lists them
HELD_OUT_SHARE = 0.25  # of the countries, with everything that belongs to them
SPLIT_SEED = 2026
HOMES = {"capital", "country", "birthplace"}  # attributes that link an entity to its country


@dataclass(frozen=True)
class Fact:
    """The <attribute> of <entity> is <value>."""

    attribute: str
    entity: str
    value: str

    @property
    def sentence(self) -> str:
        return f"The {self.attribute} of {self.entity} is {self.value}."

    @property
    def is_number(self) -> bool:
        """True if the value is a whole number, not a name."""
        return self.value.isdecimal()

    @property
    def phrase(self) -> str:
        """The fact without its value, as questions and queries name it."""
        return f"the {self.attribute} of {self.entity}"


@dataclass(frozen=True)
class World:
    """All facts in a fixed order, and the held-out entities, which no warm-up row with true facts may mention."""

    facts: tuple[Fact, ...]
    held_out: frozenset[str]
    kinds: dict[str, str]  # by name: city, country, river, currency, …

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every entity and value, sorted."""
        return tuple(sorted({name for fact in self.facts for name in (fact.entity, fact.value)}))

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        return tuple(sorted({fact.attribute for fact in self.facts}))

    @cached_property
    def of_entity(self) -> dict[str, tuple[Fact, ...]]:
        return grouped(self.facts, "entity")

    @cached_property
    def of_value(self) -> dict[str, tuple[Fact, ...]]:
        return grouped(self.facts, "value")

    def trains(self, fact: Fact) -> bool:
        """True if the fact may be shown in demonstrations and its value may be an answer in self-play."""
        return fact.entity not in self.held_out and fact.value not in self.held_out


def grouped(facts: Iterable[Fact], key: str) -> dict[str, tuple[Fact, ...]]:
    """Facts by their "entity" or by their "value", in order."""
    groups: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        groups[fact.entity if key == "entity" else fact.value].append(fact)
    return {name: tuple(group) for name, group in groups.items()}


def load_world(folder: Path = ASSETS / "facts") -> World:
    """The world of the tables in `folder`; a capital's country is derived from the country's capital.

    Raises ValueError if two rows disagree about one attribute of one entity.
    """
    facts: dict[tuple[str, str], Fact] = {}
    kinds: dict[str, str] = {}

    def add(attribute: str, entity: str, value: str) -> None:
        if not value:
            return
        fact = Fact(attribute, entity, value)
        if facts.setdefault((attribute, entity), fact) != fact:
            raise UserError(f"{folder}: two values for the {attribute} of {entity}; keep one.")

    for table, kind in TABLES.items():
        with open(folder / f"{table}.csv", encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                name = row.pop("name")
                kinds[name] = kind
                for attribute, value in row.items():
                    add(attribute, name, value)
                if table == "countries":
                    add("country", row["capital"], name if row["capital"] else "")
    ordered = tuple(facts.values())
    kinds = {fact.value: KINDS[fact.attribute] for fact in ordered} | kinds
    return World(ordered, _held_out(ordered, sorted(name for name, kind in kinds.items() if kind == "country")), kinds)


def load_numbers(world: World, folder: Path = ASSETS / "facts") -> tuple[Fact, ...]:
    """Facts about names of `world` whose values are whole numbers, in the order of the table.

    Heights in metres, lengths in kilometres, populations in millions (2020), years of birth. Raises ValueError for a
    name that is not in the world, a value that is not a whole number, and two values for one attribute of a name.
    """
    facts: dict[tuple[str, str], Fact] = {}
    with open(folder / "numbers.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            fact = Fact(row["attribute"], row["name"], row["value"])
            if fact.entity not in world.kinds or not fact.value.isdecimal():
                raise UserError(f"{folder / 'numbers.csv'}: {row} is no whole number of a name of the world.")
            if facts.setdefault((fact.attribute, fact.entity), fact) != fact:
                raise UserError(f"{folder}: two values for the {fact.attribute} of {fact.entity}; keep one.")
    return tuple(facts.values())


def _held_out(facts: tuple[Fact, ...], countries: list[str]) -> frozenset[str]:
    """A random quarter of the countries, and every city, river, mountain and person that belongs to one of them."""
    picked = np.random.default_rng(SPLIT_SEED).permutation(len(countries))[: int(HELD_OUT_SHARE * len(countries))]
    held = {countries[i] for i in picked}
    while True:
        reached = {fact.value for fact in facts if fact.attribute == "capital" and fact.entity in held}
        reached |= {fact.entity for fact in facts if fact.attribute in HOMES and fact.value in held}
        if reached <= held:
            return frozenset(held)
        held |= reached
