"""Scripts of good play for SSP's roles, and of the bad habits that the base checkpoint is given on purpose.

Solver and proposer end with their closing tag, at which the engine stops; the reader without search ends its turn
itself.
"""

from __future__ import annotations

from scope_jax.text import templates
from tools.atlas.chains import Parts, search
from tools.atlas.facts import ASSETS
from tools.atlas.questions import Chain, Choice, chain_question
from tools.atlas.rows import Script, Show

PROMPTS = ASSETS / "prompts" / "ssp"


def _prompt(name: str, **values: object) -> str:
    known = tuple(values)
    return templates.fill(templates.load(PROMPTS, name, known=known, required=known), values)


def asked(question: str) -> str:
    """The solver's prompt."""
    return _prompt("solver", question=question)


def chooser(choice: Choice, show: Show) -> Script:
    """Looks up the candidates in turn until one has the value; writes ":" after the value, as the question does."""
    parts: Parts = ()
    known = ""
    for fact in choice.facts[: choice.place + 1]:
        parts += search(f"{known} I need {fact.phrase}.", fact.phrase, show)
        known = f" {fact.sentence}"
    right = choice.right
    parts += ((f"<think>{known[:-1]}: {right.entity}. </think><answer> {right.entity} </answer>", True),)
    return Script("solver", asked(choice.question), parts)


def proposer(chain: Chain, show: Show) -> Script:
    """Works back from the answer: looks up its name, repeats a fact that ends in it, and so on to the chain's start.

    The chain's last value is the given answer.
    """
    parts: Parts = ()
    known = ""
    for fact in reversed(chain):
        parts += search(f"{known} I look up {fact.value}.", fact.value, show)
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
