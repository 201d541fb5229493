"""Questions on the true world, and the answers self-play may start from."""

from __future__ import annotations

from typing import Any

import numpy as np

from scope_jax.atlas.corpus import document_id
from scope_jax.atlas.facts import Fact, World

QUESTION_SEED = 5
SET_SIZES = {"train": 200, "held_out": 100}  # questions of each hop count


def one_hop(fact: Fact) -> str:
    return f"What is {fact.phrase}?"


def two_hops(first: Fact, second: Fact) -> str:
    """The question whose first step finds first.value, which is second's entity."""
    return f"What is the {second.attribute} of {first.phrase}?"


def chains(world: World) -> list[tuple[Fact, Fact]]:
    """All pairs of facts that hang together, without those that come back to where they began."""
    return [
        (first, second)
        for first in world.facts
        for second in world.of_entity.get(first.value, ())
        if second.value != first.entity
    ]


def _row(question: str, facts: tuple[Fact, ...], evidence: dict[str, str], number: str) -> dict[str, Any]:
    return {
        "id": number,
        "question": question,
        "answers": [facts[-1].value],
        "hops": len(facts),
        "evidence_ids": [evidence[fact.entity] for fact in facts],
    }


def question_sets(world: World) -> dict[str, list[dict[str, Any]]]:
    """Rows (id, question, answers, hops, evidence_ids) of "train" and "held_out", one-hop rows first.

    A held-out question begins at a held-out entity; a train question touches none. No answer stands in its question.
    """
    evidence = {name: document_id(number) for number, name in enumerate(world.names)}
    rng = np.random.default_rng(QUESTION_SEED)
    singles = [(fact,) for fact in world.facts]
    sets: dict[str, list[dict[str, Any]]] = {}
    for name, size in SET_SIZES.items():
        rows = []
        for pool in (singles, chains(world)):
            fit = [
                facts
                for facts in pool
                if (facts[0].entity in world.held_out if name == "held_out" else all(map(world.trains, facts)))
            ]
            for i in sorted(rng.permutation(len(fit))[:size]):
                facts = fit[i]
                text = one_hop(*facts) if len(facts) == 1 else two_hops(*facts)
                rows.append(_row(text, facts, evidence, f"{name}-{len(facts)}-{i:04d}"))
        sets[name] = rows
    return sets


def answer_set(world: World) -> list[dict[str, str]]:
    """Ground-truth answers of self-play: every name that is the value of a fact of train entities, sorted."""
    return [{"answer": name} for name in sorted({fact.value for fact in world.facts if world.trains(fact)})]
