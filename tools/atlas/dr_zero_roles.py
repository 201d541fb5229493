"""Random demonstrations of Dr. Zero's roles: the questions, good and bad play, and their frequencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.atlas import corpus, dr_zero_scripts
from tools.atlas.chains import SolverDemonstrations, SolverHabits
from tools.atlas.dr_zero_scripts import CARD as CARD
from tools.atlas.facts import World
from tools.atlas.questions import KINDS, Chain, question_sets
from tools.atlas.rows import Makers, Script, Show, Split, pick

HOPS = (1, 2)
EXTRA_TEXTS: tuple[str, ...] = (" I know this.",)
PIECES: tuple[str, ...] = ()


@dataclass(frozen=True)
class Habits(SolverHabits):
    """Beside the solver's, the proposer's. lazy: asked for two hops it writes a question of one. One of these at a
    time, in this order: unanswered: it leaves the answer empty; wrong: it answers with another name of its document;
    invented: with one that is not there; thoughtless: it does not think."""

    lazy: float = 0.4
    unanswered: float = 0.1
    wrong: float = 0.2
    invented: float = 0.15
    thoughtless: float = 0.2


HABITS = Habits()
READ_ROWS: Mapping[str, int] = {  # demonstrations of each kind in one step
    "solve 1": 4,
    "solve 2": 8,
    "propose 1": 5,
    "propose 2": 8,
}
PLAY_ROWS: Mapping[str, int] = {
    "solve 1": 8,
    "solve 2": 9,
    "propose 1": 6,
    "propose 2": 7,
}
STEPS: tuple[int, int] = (240, 60)  # of stage "read" and of stage "play"


class DrZeroDemonstrations(SolverDemonstrations):
    """Draws Dr. Zero's demonstrations: questions begin at a document that the proposer reads."""

    def __init__(self, world: World, show: Show, split: Split, seed: int) -> None:
        super().__init__(world, show, split, seed, HOPS, dr_zero_scripts.asked)
        by_sentence = {fact.sentence: fact for fact in self.usable}
        self.sources: dict[int, list[tuple[dict[str, str], list[Chain]]]] = {hops: [] for hops in HOPS}
        for row in corpus.documents(world):
            here = set(dr_zero_scripts.facts_in(row, by_sentence))
            for hops in HOPS:
                if found := [chain for chain in self.chains[hops] if chain[0] in here]:
                    self.sources[hops].append((row, found))

    def _chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def propose(self, hops: int, habits: Habits | None = None) -> Script:
        """A proposer's episode on a document; with habits, bad play with the given probabilities."""
        done = 1 if habits is not None and hops > 1 and self._chance(habits.lazy) else hops
        document, found = pick(self.sources[hops], self.rng)
        chain = pick(found, self.rng)[:done]
        answer, thinks = None, True
        if habits is not None:
            if self._chance(habits.unanswered):
                answer = ""
            elif self._chance(habits.wrong):
                passed = {chain[0].entity, *(fact.value for fact in chain)}
                near = sorted({fact.value for each in found for fact in each[:1]} - passed)
                answer = pick(near, self.rng) if near else None
            elif self._chance(habits.invented):
                answer = pick([name for name in self.names if name not in document["text"]], self.rng)
            elif self._chance(habits.thoughtless):
                thinks = False
        return dr_zero_scripts.proposer(document, hops, chain, self.show, answer, thinks)


def texts(world: World) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The exam: SSP's questions of one and two hops."""
    rows = [row for row in question_sets(world)["held_out"] if row["kind"] in KINDS[: len(HOPS)]]
    return {"dr_zero/questions_held_out.jsonl": rows}


def makers(world: World, show: Show, *, split: Split, seed: int, with_habits: bool) -> Makers:
    """Functions that draw a demonstration, by kind."""
    demos = DrZeroDemonstrations(world, show, split, seed)
    habits = HABITS if with_habits else None
    made: Makers = {}
    for hops in HOPS:
        made[f"solve {hops}"] = lambda hops=hops: demos.solve(hops, habits)
        made[f"propose {hops}"] = lambda hops=hops: demos.propose(hops, habits)
    return made
