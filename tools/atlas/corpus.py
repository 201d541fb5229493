"""The Atlas corpus: one short document for every name of the world."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.atlas.facts import Fact, World

MAX_FACTS = 5
LEAD_BELOW = 3  # documents with fewer facts begin with a sentence that names their subject
CORPUS_SEED = 11


def title_of(world: World, name: str) -> str:
    """The kind and the name of a thing: "The city Paris"."""
    return f"The {world.kinds[name]} {name}"


def _text(world: World, name: str, facts: list[Fact]) -> str:
    lead = [f"This is about the {world.kinds[name]} {name}."] if len(facts) < LEAD_BELOW else []
    return " ".join([*lead, *(fact.sentence for fact in facts)])


def documents(world: World) -> list[dict[str, Any]]:
    """Rows of the corpus (id, title, text), one per name in alphabetical order; the same on every machine.

    A document states facts about its name and facts about other things whose value is the name, at most MAX_FACTS in
    all and in any order, so that the chain river → country → currency can be followed in both directions.
    """
    rng = np.random.default_rng(CORPUS_SEED)
    rows = []
    for number, name in enumerate(world.names):
        own = list(world.of_entity.get(name, ()))
        others = list(world.of_value.get(name, ()))
        picked = sorted(rng.permutation(len(others))[: max(1, MAX_FACTS - len(own))])
        facts = own + [others[i] for i in picked]
        facts = [facts[i] for i in rng.permutation(len(facts))]
        rows.append({"id": document_id(number), "title": title_of(world, name), "text": _text(world, name, facts)})
    return rows


def document_id(number: int) -> str:
    """Id of the document of the name with this number."""
    return f"atlas-{number:04d}"
