"""Scripts of good play for Dr. Zero's roles, and of the bad habits that the base checkpoint is given on purpose.

Both roles end with `</answer>`, at which the engine stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from scope_jax.config import Config
from scope_jax.games import load_card
from scope_jax.games.dr_zero import messages
from scope_jax.games.dr_zero.roles import PROPOSER
from scope_jax.games.dr_zero.state import Passage
from scope_jax.play import documents
from tools.atlas.chains import Parts, search
from tools.atlas.facts import ASSETS, Fact
from tools.atlas.questions import Chain, chain_question
from tools.atlas.rows import Script, Show

CARD = ASSETS.parents[1] / "configs" / "dr_zero" / "atlas.toml"


@cache
def card() -> Config:
    return load_card(CARD, [f"dr_zero.prompts={ASSETS / 'prompts' / 'dr_zero'}"])


def asked(question: str) -> str:
    """The solver's prompt."""
    return messages.for_solver(card(), question).text


def proposer(
    document: Mapping[str, str],
    asked: int,
    chain: Chain,
    show: Show,
    answer: str | None = None,
    thinks: bool = True,
) -> Script:
    """Takes a fact of its document, looks up the value, takes a fact about it, and so on; then the question about all.

    asked: the number of hops in its prompt, of which bad habits do only some. answer: a wrong one, "" for none; None:
    the last value of the chain. thinks: False leaves out the last thought.
    """
    parts: Parts = ()
    known = f" {chain[0].sentence}"
    for fact in chain[1:]:
        parts += search(f"{known} I look up {fact.entity}.", fact.entity, show)
        known = f" {fact.sentence}"
    thought = f"<think>{known} </think>" if thinks else ""
    given = chain[-1].value if answer is None else answer
    said = f"{thought}<question> {chain_question(chain)} </question><answer>{f' {given}' if given else ''} </answer>"
    key, text = documents.document_of(document)
    passage = Passage(key, text, hops=asked)
    return Script(PROPOSER, messages.for_proposer(card(), passage).text, (*parts, (said, True)))


def facts_in(document: Mapping[str, str], by_sentence: Mapping[str, Fact]) -> list[Fact]:
    """The facts that a document states, of those given, in its order."""
    sentences = [f"{sentence}." for sentence in document["text"].rstrip(".").split(". ")]
    return [by_sentence[sentence] for sentence in sentences if sentence in by_sentence]
