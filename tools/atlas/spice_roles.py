"""Random demonstrations of SPICE's roles: the problems, good and bad play, and their frequencies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.atlas import problems, spice_scripts
from tools.atlas.facts import Fact, World
from tools.atlas.problems import KINDS_OF, NAMED, Facts, Problem, exchanged
from tools.atlas.rows import Makers, Script, Show, Split, pick
from tools.atlas.spice_scripts import AS_LIST, BOX, FORMAT, TASK
from tools.atlas.spice_scripts import CARD as CARD

KINDS = (*NAMED.values(), "number", "difference")
DOCUMENTS = 800  # that demonstrations are drawn from
PIECES: tuple[str, ...] = (*map(re.escape, (*FORMAT, *TASK, *AS_LIST, BOX)), r" ?\p{N}+")  # JSON, boxes, whole numbers
EXTRA_TEXTS: tuple[str, ...] = (" I know this.",)
HELD_OUT = {"all": None, "train": False, "held_out": True}


@dataclass(frozen=True)
class ProblemHabits:
    """Share of the demonstrations that show a bad habit; the rest show good play. One habit at a time, in this order.

    guess: a reasoner boxes a random value of the question without walking the chain. half_way: of those with more than
    one fact to say, they stop before the last one. reversed, first: of a difference they box the wrong order, or only
    the first number. unboxed: they box nothing. flags: a challenger sets both flags of a format or none. listed, empty,
    mistyped, wrong: it writes its answer as a list, no question, another type of answer, a value from the middle. lazy:
    of the others, the questions of one hop, as far as the type of the answer allows.
    """

    guess: float
    half_way: float
    reversed: float
    first: float
    unboxed: float
    flags: float
    listed: float
    empty: float
    mistyped: float
    wrong: float
    lazy: float


HABITS = ProblemHabits(
    guess=0.5,
    half_way=0.35,
    reversed=0.3,
    first=0.2,
    unboxed=0.15,
    flags=0.15,
    listed=0.08,
    empty=0.08,
    mistyped=0.1,
    wrong=0.2,
    lazy=0.8,
)
READ_ROWS: Mapping[str, int] = {  # demonstrations of each kind in one step
    "solve one hop": 2,
    "solve two hops": 4,
    "solve three hops": 4,
    "solve number": 3,
    "solve difference": 5,
    "choose": 1,
    "write string": 5,
    "write integer": 3,
    "write expression": 5,
    "choose open": 1,
    "write open": 2,
}
PLAY_ROWS: Mapping[str, int] = {
    "solve one hop": 4,
    "solve two hops": 5,
    "solve three hops": 5,
    "solve number": 4,
    "solve difference": 6,
    "choose": 2,
    "write string": 4,
    "write integer": 3,
    "write expression": 4,
    "choose open": 1,
    "write open": 2,
}
STEPS: tuple[int, int] = (400, 80)  # of stage "read" and of stage "play"


class SPICEDemonstrations:
    """Draws SPICE's demonstrations: from documents about all names, train names only, or held-out names only.

    Demonstrations about all names have random numbers, so that numbers cannot be memorised.
    """

    def __init__(self, world: World, split: Split, seed: int, documents: int = DOCUMENTS) -> None:
        self.rng = np.random.default_rng(seed)
        self._facts = Facts(world, HELD_OUT[split])
        self._renumber = split == "all"
        self._documents = [self._facts.document(self.rng) for _ in range(documents)]

    def _chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def _draw(self, kind: str, easy: bool = False, invented: bool = False) -> tuple[Sequence[Fact], Problem]:
        """A document and a problem of a kind from it; easy: with as few facts as there are for it.

        invented: with other names, and numbers, than are true.
        """
        facts, possible = pick(self._documents, self.rng)
        fit = possible[kind]
        if easy:
            fewest = min(sum(map(len, chains)) for chains in fit)
            fit = [chains for chains in fit if sum(map(len, chains)) == fewest]
        new: dict[str, str] = {}
        if self._renumber or invented:
            new |= self._facts.other_numbers(facts, self.rng)
        if invented:
            new |= self._facts.other_names(facts, self.rng)
        facts, chains = exchanged(facts, new), tuple(exchanged(chain, new) for chain in pick(fit, self.rng))
        return facts, problems.problem(facts, chains, self.rng)

    # ------------------------------------------------------------------------------------------------ one script each
    def solve(self, kind: str, habits: ProblemHabits | None = None) -> Script:
        """A reasoner's answer to a question of a kind; with habits, a bad one as often as they say."""
        _, asked = self._draw(kind)
        if habits is None:
            return spice_scripts.solver(asked)
        if self._chance(habits.guess):
            return spice_scripts.guesser(asked, pick(asked.premises, self.rng).value)
        if len(asked.facts) > 1 and self._chance(habits.half_way):
            return spice_scripts.solver(asked, hops=int(self.rng.integers(1, len(asked.facts))))
        if asked.type == "expression" and self._chance(habits.reversed):
            return spice_scripts.solver(asked, boxed=" - ".join(reversed(asked.values)))
        if asked.type == "expression" and self._chance(habits.first):
            return spice_scripts.solver(asked, boxed=asked.values[0])
        return spice_scripts.solver(asked, boxed="" if self._chance(habits.unboxed) else None)

    def choose(self, seen: bool = True, habits: ProblemHabits | None = None) -> Script:
        """A challenger's choice of a type; seen: it reads a document."""
        facts = pick(self._documents, self.rng)[0] if seen else None
        kind = pick(tuple(KINDS_OF), self.rng)
        if habits is not None and self._chance(habits.flags):
            both = self._chance(0.5)
            return spice_scripts.chooser(facts, kind, both, both)
        return spice_scripts.chooser(facts, kind)

    def write(self, kind: str | None, habits: ProblemHabits | None = None) -> Script:
        """A challenger's question with an answer of a type; None: of any type, about invented facts, with no document.

        With habits, a bad one as often as they say.
        """
        answer_type = kind or pick(tuple(KINDS_OF), self.rng)
        lazy = habits is not None and self._chance(habits.lazy)
        wanted = KINDS_OF[answer_type][0] if lazy else pick(KINDS_OF[answer_type], self.rng)
        facts, asked = self._draw(wanted, easy=lazy, invented=kind is None)
        shown = None if kind is None else facts
        if habits is None:
            return spice_scripts.writer(shown, asked)
        if self._chance(habits.listed):
            return spice_scripts.writer(shown, asked, listed=True)
        if self._chance(habits.empty):
            return spice_scripts.writer(shown, asked, empty=True)
        if self._chance(habits.mistyped):
            others = [one for one in KINDS_OF if one != answer_type]
            return spice_scripts.writer(shown, asked, kind=pick(others, self.rng))
        if self._chance(habits.wrong):
            return spice_scripts.writer(shown, asked, answer=self._other_answer(asked))
        return spice_scripts.writer(shown, asked)

    def _other_answer(self, asked: Problem) -> str:
        """A wrong one: the reversed difference, or another value of the premises, of the same form if there is any."""
        if asked.type == "expression":
            return " - ".join(reversed(asked.values))
        others = [fact for fact in asked.premises if fact.value != asked.answer]
        alike = [fact for fact in others if fact.is_number == (asked.type == "integer")]
        return pick(alike or others, self.rng).value


def texts(world: World) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The challenger's documents, and the exam."""
    return {
        "spice/documents.jsonl": problems.document_rows(world),
        "spice/questions_held_out.jsonl": problems.exam_rows(world),
    }


def makers(world: World, show: Show, *, split: Split, seed: int, with_habits: bool) -> Makers:
    """How to draw each kind of demonstration; SPICE does not search."""
    demos = SPICEDemonstrations(world, split, seed)
    habits = HABITS if with_habits else None
    made: Makers = {f"solve {kind}": lambda kind=kind: demos.solve(kind, habits) for kind in KINDS}
    made |= {f"write {kind}": lambda kind=kind: demos.write(kind, habits) for kind in KINDS_OF}
    return {
        **made,
        "choose": lambda: demos.choose(True, habits),
        "choose open": lambda: demos.choose(False, habits),
        "write open": lambda: demos.write(None, habits),
    }
