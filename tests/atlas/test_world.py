"""The world is consistent, and what is held out stays out."""

from __future__ import annotations

import json

import pytest

from scope_jax.atlas import corpus, questions
from scope_jax.atlas.facts import ASSETS, World, load_world


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (ASSETS / name).read_text(encoding="utf-8").splitlines()]


def test_a_few_facts_of_the_world(world: World) -> None:
    values = {(fact.attribute, fact.entity): fact.value for fact in world.facts}
    assert values["capital", "France"] == "Paris"
    assert values["country", "Paris"] == "France"  # follows from the capital
    assert values["river", "Paris"] == "Seine"
    assert values["mouth", "Vltava"] == "Elbe"
    assert values["birthplace", "Curie"] == "Warsaw"


def test_two_values_of_one_attribute_are_refused(tmp_path) -> None:
    for name in ("rivers", "mountains", "people"):
        (tmp_path / f"{name}.csv").write_text("name\n", encoding="utf-8")
    (tmp_path / "countries.csv").write_text("name,capital\nFrance,Paris\n", encoding="utf-8")
    (tmp_path / "cities.csv").write_text("name,country\nParis,Italy\n", encoding="utf-8")
    with pytest.raises(ValueError, match="two values for the country of Paris"):
        load_world(tmp_path)


def test_sizes(world: World) -> None:
    rows = _rows("corpus.jsonl")
    assert len(rows) == len(world.names) >= 400
    assert len({row["id"] for row in rows}) == len({row["title"] for row in rows}) == len(rows)
    assert all(2 <= row["text"].count(".") <= corpus.MAX_FACTS + 1 for row in rows)
    countries = [name for name in world.names if world.kinds[name] == "country"]
    assert len(countries) >= 150
    held = [name for name in countries if name in world.held_out]
    assert len(held) == int(0.25 * len(countries))


def test_what_hangs_on_a_held_out_country_is_held_out(world: World) -> None:
    for fact in world.facts:
        if fact.attribute in ("capital",) and fact.entity in world.held_out:
            assert fact.value in world.held_out
        if fact.attribute in ("country", "birthplace") and fact.value in world.held_out:
            assert fact.entity in world.held_out


@pytest.mark.parametrize("name", ["train", "held_out"])
def test_every_step_of_a_question_stands_in_its_evidence(world: World, name: str) -> None:
    texts = {row["id"]: row["text"] for row in _rows("corpus.jsonl")}
    rows = _rows(f"questions_{name}.jsonl")
    assert [row["hops"] for row in rows].count(1) == [row["hops"] for row in rows].count(2) == questions.SET_SIZES[name]
    for row in rows:
        (answer,) = row["answers"]
        assert len(row["evidence_ids"]) == row["hops"]
        assert f" is {answer}." in texts[row["evidence_ids"][-1]]
        assert answer not in row["question"].removesuffix("?").split()


def test_held_out_names_are_asked_only_in_the_held_out_set(world: World) -> None:
    def touched(row: dict) -> bool:
        words = row["question"].removesuffix("?").split()
        return bool(world.held_out & {*words, *row["answers"]})

    assert not any(touched(row) for row in _rows("questions_train.jsonl"))
    assert all(
        row["question"].removesuffix("?").split()[-1] in world.held_out for row in _rows("questions_held_out.jsonl")
    )
    assert not world.held_out & {row["answer"] for row in _rows("answers.jsonl")}


def test_search_shows_the_facts_that_are_asked_for(world: World, show) -> None:
    missed = [fact.sentence for fact in world.facts if fact.sentence not in show(fact.phrase)]
    assert not missed
