"""Random demonstrations of SCORE's roles: queries, rubrics, good and bad reports, assessments, verdicts of the exam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scope_jax.games.score.options import options
from scope_jax.games.score.state import Constraints, Rubric
from tools.atlas import queries, score_scripts
from tools.atlas.facts import Fact, World
from tools.atlas.queries import NUMBERS, Asked
from tools.atlas.rows import Makers, Script, Show, Split, pick, some
from tools.atlas.score_scripts import CARD as CARD
from tools.atlas.score_scripts import Claim, Written

WEIGHTS = ("0.1", "0.2", "0.3", "0.4", "0.5")  # within the bounds of the card's harness
TOO_HEAVY = ("0.7", "0.9")  # and out of them
SOURCED, CONCLUDING, WHOLE = "citation_effectiveness", "coherence", "completeness"


@dataclass(frozen=True)
class Habits:
    """Share of the demonstrations that show each bad habit; the rest show good play. Pairs: without and with the
    dimension in the rubric, which a solver heeds.

    guess: a solver answers without searching. half_way (completeness): of the others, it stops after one search;
    invent: of these, it makes up what it did not look up instead of leaving it out. uncited (citation_effectiveness)
    and open_ended (coherence): of those who search, each on its own: no sources, no conclusion. few, many, heavy: an
    evaluator's rubric has a dimension too few, one too many, or a weight out of bounds, one after the other.
    """

    guess: float
    half_way: tuple[float, float]
    invent: float
    uncited: tuple[float, float]
    open_ended: tuple[float, float]
    few: float
    many: float
    heavy: float


HABITS = Habits(
    guess=0.5,
    half_way=(0.6, 0.3),
    invent=0.5,
    uncited=(0.4, 0.1),
    open_ended=(0.4, 0.1),
    few=0.15,
    many=0.15,
    heavy=0.2,
)
READ_ROWS: Mapping[str, int] = {"report": 4, "assess": 6, "grade": 5, "rubric": 2}  # demonstrations in one step
PLAY_ROWS: Mapping[str, int] = {"report": 8, "assess": 5, "grade": 4, "rubric": 3}
STEPS: tuple[int, int] = (200, 50)  # of stage "read" and of stage "play"
EXTRA_TEXTS: tuple[str, ...] = ((score_scripts.PROMPTS / "nudge_score.txt").read_text(encoding="utf-8"),)
PIECES: tuple[str, ...] = (
    r" ?</?(?:observation|dimensions|report_evaluations|report|verification|gap_analysis|citations|scores)>",
    r'<report id="1">|<(?:dim name|score dim|citation source)="|"/>|" weight="0\.[0-9]"/>|" value="[0-9]"/>',
    r'" verdict="(?:supported|unsupported)"/>',
    r" ?citation_effectiveness",
)


class SCOREDemonstrations:
    """Draws SCORE's demonstrations: names that a search finds, their facts, values to invent."""

    def __init__(self, world: World, show: Show, split: Split, seed: int) -> None:
        self.show = show
        self.rng = np.random.default_rng(seed)
        self.pool = options(score_scripts.card()).pool[1:]  # without the base
        about = queries.askable(world, split)
        self.about = {name: facts for name, facts in about.items() if all(f.sentence in show(name) for f in facts)}
        values: dict[str, set[str]] = {}
        for facts in self.about.values():
            for fact in facts:
                values.setdefault(fact.attribute, set()).add(fact.value)
        self._values = {attribute: sorted(known) for attribute, known in values.items()}

    # ---------------------------------------------------------------------------------------------------- random draws
    def _chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def asked(self) -> Asked:
        """A random query."""
        return queries.drawn(self.about, self.rng)

    def rubric(self) -> Rubric:
        """A valid rubric of two to four dimensions."""
        count = int(self.rng.integers(1, len(self.pool) + 1))
        return score_scripts.rubric_of(
            {name: float(weight) for name, weight in self._weighted(count, Constraints((), (), ()))}
        )

    def _weighted(self, count: int, constraints: Constraints) -> list[tuple[str, str]]:
        """So many dimensions beside the base with weights, in the order of the pool; as the scheduler wants it."""
        free = [name for name in self.pool if name not in (*constraints.required, *constraints.avoided)]
        order = [*constraints.required, *some(free, len(free), self.rng), *constraints.avoided]
        return [(name, pick(WEIGHTS, self.rng)) for name in self.pool if name in order[:count]]

    def _other_value(self, fact: Fact) -> str:
        others = [value for value in self._values[fact.attribute] if value not in (fact.value, fact.entity)]
        return pick(others, self.rng) if others else fact.entity

    # --------------------------------------------------------------------------------------------------------- reports
    def _good(self, asked: Asked) -> Written:
        return Written(asked, tuple(Claim(i, fact.value, fact.entity) for i, fact in enumerate(asked.facts)))

    def _guessed(self, asked: Asked) -> Written:
        return Written(asked, tuple(self._invented(asked, i) for i in range(len(NUMBERS))))

    def _invented(self, asked: Asked, place: int) -> Claim:
        """A random value of the right kind, which may be right by chance."""
        return Claim(place, pick(self._values[asked.facts[place].attribute], self.rng), None)

    def _bad(self, asked: Asked, rubric: Rubric, habits: Habits) -> tuple[Written, int]:
        """A report with the given shares of bad habits, and how many searches come before it."""
        if self._chance(habits.guess):
            return self._guessed(asked), 0
        written, searches = self._good(asked), 2
        claims = list(written.claims)
        if self._chance(habits.half_way[WHOLE in rubric.weights]):
            searches, read = 1, asked.names[0]
            claims = [claim for claim in claims if claim.source == read]
            if self._chance(habits.invent):
                claims += [self._invented(asked, place) for place in range(len(claims), len(NUMBERS))]
        if self._chance(habits.uncited[SOURCED in rubric.weights]):
            claims = [Claim(claim.place, claim.value, None) for claim in claims]
        return Written(
            asked, tuple(claims), not self._chance(habits.open_ended[CONCLUDING in rubric.weights])
        ), searches

    def _mixed(self, asked: Asked) -> Written:
        """A report for the evaluator: each fact left out, wrong or right, with a source or without."""
        left = self.rng.random(len(NUMBERS)) > (0.3 if self._chance(0.5) else 0.0)
        wrong = 0.9 if self._chance(0.25) else 0.3
        cites = self._chance(0.7)
        claims = []
        for place, fact in enumerate(asked.facts):
            value = self._other_value(fact) if self._chance(wrong) else fact.value
            source = fact.entity if cites != self._chance(0.1) else None
            claims.append(Claim(place, value, source))
        kept = tuple(claim for claim, stays in zip(claims, left, strict=True) if stays) or tuple(claims[:1])
        return Written(asked, kept, self._chance(0.7))

    # ------------------------------------------------------------------------------------------------ one script each
    def report(self, habits: Habits | None = None) -> Script:
        """A solver's episode; with habits, a bad one as often as they say."""
        asked, rubric = self.asked(), self.rubric()
        written, searches = (self._good(asked), 2) if habits is None else self._bad(asked, rubric, habits)
        return score_scripts.solver(written, rubric, searches, self.show)

    def assess(self) -> Script:
        """An evaluator's assessment, of a report as solvers write them or of a random mixture."""
        asked, rubric = self.asked(), self.rubric()
        written = self._mixed(asked) if self._chance(0.6) else self._bad(asked, rubric, HABITS)[0]
        return score_scripts.assessor(written, rubric, int(self.rng.integers(1, 3)), self.show)

    def write_rubric(self, habits: Habits | None = None) -> Script:
        """An evaluator's rubric; with habits, a malformed one as often as they say."""
        required = some(self.pool, 1, self.rng) if self._chance(0.4) else []
        left = [name for name in self.pool if name not in required]
        avoided = some(left, 1, self.rng) if self._chance(0.2) else []
        constraints = Constraints(tuple(required), tuple(avoided), ())
        k = int(self.rng.integers(2, len(self.pool) + 2))
        count, heavy = k - 1, False
        if habits is not None:
            if self._chance(habits.few):
                count -= 1
            elif self._chance(habits.many):
                count += 1
            else:
                heavy = self._chance(habits.heavy)
        items = self._weighted(min(count, len(self.pool)), constraints)
        if heavy:
            items[-1] = (items[-1][0], pick(TOO_HEAVY, self.rng))
        base = score_scripts.rubric_of({}).base
        return score_scripts.rubric_writer(self.asked(), constraints, k, [(base, None), *items])

    def grade(self) -> Script:
        """The exam's verdict on one fact of a report."""
        asked = self.asked()
        written = self._mixed(asked) if self._chance(0.7) else self._bad(asked, self.rubric(), HABITS)[0]
        return score_scripts.grader(written, int(self.rng.integers(len(NUMBERS))))


def texts(world: World) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The queries of self-play, and those of the exam with the facts they ask for."""
    sets = queries.query_sets(world)
    return {"score/queries.jsonl": sets["train"], "score/queries_held_out.jsonl": sets["held_out"]}


def makers(world: World, show: Show, *, split: Split, seed: int, with_habits: bool) -> Makers:
    """Functions that draw a demonstration, by kind."""
    demos = SCOREDemonstrations(world, show, split, seed)
    habits = HABITS if with_habits else None
    return {
        "report": lambda: demos.report(habits),
        "assess": demos.assess,
        "grade": demos.grade,
        "rubric": lambda: demos.write_rubric(habits),
    }
