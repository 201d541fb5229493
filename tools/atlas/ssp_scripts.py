"""Scripts of good play for SSP's roles, and of the bad habits that the base checkpoint is given on purpose.

Solver and proposer end with their closing tag, at which the engine stops; the reader without search ends its turn
itself.
"""

from __future__ import annotations

from scope_jax.play.turns import raw
from scope_jax.text import dialects, templates
from tools.atlas.facts import ASSETS, Fact
from tools.atlas.questions import Chain, Choice, chain_question
from tools.atlas.rows import Script, Show

PROMPTS = ASSETS / "prompts" / "ssp"
XML = dialects.load("xml")  # Atlas uses tags, and its turns are joined without a template
Parts = tuple[tuple[str, bool], ...]


def _prompt(name: str, **values: object) -> str:
    known = tuple(values)
    return templates.fill(templates.load(PROMPTS, name, known=known, required=known), values)


def _solver(question: str, parts: Parts) -> Script:
    return Script("solver", _prompt("solver", question=question), parts)


def _look_up(known: str, fact: Fact, show: Show) -> Parts:
    """A turn that searches for a fact, and its result; known: the text written before."""
    output = f"<think>{known} I need {fact.phrase}. </think><search> {fact.phrase} </search>"
    return (output, True), (raw(XML.observation([show(fact.phrase)])), False)


def solver(chain: Chain, show: Show, hops: int | None = None) -> Script:
    """Searches for the fact of each hop, repeats the sentence it found, and answers with the last value.

    hops: bad habit, stops after this many hops and answers with the value it has.
    """
    parts: Parts = ()
    known = ""
    walked = chain[:hops]
    for fact in walked:
        parts += _look_up(known, fact, show)
        known = f" {fact.sentence}"
    parts += ((f"<think>{known} </think><answer> {walked[-1].value} </answer>", True),)
    return _solver(chain_question(chain), parts)


def chooser(choice: Choice, show: Show) -> Script:
    """Looks up the candidates in turn until one has the value; writes ":" after the value, as the question does."""
    parts: Parts = ()
    known = ""
    for fact in choice.facts[: choice.place + 1]:
        parts += _look_up(known, fact, show)
        known = f" {fact.sentence}"
    right = choice.right
    parts += ((f"<think>{known[:-1]}: {right.entity}. </think><answer> {right.entity} </answer>", True),)
    return _solver(choice.question, parts)


def guesser(question: str, guess: str) -> Script:
    """Bad habit: guesses the answer without a search."""
    return _solver(question, ((f"<think> I know this. </think><answer> {guess} </answer>", True),))


def proposer(chain: Chain, show: Show) -> Script:
    """Works back from the answer: looks up its name, repeats a fact that ends in it, and so on to the chain's start.

    The chain's last value is the given answer.
    """
    parts: Parts = ()
    known = ""
    for fact in reversed(chain):
        output = f"<think>{known} I look up {fact.value}. </think><search> {fact.value} </search>"
        parts += ((output, True), (raw(XML.observation([show(fact.value)])), False))
        known = f" {fact.sentence}"
    parts += ((f"<think>{known} </think><question> {chain_question(chain)} </question>", True),)
    return Script("proposer", _prompt("proposer", n=len(chain), answer=chain[-1].value), parts)


def asks_unread(chain: Chain) -> Script:
    """Bad habit: a proposer writes a question without having searched, which the game's rules reject."""
    output = f"<think> I know one. </think><question> {chain_question(chain)} </question>"
    return Script("proposer", _prompt("proposer", n=len(chain), answer=chain[-1].value), ((output, True),))


def reader(chain: Chain, materials: str) -> Script:
    """Answers from the materials: the sentence of each hop, then the answer after its label, then the end token."""
    output = " ".join(fact.sentence for fact in chain)
    message = _prompt("rag", materials=materials, question=chain_question(chain))
    return Script("reader", message, ((f"{output} Answer: {chain[-1].value}", True),), ends=True)
