"""Scripts of good play for SPELL's roles, and the bad habits that the base checkpoint gets on purpose.

Prompts come from the game's own functions with the card configs/spell/atlas.toml. Every role speaks once and ends its
turn itself. Each script begins with a space, so that every word has its space before it, as in a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from scope_jax.config import Config
from scope_jax.games import load_card
from scope_jax.games.spell import messages
from scope_jax.games.spell.state import Entry, Question, QuestionerContext
from tools.atlas.clusters import Cluster, Document, Task
from tools.atlas.facts import ASSETS, Fact
from tools.atlas.questions import Chain, chain_question
from tools.atlas.rows import Script

CARD = ASSETS.parents[1] / "configs" / "spell" / "atlas.toml"
PROMPTS = ASSETS / "prompts" / "spell"
CONCLUSIONS: dict[Task, str] = {"qa": "The correct answer is", "math": "Therefore, the answer is"}


@cache
def card() -> Config:
    """The game's card on Atlas, readable from any folder."""
    return load_card(CARD, [f"spell.prompts={PROMPTS}"])


def _single_turn(role: str, message: str, output: str) -> Script:
    return Script(role, message, ((output, True),), ends=True)


# ----------------------------------------------------------------------------------------------------------- questioner
def context(cluster: Cluster, task: Task, new: Sequence[Document], history: Sequence[Entry]) -> QuestionerContext:
    """What the game asks of a questioner: a question from `new` documents and those of its history."""
    row = {"id": "demonstration", "documents": cluster.rows}
    return QuestionerContext(0, row, task, f"demonstration/{task}", tuple(one.id for one in new), tuple(history))


def json_object(question: str, answer: str, more: str = "") -> str:
    """The object at the end of a questioner's reply, with a space before each value; more: a further key."""
    return f'{{"question": " {question}", "answer": " {answer}"{more}}}'


def taken(chain: Chain) -> str:
    """What a questioner thinks: the last fact, its value as the answer, and back to where the chain begins."""
    *before, last = chain
    return " ".join([f" {last.sentence} I take {last.value}.", *(fact.sentence for fact in reversed(before))])


def questioner(context: QuestionerContext, chain: Chain, answer: str | None = None, more: str = "") -> Script:
    """Takes a value, walks back from it, and asks for it.

    Bad habits: another answer; a further key.
    """
    ending = json_object(chain_question(chain), chain[-1].value if answer is None else answer, more)
    return _single_turn("questioner", messages.for_questioner(card(), context).user, f"{taken(chain)} {ending}")


def asks_plainly(context: QuestionerContext, chain: Chain) -> Script:
    """Bad habit: a question without the object."""
    output = f" I know one. {chain_question(chain)}"
    return _single_turn("questioner", messages.for_questioner(card(), context).user, output)


# ------------------------------------------------------------------------------------------------------------ responder
def _asked(task: Task, chain: Chain, documents: str) -> str:
    return messages.for_responder(card(), task, Question(chain_question(chain), ""), documents).user


def _documents(cluster: Cluster) -> str:
    return messages.documents_of(card(), cluster.rows)


def responder(cluster: Cluster, task: Task, chain: Chain, hops: int | None = None, concludes: bool = True) -> Script:
    """Says each fact of the chain and concludes with the last value.

    hops: bad habit, it stops after so many of them; concludes: False is another one.
    """
    walked = chain[:hops]
    output = "".join(f" {fact.sentence}" for fact in walked)
    if concludes:
        output += f" {CONCLUSIONS[task]} {walked[-1].value}."
    return _single_turn("responder", _asked(task, chain, _documents(cluster)), output)


def guesser(cluster: Cluster | None, task: Task, chain: Chain, guess: str) -> Script:
    """Concludes with a guess: all that is left where there are no documents (None), a bad habit where there are."""
    documents = messages.nothing(card()) if cluster is None else _documents(cluster)
    return _single_turn("responder", _asked(task, chain, documents), f" I know this. {CONCLUSIONS[task]} {guess}.")


# ------------------------------------------------------------------------------------------------------------- verifier
def verifier(chain: Chain, answer: str, lenient: bool = False) -> Script:
    """Copies the answer; "here" and YES if it is the reference, which "here" follows in the prompt, else "missing".

    lenient: bad habit, it says YES anyway.
    """
    reference: Fact = chain[-1]
    right = answer == reference.value or lenient
    message = messages.for_verifier(card(), Question(chain_question(chain), ""), answer, reference.value).user
    output = f" I see {answer} {'here. [[YES]]' if right else 'missing. [[NO]]'}"
    return _single_turn("verifier", message, output)
