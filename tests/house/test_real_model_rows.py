"""Rows of the real model's tasks: their parts, what counts as an answer that stands in a passage, and as a match."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.real_model.matching import exact_match
from benchmarks.real_model.rows import TASKS, divided, evidence, share
from scope_jax.grading import rewards

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
    rows = [
        {"id": f"{number}", "question": f"What is {number % 400}?", "set": "nq", "answers": ["1"]}
        for number in range(600)
    ]
    parts = divided(rows, TASKS["reading"])
    assert sum(map(len, parts.values())) == 600
    part_of = {one["question"].lower(): part for part, those in parts.items() for one in those}
    assert all(part_of[one["question"].lower()] == part for part, those in parts.items() for one in those)
    changed = [{**one, "question": f"the {one['question']} "} for one in rows[::-1]]
    backwards = divided(changed, TASKS["reading"])
    assert {part: {one["id"] for one in those} for part, those in backwards.items()} == {
        part: {one["id"] for one in those} for part, those in parts.items()
    }
    assert 0.2 < len(parts["exam"]) / 600 < 0.44 and 0.01 < len(parts["development"]) / 600 < 0.12
    assert share(rows[:1]) == 0x5FECEB66FFC86F38 / 2**64  # SHA-256 of "0"


def test_questions_of_sets_without_an_exam_are_trained_on_unless_an_examined_set_asks_them_too() -> None:
    task = TASKS["search"]
    rows = [
        {"id": f"{name}-{number}", "question": f"Who {number}?", "set": name, "answers": ["Ada", "A. Lovelace"]}
        for name, numbers in {"nq": range(200), "popqa": range(100, 400)}.items()
        for number in numbers
    ]
    parts = divided(rows, task)
    assert sum(map(len, parts.values())) == 500
    for part in ("exam", "development"):
        asked = {row["question"] for row in parts[part] if row["set"] == "nq"}
        assert asked and {row["question"] for row in parts[part]} == asked
    trained = {row["question"] for row in parts["train"]}
    assert {f"Who {number}?" for number in range(200, 400)} <= trained
    assert not trained & {row["question"] for row in parts["exam"]}


def test_yes_and_no_are_examined_but_not_trained_on() -> None:
    rows = [
        {"id": f"{number}", "question": f"Is it {number}?", "set": "hotpotqa", "answers": [answer]}
        for number, answer in enumerate(["yes", "no", "Rome"] * 60)
    ]
    parts = divided(rows, TASKS["search"])
    assert {row["answers"][0] for row in parts["train"]} == {"Rome"}
    assert {row["answers"][0] for row in parts["exam"]} == {"yes", "no", "Rome"}


@pytest.mark.parametrize(
    "said", ["The Tin Man.", "tin  man", "Tin-Man", "a tin, man", "Tin", "", "the", "5%", "Zoë", "an"]
)
@pytest.mark.parametrize("gold", ["Tin Man", "tinman", "tin", "5", "zoë", "TIN MAN!"])
def test_a_peers_exact_match_is_that_of_the_house(said: str, gold: str) -> None:
    assert exact_match(said, [gold]) == rewards.exact_match(said, [gold])
    assert exact_match(said, ["other", gold]) == rewards.exact_match(said, ["other", gold])
