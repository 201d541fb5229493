"""Random demonstrations of SSP's roles: the questions, good and bad play, and their frequencies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.games.ssp import rules
from tools.atlas import ssp_scripts
from tools.atlas.chains import SolverDemonstrations, SolverHabits, guesser
from tools.atlas.facts import ASSETS, Fact, World
from tools.atlas.questions import KINDS, Chain, Choice, alike, answer_set, choice, question_sets
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
class Habits(SolverHabits):
    """Beside those of chains. guess_choice: a solver answers a choice without a search. unread: a proposer asks without
    having searched."""

    guess_choice: float = 0.6
    unread: float = 0.15


HABITS = Habits()
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


class SSPDemonstrations(SolverDemonstrations):
    """Draws SSP's demonstrations: from facts that the search tool finds, and trails that a proposer can follow."""

    def __init__(self, world: World, show: Show, split: Split, seed: int) -> None:
        finds = lambda fact, show: fact.sentence in show(fact.phrase)  # noqa: E731
        super().__init__(world, show, split, seed, HOPS, ssp_scripts.asked, finds)
        self._by_sentence = {fact.sentence: fact for fact in self.usable}
        self.trails = {
            hops: [
                trail
                for name in self.names
                for _ in range(TRIES[hops])
                if (trail := self._trail(name, hops)) and self.fits(trail)
            ]
            for hops in HOPS
        }
        found = [fact for fact in world.facts if self.fits((fact,))]
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
    def choose(self, habits: Habits | None = None) -> Script:
        """A solver's episode on a choice."""
        chosen = pick(self.choices, self.rng)
        if habits is not None and self.rng.random() < habits.guess_choice:
            return guesser(ssp_scripts.asked(chosen.question), pick(chosen.facts, self.rng).entity)
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
