r"""Scripts of good play for SPICE's roles, and the bad habits that the base checkpoint gets on purpose.

Prompts come from the game's own functions with the card configs/spice/atlas.toml. A name is written with a space before
it wherever it stands, in JSON and in `\boxed{}` too (the game strips it), so that it is the same token as in a
sentence. In the challenger's object the answer comes first, right behind the chain that it ends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from scope_jax.config import Config
from scope_jax.games import load_card
from scope_jax.games.spice import messages
from scope_jax.games.spice.state import Segment
from tools.atlas.facts import ASSETS, Fact
from tools.atlas.problems import Problem, text_of
from tools.atlas.rows import Script

CARD = ASSETS.parents[1] / "configs" / "spice" / "atlas.toml"
PROMPTS = ASSETS / "prompts" / "spice"
FORMAT = ('{"suitable_for_mcq":', ', "suitable_for_free_form":', ', "best_answer_type": "', '"}')
TASK = (' {"answer": "', '", "question": "', '", "answer_type": "')
AS_LIST = (' {"answer": ["', '"], "question": "')  # the first two of TASK, of an answer in a list
BOX = r" \boxed{"
DocumentFacts = Sequence[Fact] | None  # None: the challenger sees no document


@cache
def card(corpus: bool = True) -> Config:
    """The game's card on Atlas, readable from any folder."""
    return load_card(CARD, [f"spice.prompts={PROMPTS}", f"spice.corpus={str(corpus).lower()}"])


def _seen(facts: DocumentFacts) -> tuple[Config, Segment]:
    return card(facts is not None), Segment(0, "", text_of(facts or ()))


# ----------------------------------------------------------------------------------------------------------- challenger
def chooser(facts: DocumentFacts, kind: str, choice: bool = False, free: bool = True) -> Script:
    """The first stage: a type of answer. Bad habits: both flags, or none."""
    head, middle, last, end = FORMAT
    output = f"{head} {json.dumps(choice)}{middle} {json.dumps(free)}{last} {kind.title()}{end}"
    return Script("challenger", messages.for_format(*_seen(facts)).user, ((output, True),), ends=True)


def writer(
    facts: DocumentFacts,
    problem: Problem,
    *,
    answer: str | None = None,
    kind: str | None = None,
    empty: bool = False,
    listed: bool = False,
) -> Script:
    """The second stage: takes the facts of the chains and writes the question that they answer.

    Bad habits: another answer, another type of answer, no question, the answer in a list.
    """
    begin, middle = AS_LIST if listed else TASK[:2]
    question = "" if empty else f" {problem.question}"
    taken = " ".join(fact.sentence for fact in problem.facts)
    output = (
        f"{begin} {answer or problem.answer}{middle}{question}{TASK[2]} {(kind or problem.type).title()}{FORMAT[3]}"
    )
    message = messages.for_task(*_seen(facts), problem.type).user
    return Script("challenger", message, ((f"I take {taken}{output}", True),), ends=True)


# ------------------------------------------------------------------------------------------------------------- reasoner
def _reasoner(problem: Problem, output: str) -> Script:
    return Script("reasoner", messages.for_reasoner(card(), problem.question).user, ((output, True),), ends=True)


def _box(value: str) -> str:
    return f"{BOX} {value}}}"


def solver(problem: Problem, *, hops: int | None = None, boxed: str | None = None) -> Script:
    """Says the facts of the chains in turn and boxes the answer.

    Bad habits: it stops after so many hops and boxes what it has; it boxes something else, or ("") nothing.
    """
    walked = problem.facts[:hops]
    value = walked[-1].value if hops is not None else problem.answer if boxed is None else boxed
    output = " ".join(fact.sentence for fact in walked)
    return _reasoner(problem, output + (_box(value) if value else ""))


def guesser(problem: Problem, guess: str) -> Script:
    """Bad habit: boxes a value of the question without walking the chain."""
    return _reasoner(problem, f"I know this.{_box(guess)}")
