"""What a step of Dr. Zero and its memory hold: passages, pairs, proposals, attempts, and the place in an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scope_jax.games.dr_zero.options import DrZeroSection
from scope_jax.play.samples import Sample
from scope_jax.play.step import Memory

Phase = Literal["proposer", "data", "solver"]


@dataclass(frozen=True)
class Passage:
    """What a proposer writes a pair about."""

    id: str
    """Of its row."""
    text: str
    """As the proposer reads it: title and text, cut off."""
    hops: int
    """h: how many facts the question should take."""


@dataclass(frozen=True)
class QuestionPair:
    """A question for the solver with the proposer's answer."""

    question: str
    """"" if the proposer wrote none."""
    answer: str
    """"" if the proposer gave none."""
    passage: str
    """The id of its passage."""
    hops: int
    """Those of its passage."""

    @property
    def plain(self) -> dict[str, Any]:
        """As plain data, for episodes and the memory."""
        return {"question": self.question, "answer": self.answer, "passage": self.passage, "hops": self.hops}

    @staticmethod
    def of(row: Mapping[str, Any]) -> QuestionPair:
        """The pair of `plain`."""
        return QuestionPair(row["question"], row["answer"], row["passage"], row["hops"])


@dataclass(frozen=True)
class SolverAttempt:
    """One answer of the solver."""

    pair: QuestionPair
    """What it was asked."""
    sample: Sample
    """Its episode."""
    prediction: str | None
    """Its answer; None if there is none."""
    right: bool
    """Whether it is that of the pair."""
    searches: int
    """How many it ran."""


@dataclass(frozen=True)
class FormatScore:
    """How well a proposal keeps the format; all values are in 0..1."""

    think: float
    """Share of its turns that begin with a closed thought."""
    tool: float
    """Whether it searched as often as the hops take."""
    answer: float
    """Whether its answer is short, and stands in what it read."""
    total: float
    """(1 + think + tool + answer)/4; 0 for a malformed pair."""


@dataclass(frozen=True)
class PairProposal:
    """One episode of the proposer."""

    sample: Sample
    """The episode."""
    pair: QuestionPair
    """What it wrote, with the question cut off."""
    format: FormatScore
    """How well the episode keeps the format."""
    searches: int
    """How many it ran."""
    attempts: tuple[SolverAttempt, ...] = ()
    """The solver's at a well-formed pair; none before, or of a malformed one."""

    @property
    def right(self) -> int:
        """k: how many attempts are right."""
        return sum(attempt.right for attempt in self.attempts)

    @property
    def solved(self) -> float | None:
        """k/n; None without attempts."""
        return self.right / len(self.attempts) if self.attempts else None


@dataclass(frozen=True)
class PhasePosition:
    """Where a run is: what the memory holds."""

    iteration: int
    """The number of the iteration, from 1."""
    phase: Phase = "proposer"
    """What its next step does: train the proposer, write pairs, or train the solver."""
    place: int = 0
    """Steps of the phase before it."""
    pairs: tuple[QuestionPair, ...] = ()
    """Those written in this iteration."""

    @staticmethod
    def of(memory: Memory) -> PhasePosition:
        """The position that a memory holds."""
        pairs = tuple(QuestionPair.of(row) for row in memory["pairs"])
        return PhasePosition(memory["iteration"], memory["phase"], memory["place"], pairs)

    @property
    def memory(self) -> Memory:
        """The memory that holds it."""
        pairs = [pair.plain for pair in self.pairs]
        return {"iteration": self.iteration, "phase": self.phase, "place": self.place, "pairs": pairs}

    def after(self, card: DrZeroSection, batch: int, new: Sequence[QuestionPair]) -> PhasePosition:
        """The position after a step that has written these pairs.

        Pairs are written until the solver's steps have enough, or the passages of the iteration are used up; the solver
        is trained until all pairs are used. Without a pair the next iteration begins.
        """
        steps = self.place + 1
        enough = card.steps * batch
        pairs = (*self.pairs, *new)[:enough]
        left = {
            "proposer": card.steps - steps,
            "data": min(enough - len(pairs), card.partition - steps * batch),
            "solver": len(pairs) - steps * batch,
        }
        if left[self.phase] > 0:
            return replace(self, place=steps, pairs=pairs)
        if self.phase == "proposer":
            return replace(self, phase="data", place=0, pairs=pairs)
        if self.phase == "data" and pairs:
            return replace(self, phase="solver", place=0, pairs=pairs)
        return PhasePosition(self.iteration + 1)
