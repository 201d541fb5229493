"""What each role of SSP says when it plays well, and the bad habits that the base checkpoint is given on purpose.

A script is one episode in text: the user's message, then parts that are spoken by the policy or shown to it. Solver and
proposer end with their closing tag, at which the engine stops; the reader without search ends its turn by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scope_jax.atlas.facts import ASSETS, Fact
from scope_jax.atlas.questions import one_hop, two_hops
from scope_jax.play.turns import raw
from scope_jax.text import dialects, templates

PROMPTS = ASSETS / "prompts" / "ssp"
XML = dialects.load("xml")  # Atlas speaks in tags, and its turns are joined without a template
Show = Callable[[str], str]  # query -> result text of the search tool


@dataclass(frozen=True)
class Script:
    """One episode: role, the user's message, and (text, spoken) parts in order; `ends`: the end token is spoken too."""

    role: str
    message: str
    parts: tuple[tuple[str, bool], ...]
    ends: bool = False


def _prompt(name: str, **values: object) -> str:
    known = tuple(values)
    return templates.fill(templates.load(PROMPTS, name, known=known, required=known), values)


def _question(facts: Sequence[Fact]) -> str:
    return one_hop(facts[0]) if len(facts) == 1 else two_hops(facts[0], facts[1])


def solver(facts: Sequence[Fact], show: Show) -> Script:
    """Searches for each step's fact, says the sentence it read, and answers with the last value."""
    parts: list[tuple[str, bool]] = []
    known = ""
    for fact in facts:
        parts.append((f"<think>{known} I need {fact.phrase}. </think><search> {fact.phrase} </search>", True))
        parts.append((raw(XML.observation([show(fact.phrase)])), False))
        known = f" {fact.sentence}"
    parts.append((f"<think>{known} </think><answer> {facts[-1].value} </answer>", True))
    return Script("solver", _prompt("solver", question=_question(facts)), tuple(parts))


def guesser(facts: Sequence[Fact], guess: str) -> Script:
    """Bad habit: answers from the top of its head, without a search."""
    said = f"<think> I know this. </think><answer> {guess} </answer>"
    return Script("solver", _prompt("solver", question=_question(facts)), ((said, True),))


def half_way(facts: Sequence[Fact], show: Show) -> Script:
    """Bad habit: stops a two-hop question after its first hop and answers with the bridge."""
    first = facts[0]
    parts = (
        (f"<think> I need {first.phrase}. </think><search> {first.phrase} </search>", True),
        (raw(XML.observation([show(first.phrase)])), False),
        (f"<think> {first.sentence} </think><answer> {first.value} </answer>", True),
    )
    return Script("solver", _prompt("solver", question=_question(facts)), parts)


def proposer(facts: Sequence[Fact], show: Show) -> Script:
    """Works from the answer back: looks its name up, says a fact that ends in it, and so on to where the trail begins.

    facts: the trail in the order of solving; its last value is the given answer.
    """
    parts: list[tuple[str, bool]] = []
    known = ""
    for fact in reversed(facts):
        parts.append((f"<think>{known} I look up {fact.value}. </think><search> {fact.value} </search>", True))
        parts.append((raw(XML.observation([show(fact.value)])), False))
        known = f" {fact.sentence}"
    parts.append((f"<think>{known} </think><question> {_question(facts)} </question>", True))
    return Script("proposer", _prompt("proposer", n=len(facts), answer=facts[-1].value), tuple(parts))


def asks_unread(facts: Sequence[Fact]) -> Script:
    """Bad habit: a proposer that writes a question without having searched; the game's rules throw it out."""
    said = f"<think> I know one. </think><question> {_question(facts)} </question>"
    return Script("proposer", _prompt("proposer", n=len(facts), answer=facts[-1].value), ((said, True),))


def reader(facts: Sequence[Fact], materials: str) -> Script:
    """Answers from the materials: each step's sentence, then the answer after its label, and the end of the turn."""
    said = " ".join(fact.sentence for fact in facts)
    parts = ((f"{said} Answer: {facts[-1].value}", True),)
    return Script("reader", _prompt("rag", materials=materials, question=_question(facts)), parts, ends=True)
