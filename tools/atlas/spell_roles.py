"""Random demonstrations of SPELL's roles: clusters, questions, good and bad play, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scope_jax.games.spell.options import options
from scope_jax.games.spell.state import Entry
from tools.atlas import clusters, spell_scripts
from tools.atlas.clusters import HOPS, TASKS, Cluster, ClusterSampler, Document, Task, chains_in, facts_of
from tools.atlas.facts import Fact, World
from tools.atlas.questions import Chain, chain_question
from tools.atlas.rows import Makers, Script, Show, Split, pick
from tools.atlas.spell_scripts import CARD as CARD

TRIES = 8  # values drawn for a wrong answer
REMEMBERED = 0.4  # share of questioners who have a history
EXTRA_KEY = ', "source": " text"'  # that a bad questioner adds to its object
PIECES: tuple[str, ...] = (r' ?\{"question": "', r'", "answer": "', r'"\}', r" ?\[\[(?:YES|NO)\]\]")
EXTRA_TEXTS: tuple[str, ...] = (" I know this. I know one. ",)


@dataclass(frozen=True)
class Habits:
    """Share of the demonstrations that show a bad habit; the rest show good play. One habit at a time, in this order.

    guess: a responder concludes with a random value of the documents; half_way: of those with more than one hop to
    walk, it stops early; silent: it does not conclude. plain, extra, zero, middle: a questioner writes no object, or a
    key too many, or (math) the answer 0, or (from two hops on) an intermediate value as the answer; easy: it asks for
    one hop, whatever it asked before. lenient: a verifier says YES to a wrong answer.
    """

    guess: float
    half_way: float
    silent: float
    plain: float
    extra: float
    zero: float
    middle: float
    easy: float
    lenient: float


HABITS = Habits(
    guess=0.45,
    half_way=0.4,
    silent=0.1,
    plain=0.1,
    extra=0.08,
    zero=0.1,
    middle=0.2,
    easy=0.6,
    lenient=0.15,
)
READ_ROWS: Mapping[str, int] = {  # demonstrations of each kind in one step
    "ask qa": 5,
    "ask math": 4,
    "answer qa": 8,
    "answer math": 6,
    "guess": 2,
    "verify": 10,
}
PLAY_ROWS: Mapping[str, int] = {
    "ask qa": 6,
    "ask math": 5,
    "answer qa": 9,
    "answer math": 7,
    "guess": 2,
    "verify": 6,
}
STEPS: tuple[int, int] = (200, 50)  # of stage "read" and of stage "play"


class SPELLDemonstrations:
    """Draws SPELL's demonstrations: from clusters, and the chains of facts in them.

    split: of the documents, see `ClusterSampler`; in "held_out" every chain begins at a held-out name.
    """

    def __init__(self, world: World, split: Split, seed: int) -> None:
        self.world, self.split = world, split
        self.rng = np.random.default_rng(seed)
        self.sampler = ClusterSampler(world, split, self.rng)
        facts = facts_of([self.sampler.document(name) for name in self.sampler.names])
        self._values: dict[str, list[str]] = {}
        for fact in facts:
            self._values.setdefault(fact.attribute, []).append(fact.value)
        self._values = {attribute: sorted(set(values)) for attribute, values in self._values.items()}

    def _chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def _task(self) -> Task:
        return pick(TASKS, self.rng)

    def _chains(self, facts: Sequence[Fact], hops: int, task: Task) -> list[Chain]:
        held_out = self.world.held_out if self.split == "held_out" else None
        return [chain for chain in chains_in(facts, hops, task) if held_out is None or chain[0].entity in held_out]

    def _drawn(self, documents: Sequence[Document], task: Task, lengths: Sequence[int]) -> Chain | None:
        """A chain in the documents of the first of these lengths that there is; None without any."""
        facts = facts_of(documents)
        for hops in lengths:
            if chains := self._chains(facts, hops, task):
                return pick(chains, self.rng)
        return None

    def _any_length(self) -> list[int]:
        return [HOPS[int(place)] for place in self.rng.permutation(len(HOPS))]

    def _question(self, task: Task) -> tuple[Cluster, Chain]:
        """A cluster, and a chain in it of any length."""
        while True:
            cluster = self.sampler.cluster(task)
            chain = self._drawn(cluster.documents, task, self._any_length())
            if chain is not None:
                return cluster, chain

    # ------------------------------------------------------------------------------------------------ one script each
    def ask(self, task: Task, habits: Habits | None = None) -> Script:
        """A questioner's episode, sometimes with a history; with habits, a bad one as often as they say."""
        while True:
            cluster = self.sampler.cluster(task)
            shuffled = [cluster.documents[int(place)] for place in self.rng.permutation(clusters.DOCUMENTS)]
            own = options(spell_scripts.card()).documents
            new, old = shuffled[:own], shuffled[own:]
            history, least = self._history(task, old) if self._chance(REMEMBERED) else ([], 0)
            context = spell_scripts.context(cluster, task, new, history)
            shown = [document for document in cluster.documents if document in new or (history and document in old)]
            longer = [hops for hops in HOPS if hops > least] + [hops for hops in reversed(HOPS) if hops <= least]
            lengths = longer if history else self._any_length()
            if habits is not None and self._chance(habits.easy):
                lengths = list(HOPS)
            chain = self._drawn(shown, task, lengths)
            if chain is None or chain_question(chain) in [entry.question for entry in history]:
                continue
            if habits is None:
                return spell_scripts.questioner(context, chain)
            return self._spoiled(context, task, chain, habits)

    def _spoiled(self, context: Any, task: Task, chain: Chain, habits: Habits) -> Script:
        if self._chance(habits.plain):
            return spell_scripts.asks_plainly(context, chain)
        if self._chance(habits.extra):
            return spell_scripts.questioner(context, chain, more=EXTRA_KEY)
        if task == "math" and self._chance(habits.zero):
            return spell_scripts.questioner(context, chain, "0")
        if len(chain) > 1 and self._chance(habits.middle):
            return spell_scripts.questioner(context, chain, chain[0].value)
        return spell_scripts.questioner(context, chain)

    def _history(self, task: Task, old: Sequence[Document]) -> tuple[list[Entry], int]:
        """What a questioner asked before, from the documents that are not new, and the hops of the last question."""
        own = options(spell_scripts.card()).documents
        entries, least = [], 0
        for place in range(int(self.rng.integers(1, options(spell_scripts.card()).history + 1))):
            read = old[place * own : (place + 1) * own]
            chain = self._drawn(read, task, self._any_length()) if read else None
            if chain is not None:
                names = tuple(document.id for document in read)
                entries.append(Entry(names, chain_question(chain), chain[-1].value))
                least = len(chain)
        return entries, least

    def answer(self, task: Task, habits: Habits | None = None) -> Script:
        """A responder's episode; with habits, a bad one as often as they say."""
        cluster, chain = self._question(task)
        if habits is not None:
            if self._chance(habits.guess):
                return spell_scripts.guesser(cluster, task, chain, self._some_value(cluster, task))
            if len(chain) > 1 and self._chance(habits.half_way):
                return spell_scripts.responder(cluster, task, chain, int(self.rng.integers(1, len(chain))))
            if self._chance(habits.silent):
                return spell_scripts.responder(cluster, task, chain, concludes=False)
        return spell_scripts.responder(cluster, task, chain)

    def _some_value(self, cluster: Cluster, task: Task) -> str:
        return pick(
            [fact.value for fact in facts_of(cluster.documents) if fact.is_number == (task == "math")], self.rng
        )

    def guess(self) -> Script:
        """A responder without documents: it concludes with some value of the attribute that is asked for."""
        task = self._task()
        _, chain = self._question(task)
        return spell_scripts.guesser(None, task, chain, pick(self._values[chain[-1].attribute], self.rng))

    def verify(self, habits: Habits | None = None) -> Script:
        """Half of the answers are right; the others are values on the way, or of other facts in the documents."""
        task = self._task()
        cluster, chain = self._question(task)
        right, begins = chain[-1].value, chain[0].entity
        wrong = [fact.value for fact in chain[:-1]] if len(chain) > 1 and self._chance(0.4) else []
        others = (self._some_value(cluster, task) for _ in range(TRIES))
        wrong = wrong or [value for value in others if value != right] or [begins]
        answer = right if self._chance(0.5) else pick(wrong, self.rng)
        return spell_scripts.verifier(chain, answer, habits is not None and self._chance(habits.lenient))


def texts(world: World) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The clusters of self-play, and the held-out questions of each task."""
    return clusters.files(world)


def makers(world: World, show: Show, *, split: Split, seed: int, with_habits: bool) -> Makers:
    """How to draw each kind of demonstration; nothing is searched."""
    demos = SPELLDemonstrations(world, split, seed)
    habits = HABITS if with_habits else None
    made: Makers = {}
    for task in TASKS:
        made[f"ask {task}"] = lambda task=task: demos.ask(task, habits)
        made[f"answer {task}"] = lambda task=task: demos.answer(task, habits)
    return {**made, "guess": demos.guess, "verify": lambda: demos.verify(habits)}
