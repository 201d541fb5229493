"""Random demonstrations of SCOPE's roles: tasks, good and bad play, the judge's verdicts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tools.atlas import scope_scripts, tasks
from tools.atlas.corpus import documents
from tools.atlas.facts import World
from tools.atlas.rows import Makers, Script, Show, Split, pick
from tools.atlas.scope_scripts import CARD as CARD
from tools.atlas.tasks import KINDS, MOST_ENTITIES, SENTENCE, TOLD, Entity

_WORD = re.compile(r"\w+")
MOST_SEARCHES = 2  # that a challenger is asked for, as in configs/scope/atlas.toml
VAGUE = ("it", "this", "something", "a place")  # subjects of tasks that name nothing


@dataclass(frozen=True)
class ReportHabits:
    """Share of the demonstrations that show each bad habit; the rest show good play. Habits are exclusive and tried in
    this order.

    guess, guess_sure: a solver answers without searching, by default and for tasks of the kinds in `sure`. half_way: a
    solver asked about several entities stops after the first. short: a solver gives one sentence per entity. ramble: a
    solver repeats everything. vague: a challenger names nothing. unread: a challenger does not search. drift: a
    challenger looks up something that its source does not mention, and sets its task on that.
    """

    sure: frozenset[str]
    guess_sure: float
    guess: float
    half_way: float
    short: float
    ramble: float
    vague: float
    unread: float
    drift: float


HABITS = ReportHabits(
    sure=frozenset({"long_form_qa", "summarization"}),
    guess_sure=0.7,
    guess=0.25,
    half_way=0.35,
    short=0.3,
    ramble=0.35,
    vague=0.15,
    unread=0.15,
    drift=0.2,
)
# demonstrations of each kind in one step: most are the judge's, whose errors limit the whole game
READ_ROWS: Mapping[str, int] = {
    "challenge": 6,
    "report": 10,
    "gate entity": 2,
    "gate relevance": 16,
    "rubric": 8,
    "grade": 26,
}
PLAY_ROWS: Mapping[str, int] = {
    "challenge": 8,
    "report": 16,
    "gate entity": 1,
    "gate relevance": 12,
    "rubric": 6,
    "grade": 20,
}
STEPS: tuple[int, int] = (640, 160)  # of stage "read" and of stage "play"
NUDGES = ("nudge_score", "nudge_rubrics", "search_not_run")
EXTRA_TEXTS: tuple[str, ...] = (
    *((tasks.PROMPTS / f"{name}.txt").read_text(encoding="utf-8") for name in NUDGES),
    " I know this. I know one. ",
)
PIECES: tuple[str, ...] = ()


class SCOPEDemonstrations:
    """Draws SCOPE's demonstrations: from entities that a search for their name finds, and the names in their documents.

    show: the search tool with one document per query, as in the card. split: "train" excludes everything held out.
    """

    def __init__(self, world: World, show: Show, split: Split, seed: int) -> None:
        self.show = lru_cache(maxsize=None)(show)
        self.rng = np.random.default_rng(seed)
        every = tasks.entities(world).values()
        fits = {
            "all": lambda entity: True,
            "train": lambda entity: tasks.trains(world, entity),
            "held_out": lambda entity: entity.name in world.held_out,
        }[split]
        fit = [entity for entity in every if fits(entity)]
        self.entities = {entity.name: entity for entity in fit if entity.row["text"] in self.show(entity.name)}
        self._all = list(self.entities.values())
        rows = zip(world.names, documents(world), strict=True)
        # names that may be looked up: a challenger can tell only from its document whether a name is an entity
        self._readable = {
            name for name, row in rows if not (split == "train" and world.held_out & set(_WORD.findall(row["text"])))
        }
        self._sources = [entity for entity in self._all if len(self._near(entity)) >= MOST_SEARCHES]
        self._values: dict[str, list[str]] = {}
        for entity in self._all:
            for sentence in entity.sentences:
                attribute, _, value = SENTENCE.findall(sentence)[0]
                self._values.setdefault(attribute, []).append(value)
        self._values = {attribute: sorted(set(values)) for attribute, values in self._values.items()}

    # ---------------------------------------------------------------------------------------------------- random draws
    def _near(self, entity: Entity) -> list[str]:
        return [name for name in entity.neighbours if name in self._readable]

    def _far(self, entity: Entity) -> Entity:
        """A random entity that the document does not mention."""
        while (other := pick(self._all, self.rng)).name in entity.names:
            pass
        return other

    def _some(self, items: Sequence[str], count: int) -> list[str]:
        return [items[int(i)] for i in self.rng.permutation(len(items))[:count]]

    def _upto(self, most: int) -> int:
        return int(self.rng.integers(1, most + 1))

    def _chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def _company(self) -> list[Entity]:
        """One to three entities; the others come from the first one's document or, occasionally, from anywhere."""
        first = pick(self._sources, self.rng)
        wanted = self._upto(MOST_ENTITIES)
        near = self._some([name for name in self._near(first) if name in self.entities], wanted - 1)
        chosen = {first.name: first, **{name: self.entities[name] for name in near if not self._chance(0.2)}}
        while len(chosen) < wanted:
            other = self._far(first)
            chosen[other.name] = other
        return list(chosen.values())

    def _taken(self, source: Entity, looked_up: Sequence[str]) -> list[Entity]:
        """The entities of a task: the source and the entities that were looked up; fewer in one of five cases."""
        found = [self.entities[name] for name in looked_up if name in self.entities]
        return [source, *(found[: int(self.rng.integers(len(found) + 1))] if self._chance(0.2) else found)]

    def _other_value(self, sentence: str) -> str:
        """The sentence with another value of the same kind."""
        attribute, entity, value = SENTENCE.findall(sentence)[0]
        others = [other for other in self._values[attribute] if other not in (value, entity)]
        return f"The {attribute} of {entity} is {others[int(self.rng.integers(len(others)))]}."

    # ------------------------------------------------------------------------------------------------ one script each
    def challenge(self, habits: ReportHabits | None = None) -> Script:
        """A challenger's episode; with habits, bad play with the given probabilities."""
        source, kind = pick(self._sources, self.rng), pick(KINDS, self.rng)
        searches = self._upto(MOST_SEARCHES)
        if habits is not None:
            if self._chance(habits.vague):
                return scope_scripts.sets_unread(source, kind, searches, pick(VAGUE, self.rng))
            if self._chance(habits.unread):
                return scope_scripts.sets_unread(source, kind, searches, source.name)
            if self._chance(habits.drift):
                away = [self._far(source).name for _ in range(searches)]
                return scope_scripts.challenger(source, kind, searches, away, away[-1:], self.show)
        looked_up = self._some(self._near(source), searches)
        taken = [entity.name for entity in self._taken(source, looked_up)]
        return scope_scripts.challenger(source, kind, searches, looked_up, taken, self.show)

    def report(self, habits: ReportHabits | None = None) -> Script:
        """A solver's episode; with habits, bad play with the given probabilities."""
        asked, kind = self._company(), pick(KINDS, self.rng)
        looked_up, told, times = len(asked), TOLD, 1
        if habits is not None:
            if self._chance(habits.guess_sure if kind in habits.sure else habits.guess):
                invented = [[self._other_value(sentence) for sentence in entity.sentences[:TOLD]] for entity in asked]
                return scope_scripts.guesser(kind, asked, invented)
            if len(asked) > 1 and self._chance(habits.half_way):
                looked_up = 1
            elif self._chance(habits.short):
                told = 1
            elif self._chance(habits.ramble):
                times = 2
        return scope_scripts.solver(kind, asked, looked_up, told, times, self.show)

    def gate_entity(self) -> Script:
        """A verdict of the entity gate; three in five tasks name entities."""
        if self._chance(0.4):
            return scope_scripts.entity_gate(tasks.task(pick(KINDS, self.rng), [pick(VAGUE, self.rng)]), ())
        names = [entity.name for entity in self._company()]
        return scope_scripts.entity_gate(tasks.task(pick(KINDS, self.rng), names), names)

    def gate_relevance(self) -> Script:
        """A verdict of the relevance gate; half of the tasks are about the source or a name in it, some about more."""
        source = pick(self._sources, self.rng)
        near = self._some(self._near(source), self._upto(MOST_SEARCHES))
        if self._chance(0.5):
            draw = self.rng.random()
            names = [source.name, *near] if draw < 0.5 else [source.name, *near[:-1]] if draw < 0.75 else near
            if len(names) < MOST_ENTITIES and self._chance(0.2):
                names = self._some([*names, self._far(source).name], MOST_ENTITIES)
        else:
            names = [self._far(source).name for _ in range(self._upto(MOST_ENTITIES))]
        return scope_scripts.relevance_gate(source, tasks.task(pick(KINDS, self.rng), names), names)

    def write_rubric(self) -> Script:
        """The rubric of a challenger's task: set in good play, without a search, or (one in ten) off the source."""
        source = pick(self._sources, self.rng)
        read = self._some(self._near(source), self._upto(MOST_SEARCHES))
        draw = self.rng.random()
        if draw < 0.1:
            asked = [self._far(source)]
            read = [self._far(source).name for _ in read[1:]] + [asked[0].name]
        elif draw < 0.2:
            asked, read = [source], []
        else:
            asked = self._taken(source, read)
        text = tasks.task(pick(KINDS, self.rng), [entity.name for entity in asked])
        return scope_scripts.rubric_writer(source, text, asked, [self.show(name) for name in read])

    def grade(self) -> Script:
        """A grader's verdict on a solver's answer, which may omit entities, be short, repeat itself or be invented.

        Two in five criteria are met, two in five find another value, the rest find nothing.
        """
        asked = self._company()
        told = [list(entity.sentences[: self._upto(TOLD)]) for entity in asked]
        if self._chance(0.25):
            told[1:] = [[] for _ in told[1:]]
        text = tasks.task(pick(KINDS, self.rng), [entity.name for entity in asked])
        items = [criterion for _, criterion in tasks.rubric(asked)]
        stated = {sentence for sentences in told for sentence in sentences}
        given = [item for item in items if tasks.fact_of(item) in stated]
        lacking = [item for item in items if tasks.fact_of(item) not in stated]
        draw = self.rng.random()
        criterion = pick(lacking if draw < 0.2 and lacking else given, self.rng)
        wanted = tasks.fact_of(criterion)
        invented = 0.9 if self._chance(0.3) else 0.15

        def put(sentence: str) -> str:
            wrong = 0.2 <= draw < 0.6 if sentence == wanted else self._chance(invented)
            return self._other_value(sentence) if wrong else sentence

        lines = [
            (entity.name, [put(sentence) for sentence in own]) for entity, own in zip(asked, told, strict=True) if own
        ]
        times = 2 if self._chance(0.15) else 1
        return scope_scripts.grader(text, tasks.report(lines * times), criterion)


def texts(world: World) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The challenger's documents, and both sets of tasks."""
    sets = {f"tasks_{name}.jsonl": rows for name, rows in tasks.task_sets(world).items()}
    return {"documents.jsonl": tasks.source_documents(world), **sets}


def makers(world: World, show: Show, *, split: Split, seed: int, with_habits: bool) -> Makers:
    """Functions that draw a demonstration, by kind."""
    demos = SCOPEDemonstrations(world, show, split, seed)
    habits = HABITS if with_habits else None
    return {
        "challenge": lambda: demos.challenge(habits),
        "report": lambda: demos.report(habits),
        "gate entity": demos.gate_entity,
        "gate relevance": demos.gate_relevance,
        "rubric": demos.write_rubric,
        "grade": demos.grade,
    }
