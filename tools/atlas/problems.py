"""SPICE's problems on Atlas: questions that carry their premises, the documents they are written from, and the exam.

A problem is one chain of facts whose last value is asked for ("What is the mouth of the river of Paris?"), or two
chains that end in numbers of one attribute, whose difference is asked for. Its question states the facts of its chains
and a few others, in any order: whoever answers it sees nothing else, and a model this small knows nothing by heart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.atlas.facts import Fact, World, grouped, load_numbers
from tools.atlas.questions import Chain, chain_phrase, walks
from tools.atlas.rows import pick, some

HOPS = (1, 2, 3)
MOST_FACTS = 3  # of the chains of one problem
TOLD = 6  # facts of a document about each of its two subjects
LEAST_PREMISES, MORE_PREMISES = 4, 2  # at least so many in all, and at least so many beside those of the chains
DOCUMENTS = 320
EXAM_SIZE = 120  # questions of each kind
DOCUMENT_SEED, EXAM_SEED = 17, 19
Possible = dict[str, list[tuple[Chain, ...]]]  # the chains of problems by their kind
NAMED = {1: "one hop", 2: "two hops", 3: "three hops"}  # kinds of questions of the exam; and "number", "difference"


@dataclass(frozen=True)
class Problem:
    """One chain, or two whose last values are subtracted; premises: the facts that the question states, in order."""

    chains: tuple[Chain, ...]
    premises: tuple[Fact, ...]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Those of the chains, in the order of solving."""
        return tuple(fact for chain in self.chains for fact in chain)

    @property
    def type(self) -> str:
        """Of its answer, as the game calls it."""
        if len(self.chains) == 2:
            return "expression"
        return "integer" if self.facts[-1].is_number else "string"

    @property
    def kind(self) -> str:
        """As the exam calls it."""
        return {"string": NAMED[len(self.facts)], "integer": "number", "expression": "difference"}[self.type]

    @property
    def values(self) -> tuple[str, ...]:
        """The last value of each chain."""
        return tuple(chain[-1].value for chain in self.chains)

    @property
    def answer(self) -> str:
        """The last value, or "6650 - 777"."""
        return " - ".join(self.values)

    @property
    def question(self) -> str:
        """The premises, and what is asked."""
        premises = " ".join(fact.sentence for fact in self.premises)
        return f"{premises} What is {' minus '.join(map(chain_phrase, self.chains))}?"


# ------------------------------------------------------------------------------------------------------------ documents
class Facts:
    """The facts that documents are made of, with numbers.

    held_out: None for all, False for train names alone, True for facts about held-out names alone.
    """

    def __init__(self, world: World, held_out: bool | None) -> None:
        fits = {
            None: lambda fact: True,
            False: world.trains,
            True: lambda fact: fact.entity in world.held_out,
        }[held_out]
        every = [fact for fact in (*world.facts, *load_numbers(world)) if fits(fact)]
        self._of = grouped(every, "entity")
        self._alike: dict[str, list[str]] = {}  # names by kind
        for name in self._of:
            self._alike.setdefault(world.kinds[name], []).append(name)
        self._subjects = [name for name in self._of if len(self._alike[world.kinds[name]]) > 1]
        self._kinds = world.kinds
        used = {name for fact in every for name in (fact.entity, fact.value) if name in world.kinds}
        self._names: dict[str, list[str]] = {}  # that facts speak of, by kind
        for name in sorted(used):
            self._names.setdefault(world.kinds[name], []).append(name)
        self._numbers = sorted({fact.value for fact in every if fact.is_number})

    def _told(self, subject: str, rng: np.random.Generator) -> list[Fact]:
        """A chain that begins at the subject, then what else is known of the names on it, numbers first."""
        chain: list[Fact] = []
        passed = [subject]
        while len(chain) < HOPS[-1]:
            onward = [fact for fact in self._of.get(passed[-1], ()) if fact.value not in passed]
            onward = [fact for fact in onward if not fact.is_number]
            if not onward:
                break
            chain.append(pick(onward, rng))
            passed.append(chain[-1].value)
        near = [fact for name in passed for fact in self._of.get(name, ())]
        numbers = some([fact for fact in near if fact.is_number], len(near), rng)
        others = some([fact for fact in near if not fact.is_number], len(near), rng)
        return list(dict.fromkeys([*chain, *numbers, *others]))[:TOLD]

    def document(self, rng: np.random.Generator) -> tuple[tuple[Fact, ...], Possible]:
        """Facts about two things of one kind, shuffled, from which problems of every kind can be written: these too."""
        while True:
            subject = pick(self._subjects, rng)
            other = pick([name for name in self._alike[self._kinds[subject]] if name != subject], rng)
            facts = list(dict.fromkeys([*self._told(subject, rng), *self._told(other, rng)]))
            if all(possible(facts).values()):
                shuffled = tuple(some(facts, len(facts), rng))
                return shuffled, possible(shuffled)

    def other_numbers(self, facts: Sequence[Fact], rng: np.random.Generator) -> dict[str, str]:
        """Another number for each of these facts, one to one."""
        own = sorted({fact.value for fact in facts if fact.is_number})
        return dict(zip(own, some(self._numbers, len(own), rng), strict=True))

    def other_names(self, facts: Sequence[Fact], rng: np.random.Generator) -> dict[str, str]:
        """Another name of the same kind for each of these facts, one to one: nobody could know what they say then."""
        names = sorted({name for fact in facts for name in (fact.entity, fact.value) if name in self._kinds})
        new: dict[str, str] = {}
        for kind in sorted({self._kinds[name] for name in names}):
            own = [name for name in names if self._kinds[name] == kind]
            new |= dict(zip(own, some(self._names[kind], len(own), rng), strict=True))
        return new


def exchanged(facts: Sequence[Fact], new: Mapping[str, str]) -> tuple[Fact, ...]:
    """The facts with other names and numbers."""
    return tuple(
        Fact(fact.attribute, new.get(fact.entity, fact.entity), new.get(fact.value, fact.value)) for fact in facts
    )


def text_of(document: Sequence[Fact]) -> str:
    """The document as it is read."""
    return " ".join(fact.sentence for fact in document)


# ------------------------------------------------------------------------------------------------------------- problems
def differences(ending: Sequence[Chain]) -> list[tuple[Chain, ...]]:
    """Pairs of these chains that end in different numbers of one attribute, of MOST_FACTS facts at most."""
    return [
        (one, two)
        for one in ending
        for two in ending
        if one[-1].attribute == two[-1].attribute
        and one[-1].value != two[-1].value
        and one[0].entity != two[0].entity
        and len({*one, *two}) == len(one) + len(two) <= MOST_FACTS
    ]


def possible(facts: Sequence[Fact]) -> Possible:
    """What can be asked of these facts, by the kind of question."""
    every = walks(facts, HOPS[-1])
    kinds: Possible = {NAMED[hops]: [(chain,) for chain in every[hops] if not chain[-1].is_number] for hops in HOPS}
    numbers = [chain for hops in HOPS for chain in every[hops] if chain[-1].is_number]
    kinds["number"] = [(chain,) for chain in numbers]
    kinds["difference"] = differences([chain for chain in numbers if len(chain) < MOST_FACTS])
    return kinds


KINDS_OF = {"string": tuple(NAMED.values()), "integer": ("number",), "expression": ("difference",)}  # by type of answer


def problem(document: Sequence[Fact], chains: tuple[Chain, ...], rng: np.random.Generator) -> Problem:
    """The chains' problem; the other premises are facts of the same attributes first, as the document has them."""
    own = [fact for chain in chains for fact in chain]
    attributes = {fact.attribute for fact in own}
    others = some([fact for fact in document if fact not in own], len(document), rng)
    others.sort(key=lambda fact: fact.attribute not in attributes)
    more = max(MORE_PREMISES, LEAST_PREMISES - len(own))
    return Problem(chains, tuple(some([*own, *others[:more]], len(own) + more, rng)))


# ---------------------------------------------------------------------------------------------------------------- files
def document_rows(world: World) -> list[dict[str, str]]:
    """What challengers read (id, title, text): nothing in it is held out."""
    facts, rng = Facts(world, held_out=False), np.random.default_rng(DOCUMENT_SEED)
    texts = dict.fromkeys(text_of(facts.document(rng)[0]) for _ in range(DOCUMENTS))
    return [{"id": f"spice-{place:04d}", "title": "", "text": text} for place, text in enumerate(texts)]


def exam_rows(world: World) -> list[dict[str, Any]]:
    """Questions (id, question, answers, kind) whose premises are all about held-out names."""
    drawn = dict.fromkeys(_exam(Facts(world, held_out=True), np.random.default_rng(EXAM_SEED)))
    return [
        {"id": f"spice-held_out-{place:04d}", "question": one.question, "answers": [one.answer], "kind": one.kind}
        for place, one in enumerate(drawn)
    ]


def _exam(facts: Facts, rng: np.random.Generator) -> Iterator[Problem]:
    for kind in (*NAMED.values(), "number", "difference"):
        for _ in range(EXAM_SIZE):
            document, found = facts.document(rng)
            yield problem(document, pick(found[kind], rng), rng)
