"""What games share whose solver answers questions about chains of facts: its scripts, its habits, and their draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scope_jax.play.turns import raw
from scope_jax.text import dialects
from tools.atlas.facts import Fact, World
from tools.atlas.questions import Chain, chain_question, chains
from tools.atlas.rows import Script, Show, Split, pick

XML = dialects.load("xml")  # Atlas uses tags, and its turns are joined without a template
Parts = tuple[tuple[str, bool], ...]


def search(thought: str, query: str, show: Show) -> Parts:
    """A turn that searches, and its result."""
    output = f"<think>{thought} </think><search> {query} </search>"
    return (output, True), (raw(XML.observation([show(query)])), False)


def solver(message: str, chain: Chain, show: Show, hops: int | None = None) -> Script:
    """Searches for the fact of each hop, repeats the sentence it found, and answers with the last value.

    message: the prompt with the chain's question. hops: bad habit, stops after this many hops and answers with the
    value it has.
    """
    parts: Parts = ()
    known = ""
    walked = chain[:hops]
    for fact in walked:
        parts += search(f"{known} I need {fact.phrase}.", fact.phrase, show)
        known = f" {fact.sentence}"
    parts += ((f"<think>{known} </think><answer> {walked[-1].value} </answer>", True),)
    return Script("solver", message, parts)


def guesser(message: str, guess: str) -> Script:
    """Bad habit: guesses the answer without a search."""
    return Script("solver", message, ((f"<think> I know this. </think><answer> {guess} </answer>", True),))


@dataclass(frozen=True)
class SolverHabits:
    """Share of the solver's demonstrations that show each bad habit; the rest show good play.

    guess, guess_sure: it answers without a search, by default and if the attribute asked for is in `sure`. half_way:
    share of those about several hops that search but stop before the last one.
    """

    sure: frozenset[str] = frozenset({"capital", "continent", "country"})
    guess_sure: float = 0.8
    guess: float = 0.25
    half_way: float = 0.4


class SolverDemonstrations:
    """Draws the solver's demonstrations.

    split: "train" uses facts about train entities only; in "held_out" every question begins at a held-out entity.
    lengths: of the chains. asked: the prompt with a question. found: whether chains may have a fact of the split.
    """

    def __init__(
        self,
        world: World,
        show: Show,
        split: Split,
        seed: int,
        lengths: Sequence[int],
        asked: Callable[[str], str],
        found: Callable[[Fact, Show], bool] = lambda fact, show: True,
    ) -> None:
        self.show = lru_cache(maxsize=None)(show)
        self.rng = np.random.default_rng(seed)
        self.asked = asked
        self._begins = world.held_out if split == "held_out" else world.names
        self.usable = [fact for fact in world.facts if split != "train" or world.trains(fact)]
        self.known = {fact for fact in self.usable if found(fact, self.show)}
        self.chains = {hops: [chain for chain in chains(world, hops) if self.fits(chain)] for hops in lengths}
        self.values = {
            attribute: sorted({fact.value for fact in self.usable if fact.attribute == attribute})
            for attribute in world.attributes
        }
        self.names = sorted({fact.value for fact in self.usable})

    def fits(self, chain: Chain) -> bool:
        """True if the chain is made of facts of the split."""
        return self.known.issuperset(chain) and chain[0].entity in self._begins

    def solve(self, hops: int, habits: SolverHabits | None = None) -> Script:
        """A solver's episode on a question of `hops` hops; with habits, bad play with the given probabilities."""
        chain = pick(self.chains[hops], self.rng)
        message = self.asked(chain_question(chain))
        if habits is not None:
            attribute = chain[-1].attribute
            if self.rng.random() < (habits.guess_sure if attribute in habits.sure else habits.guess):
                return guesser(message, pick(self.values[attribute], self.rng))
            if hops > 1 and self.rng.random() < habits.half_way:
                return solver(message, chain, self.show, int(self.rng.integers(1, hops)))
        return solver(message, chain, self.show)
