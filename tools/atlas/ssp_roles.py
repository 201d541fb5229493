"""Random demonstrations of SSP's roles: the questions, good and bad play, and their frequencies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from scope_jax.games.ssp import rules
from tools.atlas import ssp_scripts
from tools.atlas.facts import ASSETS, Fact, World
from tools.atlas.questions import KINDS, Chain, Choice, alike, answer_set, chains, choice, question_sets
from tools.atlas.rows import Makers, Script, Show, Split, pick

CARD = ASSETS.parents[1] / "configs" / "ssp" / "atlas.toml"
NOISE = 4  # most noise documents added to a reader's own
TRIES = {1: 3, 2: 3, 3: 6}  # trails drawn for each answer, by length
CHOICES = 1500  # number of choice questions, drawn once
HOPS = tuple(range(1, len(KINDS) + 1))
EXTRA_TEXTS: tuple[str, ...] = (
    " I know this. I know one. ",
)  # for the tokenizer: texts of the game that good play does not show
PIECES: tuple[str, ...] = ()
_SENTENCE = re.compile(r"The (\w+) of (\w+) is (\w+)\.")


@dataclass(frozen=True)
class Habits:
    """Share of the demonstrations that show each bad habit; the rest show good play.

    guess, guess_sure, guess_choice: a solver answers without searching: by default, if the attribute asked for is in
    `sure`, and for choices. half_way: share of the solvers of chains that search but stop before the last hop. unread:
    a proposer asks without having searched.
    """

    sure: frozenset[str]
    guess_sure: float
    guess: float
    guess_choice: float
    half_way: float
    unread: float


HABITS = Habits(
    sure=frozenset({"capital", "continent", "country"}),
    guess_sure=0.8,
    guess=0.25,
    guess_choice=0.6,
    half_way=0.4,
    unread=0.15,
)
READ_ROWS: Mapping[str, int] = {  # demonstrations of each kind in one step
    "solve 1": 5,
    "solve 2": 8,
    "solve 3": 8,
    "choose": 7,
    "propose 1": 3,
    "propose 2": 5,
    "propose 3": 5,
    "read 1": 1,
    "read 2": 4,
    "read 3": 4,
}
PLAY_ROWS: Mapping[str, int] = {
    "solve 1": 9,
    "solve 2": 10,
    "solve 3": 10,
    "choose": 6,
    "propose 1": 3,
    "propose 2": 3,
    "propose 3": 3,
    "read 1": 1,
    "read 2": 2,
    "read 3": 2,
}
STEPS: tuple[int, int] = (400, 80)  # of stage "read" and of stage "play"


class SSPDemonstrations:
    """Draws SSP's demonstrations: from facts that the search tool finds, and trails that a proposer can follow.

    split: "train" uses facts about train entities only; in "held_out" every question begins at a held-out entity. Facts
    that search does not find are left out.
    """

    def __init__(self, world: World, show: Show, split: Split, seed: int) -> None:
        self.show = lru_cache(maxsize=None)(show)
        self.rng = np.random.default_rng(seed)
        usable = {fact for fact in world.facts if split != "train" or world.trains(fact)}
        self._by_sentence = {fact.sentence: fact for fact in usable}
        found = [fact for fact in world.facts if fact in usable and fact.sentence in self.show(fact.phrase)]
        known = set(found)

        def fits(chain: Chain) -> bool:
            return set(chain) <= known and (split != "held_out" or chain[0].entity in world.held_out)

        self.chains = {hops: [chain for chain in chains(world, hops) if fits(chain)] for hops in HOPS}
        self.values = {
            attribute: sorted({fact.value for fact in usable if fact.attribute == attribute})
            for attribute in world.attributes
        }
        names = sorted({fact.value for fact in usable})
        self.trails = {
            hops: [
                trail
                for name in names
                for _ in range(TRIES[hops])
                if (trail := self._trail(name, hops)) and fits(trail)
            ]
            for hops in HOPS
        }
        found = [fact for fact in found if fits((fact,))]
        groups = alike(world, found)
        drawn = [pick(found, self.rng) for _ in range(CHOICES)]
        made = [choice(fact, groups[fact.attribute, world.kinds[fact.entity]], self.rng) for fact in drawn]
        self.choices: list[Choice] = [one for one in made if one is not None]

    def _read(self, text: str, value: str) -> list[Fact]:
        """Facts in a result text that end in `value`."""
        found = (self._by_sentence.get(match.group()) for match in _SENTENCE.finditer(text))
        return [fact for fact in dict.fromkeys(found) if fact is not None and fact.value == value]

    def _trail(self, answer: str, hops: int) -> Chain | None:
        """The facts that a proposer finds going back from `answer`, in solving order; None if there are too few."""
        chain: Chain = ()
        target = answer
        for _ in range(hops):
            passed = {answer, *(fact.entity for fact in chain)}
            ending = [fact for fact in self._read(self.show(target), target) if fact.entity not in passed]
            if not ending:
                return None
            chain = (pick(ending, self.rng), *chain)
            target = chain[0].entity
        return chain

    # ------------------------------------------------------------------------------------------------ one script each
    def solve(self, hops: int, habits: Habits | None = None) -> Script:
        """A solver's episode on a question of `hops` hops; with habits, bad play with the given probabilities."""
        chain = pick(self.chains[hops], self.rng)
        if habits is not None:
            asked = chain[-1].attribute
            if self.rng.random() < (habits.guess_sure if asked in habits.sure else habits.guess):
                return ssp_scripts.guesser(ssp_scripts.chain_question(chain), pick(self.values[asked], self.rng))
            if hops > 1 and self.rng.random() < habits.half_way:
                return ssp_scripts.solver(chain, self.show, int(self.rng.integers(1, hops)))
        return ssp_scripts.solver(chain, self.show)

    def choose(self, habits: Habits | None = None) -> Script:
        """A solver's episode on a choice."""
        chosen = pick(self.choices, self.rng)
        if habits is not None and self.rng.random() < habits.guess_choice:
            return ssp_scripts.guesser(chosen.question, pick(chosen.facts, self.rng).entity)
        return ssp_scripts.chooser(chosen, self.show)

    def propose(self, hops: int, habits: Habits | None = None) -> Script:
        """A proposer's episode for a trail of `hops` hops; with habits, bad play with the given probabilities."""
        chain = pick(self.trails[hops], self.rng)
        if habits is not None and self.rng.random() < habits.unread:
            return ssp_scripts.asks_unread(chain)
        return ssp_scripts.proposer(chain, self.show)

    def read(self, hops: int) -> Script:
        """A reader's episode: a proposer's question, and the documents it read shuffled with up to NOISE others."""
        chain = pick(self.trails[hops], self.rng)
        own = rules.units([self.show(fact.value) for fact in reversed(chain)], "document")
        others = [
            unit
            for _ in range(2)
            for unit in rules.units([self.show(pick(self.trails[1], self.rng)[-1].value)], "document")
        ]
        mixed = rules.mix(own, others, int(self.rng.integers(NOISE + 1)), self.rng)
        return ssp_scripts.reader(chain, rules.render(mixed, "document"))


def texts(world: World) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The answers of self-play, and both sets of questions."""
    sets = {f"questions_{name}.jsonl": rows for name, rows in question_sets(world).items()}
    return {"answers.jsonl": answer_set(world), **sets}


def makers(world: World, show: Show, *, split: Split, seed: int, with_habits: bool) -> Makers:
    """Functions that draw a demonstration, by kind."""
    demos = SSPDemonstrations(world, show, split, seed)
    habits = HABITS if with_habits else None
    made: Makers = {}
    for hops in HOPS:
        made[f"solve {hops}"] = lambda hops=hops: demos.solve(hops, habits)
        made[f"propose {hops}"] = lambda hops=hops: demos.propose(hops, habits)
        made[f"read {hops}"] = lambda hops=hops: demos.read(hops)
    return {**made, "choose": lambda: demos.choose(habits)}
