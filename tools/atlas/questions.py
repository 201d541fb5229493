"""Questions about the true facts, and the ground-truth answers for self-play."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.atlas.corpus import document_id
from tools.atlas.facts import Fact, World, grouped

QUESTION_SEED = 5
KINDS = ("one hop", "two hops", "three hops")  # of chains
CANDIDATES = 3  # per choice
SET_SIZES = {"train": 100, "held_out": 200}  # questions of each kind: one, two and three hops, and choices
Chain = tuple[Fact, ...]  # facts in solving order: each but the first is about the value of the previous one


def chain_phrase(chain: Chain) -> str:
    """ "the currency of the country of Seine": names the first entity and means the last value."""
    asked = chain[0].phrase
    for fact in chain[1:]:
        asked = f"the {fact.attribute} of {asked}"
    return asked


def chain_question(chain: Chain) -> str:
    """ "What is the currency of the country of Seine?"."""
    return f"What is {chain_phrase(chain)}?"


def walks(facts: Sequence[Fact], longest: int) -> dict[int, list[Chain]]:
    """All chains of up to `longest` of the facts, by length; none returns to a name it has passed."""
    about = grouped(facts, "entity")
    made: list[Chain] = [(fact,) for fact in facts]
    by_length = {1: made}
    for hops in range(2, longest + 1):
        made = [
            (*chain, fact)
            for chain in made
            for fact in about.get(chain[-1].value, ())
            if fact.value not in {chain[0].entity, *(passed.value for passed in chain)}
        ]
        by_length[hops] = made
    return by_length


def chains(world: World, hops: int) -> list[Chain]:
    """All chains of so many facts of the world."""
    return walks(world.facts, hops)[hops]


@dataclass(frozen=True)
class Choice:
    """Facts of one attribute about things of one kind; the question gives the value of the one at `place`."""

    facts: tuple[Fact, ...]
    place: int

    @property
    def right(self) -> Fact:
        return self.facts[self.place]

    @property
    def question(self) -> str:
        """ "Which one has the country France: Elbe, Seine or Nile?"; names are followed by ":" only in questions."""
        *names, last = [fact.entity for fact in self.facts]
        return f"Which one has the {self.right.attribute} {self.right.value}: {', '.join(names)} or {last}?"


def choice(right: Fact, others: Sequence[Fact], rng: np.random.Generator) -> Choice | None:
    """`right` among facts of `others` that differ from it only in entity and value; None if there are too few."""
    fit = [fact for fact in others if fact.entity != right.value and fact.value not in (right.value, right.entity)]
    fit = [fit[i] for i in rng.permutation(len(fit))]
    wrong = list({fact.entity: fact for fact in fit if fact.entity != right.entity}.values())[: CANDIDATES - 1]
    if len(wrong) < CANDIDATES - 1:
        return None
    place = int(rng.integers(CANDIDATES))
    return Choice((*wrong[:place], right, *wrong[place:]), place)


def alike(world: World, facts: Sequence[Fact]) -> dict[tuple[str, str], list[Fact]]:
    """`facts` by attribute and kind of entity."""
    groups: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        groups.setdefault((fact.attribute, world.kinds[fact.entity]), []).append(fact)
    return groups


def question_sets(world: World) -> dict[str, list[dict[str, Any]]]:
    """Rows (id, question, answers, kind, hops, evidence_ids) of "train" and "held_out", by kind.

    kind: "one hop", "two hops", "three hops" or "choice". A held-out question begins at a held-out entity, and all
    candidates of a choice are held out; a train question involves none. A chain's answer never occurs in its question.
    """
    evidence = {name: document_id(number) for number, name in enumerate(world.names)}
    rng = np.random.default_rng(QUESTION_SEED)
    sets: dict[str, list[dict[str, Any]]] = {}
    for name, size in SET_SIZES.items():
        sets[name] = [
            {
                "id": f"{name}-{place:04d}",
                "question": question,
                "answers": [answer],
                "kind": kind,
                "hops": 1 if kind == "choice" else len(facts),
                "evidence_ids": [evidence[fact.entity] for fact in facts],
            }
            for place, (kind, question, answer, facts) in enumerate(_drawn(world, name == "held_out", size, rng))
        ]
    return sets


def _drawn(
    world: World, held_out: bool, size: int, rng: np.random.Generator
) -> Iterator[tuple[str, str, str, tuple[Fact, ...]]]:
    """(kind, question, answer, facts) of up to `size` questions of each kind."""
    fits = _begins_held_out if held_out else _trains
    for hops, kind in enumerate(KINDS, start=1):
        fit = [chain for chain in chains(world, hops) if fits(world, chain)]
        for i in sorted(rng.permutation(len(fit))[:size]):
            yield kind, chain_question(fit[i]), fit[i][-1].value, fit[i]
    facts = [fact for fact in world.facts if fits(world, (fact,))]
    groups = alike(world, facts)
    drawn = [
        choice(facts[i], groups[facts[i].attribute, world.kinds[facts[i].entity]], rng)
        for i in rng.permutation(len(facts))
    ]
    for made in [made for made in drawn if made is not None][:size]:
        yield "choice", made.question, made.right.entity, made.facts


def _trains(world: World, chain: Chain) -> bool:
    return all(map(world.trains, chain))


def _begins_held_out(world: World, chain: Chain) -> bool:
    return chain[0].entity in world.held_out


def answer_set(world: World) -> list[dict[str, str]]:
    """Ground-truth answers of self-play: every name that is the value of a fact about a train entity, sorted."""
    return [{"answer": name} for name in sorted({fact.value for fact in world.facts if world.trains(fact)})]
