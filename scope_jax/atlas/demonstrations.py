"""Demonstrations of every role, as token rows: on the true world, and on worlds in which all names are exchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from models.tokenizer import Tokenizer
from scope_jax.atlas import scripts
from scope_jax.atlas.facts import Fact, World
from scope_jax.atlas.questions import chains
from scope_jax.atlas.scripts import Script, Show
from scope_jax.learner.types import Datum, Episode
from scope_jax.systems.ssp import materials

_SENTENCE = re.compile(r"The (\w+) of (\w+) is (\w+)\.")
T = TypeVar("T")

NOISE = 4  # most noise documents beside a reader's own
TRIES = 3  # trails drawn from each answer and length


@dataclass(frozen=True)
class Habits:
    """Share of the demonstrations that show a bad habit; the rest show good play.

    guess, guess_sure: a solver answers without a search, by default and where the attribute asked for is one of `sure`.
    half_way: of a solver's two-hop demonstrations that search, those that stop at the bridge. unread: a proposer asks
    without having searched.
    """

    sure: frozenset[str]
    guess_sure: float
    guess: float
    half_way: float
    unread: float


@dataclass(frozen=True)
class Trail:
    """Facts in the order of solving, and what a proposer read on the way back."""

    facts: tuple[Fact, ...]
    results: tuple[str, ...]


class Library:
    """The material of demonstrations: facts that the search tool really shows, and trails that a proposer can walk.

    facts: the world's, or only those that train entities alone have part in. Raises nothing; what search does not show
    is left out.
    """

    def __init__(self, world: World, show: Show, train_only: bool, seed: int) -> None:
        self.show = lru_cache(maxsize=None)(show)
        self.rng = np.random.default_rng(seed)
        usable = {fact for fact in world.facts if not train_only or world.trains(fact)}
        self._by_sentence = {fact.sentence: fact for fact in usable}
        found = [fact for fact in world.facts if fact in usable and fact.sentence in self.show(fact.phrase)]
        known = set(found)
        self.singles = [(fact,) for fact in found]
        self.pairs = [pair for pair in chains(world) if set(pair) <= known]
        self.values = {
            attribute: sorted({fact.value for fact in usable if fact.attribute == attribute})
            for attribute in world.attributes
        }
        names = sorted({fact.value for fact in usable})
        self.trails = {
            count: [trail for name in names for _ in range(TRIES) if (trail := self._trail(name, count))]
            for count in (1, 2)
        }

    def _read(self, text: str, value: str) -> list[Fact]:
        """Facts in a result text that end in `value`."""
        found = (self._by_sentence.get(match.group()) for match in _SENTENCE.finditer(text))
        return [fact for fact in dict.fromkeys(found) if fact is not None and fact.value == value]

    def _trail(self, answer: str, count: int) -> Trail | None:
        facts: list[Fact] = []
        results: list[str] = []
        target = answer
        for _ in range(count):
            results.append(self.show(target))
            ending = [fact for fact in self._read(results[-1], target) if fact.entity != answer]
            if not ending:
                return None
            fact = pick(ending, self.rng)
            facts.insert(0, fact)
            target = fact.entity
        return Trail(tuple(facts), tuple(results))

    # ------------------------------------------------------------------------------------------------ one script each
    def solve(self, count: int, habits: Habits | None = None) -> Script:
        """A solver's episode on a question of `count` hops; with habits, a bad one as often as they say."""
        facts = pick(self.singles if count == 1 else self.pairs, self.rng)
        if habits is not None:
            asked = facts[-1].attribute
            if self.rng.random() < (habits.guess_sure if asked in habits.sure else habits.guess):
                guesses = self.values[asked]
                return scripts.guesser(facts, guesses[int(self.rng.integers(len(guesses)))])
            if count == 2 and self.rng.random() < habits.half_way:
                return scripts.half_way(facts, self.show)
        return scripts.solver(facts, self.show)

    def propose(self, count: int, habits: Habits | None = None) -> Script:
        """A proposer's episode for a trail of `count` facts; with habits, a bad one as often as they say."""
        facts = pick(self.trails[count], self.rng).facts
        if habits is not None and self.rng.random() < habits.unread:
            return scripts.asks_unread(facts)
        return scripts.proposer(facts, self.show)

    def read(self, count: int) -> Script:
        """A reader's episode: a proposer's question, and what it read among up to NOISE other documents, shuffled."""
        trail = pick(self.trails[count], self.rng)
        own = materials.units(trail.results, "document")
        others = [
            unit for _ in range(2) for unit in materials.units(pick(self.trails[1], self.rng).results, "document")
        ]
        mixed = materials.mix(own, others, int(self.rng.integers(NOISE + 1)), self.rng)
        return scripts.reader(trail.facts, materials.render(mixed, "document"))


def pick(items: Sequence[T], rng: np.random.Generator) -> T:
    """One item by lot."""
    return items[int(rng.integers(len(items)))]


# ------------------------------------------------------------------------------------------------------ token rows
def token_row(script: Script, tokenizer: Tokenizer) -> Datum:
    """The episode in the tokens the engine would see; only what the policy speaks is marked as sampled."""
    ids = list(tokenizer.encode_chat([{"role": "user", "content": script.message}]))
    spoken = [False] * len(ids)
    for text, said in script.parts:
        piece = tokenizer.encode(text)
        ids += piece
        spoken += [said] * len(piece)
    if script.ends:
        ids.append(tokenizer.eos_id)
        spoken.append(True)
    return Datum(np.asarray(ids, np.int32), np.asarray(spoken, bool), np.zeros(len(ids), np.float32))


def name_ids(world: World, tokenizer: Tokenizer) -> np.ndarray:
    """Ids of all names as they stand in a sentence; raises ValueError if one is not a single token."""
    pieces = {name: tokenizer.encode(f" {name}") for name in world.names}
    if long := [name for name, piece in pieces.items() if len(piece) != 1]:
        raise ValueError(f"The tokenizer splits the name {long[0]!r}; train it with all names of the world.")
    return np.asarray(sorted(piece[0] for piece in pieces.values()), np.int32)


def exchanged(row: Datum, names_N: np.ndarray, vocab_size: int, rng: np.random.Generator) -> Datum:
    """The row in another world: all names exchanged by one permutation, so that facts can only be read."""
    table_V = np.arange(vocab_size, dtype=np.int32)
    table_V[names_N] = rng.permutation(names_N)
    return Datum(table_V[row.ids_T], row.sampled_T, row.logprobs_T)


def pool(make: Callable[[], Script], count: int, tokenizer: Tokenizer) -> list[Datum]:
    """`count` token rows of freshly drawn scripts."""
    return [token_row(make(), tokenizer) for _ in range(count)]


def supervised(rows: Iterable[Datum]) -> list[Episode]:
    """Rows as the learner's supervised card wants them."""
    return [
        Episode(role="demonstration", policy="actor", group=str(i), datums=(row,), reward=0.0)
        for i, row in enumerate(rows)
    ]
