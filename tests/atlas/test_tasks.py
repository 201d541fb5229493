"""Tasks and rubrics are correct, about the entities they name, and held out where they should be."""

from __future__ import annotations

import json

import pytest

from scope_jax.data import schemas
from scope_jax.games.scope.state import rubric_task
from scope_jax.grading.measures import facts_stated
from tools.atlas import tasks
from tools.atlas.facts import ASSETS, World
from tools.atlas.tasks import Entity

SEINE = Entity(
    "Seine", {}, ("The mouth of Seine is Channel.", "The country of Seine is France.", "The river of Paris is Seine.")
)
FRANCE = Entity(
    "France", {}, tuple(f"The {a} of France is {v}." for a, v in (("capital", "Paris"), ("currency", "euro")))
)


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (ASSETS / name).read_text(encoding="utf-8").splitlines()]


def test_a_task_and_its_rubric() -> None:
    assert tasks.task("planning", ["Seine", "France"]) == "Plan a visit to Seine and France"
    assert SEINE.neighbours == ("Channel", "France", "Paris")
    assert tasks.rubric([SEINE]) == [
        ("critical", "Seine: The mouth of Seine: Channel"),
        ("important", "The country of Seine: France"),
        ("bonus", "The river of Paris: Seine"),
    ]
    assert tasks.rubric([FRANCE, SEINE]) == [
        ("critical", "France: The capital of France: Paris"),
        ("important", "The currency of France: euro"),
        ("critical", "Seine: The mouth of Seine: Channel"),
        ("important", "The country of Seine: France"),
    ]
    assert len(tasks.rubric([FRANCE, FRANCE, FRANCE])) == 5
    assert tasks.report([("Seine", SEINE.sentences[:1]), ("France", FRANCE.sentences[:1])]) == (
        "Seine: The mouth of Seine is Channel. France: The capital of France is Paris."
    )


def test_the_exact_score_of_a_report() -> None:
    rubric = [{"weight": 1.0, "fact": tasks.stated(criterion)} for _, criterion in tasks.rubric([SEINE])]
    assert rubric[0]["fact"] == ["The mouth of Seine is", "Channel"]
    told = tasks.report([("Seine", ["The mouth of Seine is Rhine.", "The country of Seine is France."])])
    assert facts_stated(told, rubric) == pytest.approx(1 / 3)  # another value, the value, nothing
    assert facts_stated(f"{tasks.report([('Seine', SEINE.sentences)])} {told}", rubric) == 1.0  # both: the first counts
    assert facts_stated(f"{told} {tasks.report([('Seine', SEINE.sentences)])}", rubric) == pytest.approx(2 / 3)


def test_a_criterion_without_a_fact_is_an_error() -> None:
    with pytest.raises(ValueError, match="holds no fact"):
        tasks.fact_of("Is well written.")


@pytest.mark.parametrize(("name", "count"), [("train", 16), ("held_out", 40)])
def test_task_sets_are_valid_for_the_curated_mode(world: World, name: str, count: int) -> None:
    texts = {row["id"]: row["text"] for row in _rows("corpus.jsonl")}
    rows = _rows(f"tasks_{name}.jsonl")
    assert len(rows) == count * len(tasks.KINDS) * tasks.MOST_ENTITIES
    assert len({row["question"] for row in rows}) > 0.95 * len(rows)
    for row in rows:
        problem = rubric_task(schemas.tasks(row, "a line", {}), 0)
        assert problem.question == row["question"]
        assert 3 <= len(problem.rubric) <= 5
        evidence = " ".join(texts[key] for key in row["evidence_ids"])
        assert all(tasks.fact_of(criterion.text) in evidence for criterion in problem.rubric)
        assert all(" ".join(item["fact"]) + "." == tasks.fact_of(item["criterion"]) for item in row["rubric"])
        told = tasks.report(
            [(name, [tasks.fact_of(item["criterion"])]) for name, item in zip("abcde", row["rubric"], strict=False)]
        )
        assert facts_stated(told, row["rubric"]) == 1.0  # a report with every fact in the rubric
        named = row["question"].rstrip(".").split()
        assert len(world.held_out & set(named)) == (len(row["evidence_ids"]) if name == "held_out" else 0)


def test_the_challengers_documents_name_nothing_held_out(world: World) -> None:
    rows = _rows("documents.jsonl")
    assert len(rows) > 100
    for row in rows:
        assert not world.held_out & {word.strip(".") for word in f"{row['title']} {row['text']}".split()}
        assert len(tasks.SENTENCE.findall(row["text"])) >= tasks.TOLD
