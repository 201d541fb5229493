"""Rows of the real model's reading task: their parts, and what counts as an answer that stands in a passage."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.real_model.rows import divided, evidence, share

PASSAGES = {
    "p": {"id": "p", "title": "Tin", "text": "Tin is a metal. Its symbol is Sn."},
    "q": {"id": "q", "title": "Lead", "text": "Lead, a heavy metal, was used for pipes."},
}


def row(**fields: Any) -> dict[str, Any]:
    return {"id": "1", "question": "?", "source": "nq", "evidence_kind": "gold", "evidence_ids": ["p", "q"]} | fields


@pytest.mark.parametrize(
    ("fields", "answer", "shown"),
    [
        ({"answers": ["tungsten", "heavy metal"]}, "heavy metal", "Lead\nLead, a heavy metal, was used for pipes."),
        ({"answers": ["sn"]}, "sn", "Tin\nTin is a metal. Its symbol is Sn."),
        (
            {"answers": ["Sn"], "source": "hotpotqa"},
            "Sn",
            "\n\n".join(f"{p['title']}\n{p['text']}" for p in PASSAGES.values()),
        ),
        ({"answers": ["etal"]}, None, ""),  # not a word
        ({"answers": ["the"]}, None, ""),  # nothing is left of it
        ({"answers": ["Sn"], "evidence_ids": ["gone"]}, None, ""),
        ({"answers": ["Sn"], "evidence_kind": "auto"}, None, ""),
    ],
)
def test_the_passage_that_holds_an_answer_is_shown(fields: Any, answer: str | None, shown: str) -> None:
    assert evidence(row(**fields), PASSAGES) == (answer, shown)


def test_equal_questions_are_in_one_part_whatever_their_order() -> None:
    rows = [{"id": f"{number}", "question": f"What is {number % 400}?"} for number in range(600)]
    parts = divided(rows)
    assert sum(map(len, parts.values())) == 600
    part_of = {one["question"].lower(): part for part, those in parts.items() for one in those}
    assert all(part_of[one["question"].lower()] == part for part, those in parts.items() for one in those)
    backwards = divided([*({**one, "question": f"the {one['question']} "} for one in rows[::-1])])
    assert {part: {one["id"] for one in those} for part, those in backwards.items()} == {
        part: {one["id"] for one in those} for part, those in parts.items()
    }
    assert 0.2 < len(parts["exam"]) / 600 < 0.44 and 0.01 < len(parts["development"]) / 600 < 0.12
    assert share(rows[:1]) == 0x5FECEB66FFC86F38 / 2**64  # SHA-256 of "0"
