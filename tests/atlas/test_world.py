"""The world is consistent, and held-out facts occur nowhere in training."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tools.atlas import corpus, questions
from tools.atlas.facts import ASSETS, Fact, World, load_numbers, load_world


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (ASSETS / name).read_text(encoding="utf-8").splitlines()]


def test_a_few_facts_of_the_world(world: World) -> None:
    values = {(fact.attribute, fact.entity): fact.value for fact in world.facts}
    assert values["capital", "France"] == "Paris"
    assert values["country", "Paris"] == "France"  # follows from the capital
    assert values["river", "Paris"] == "Seine"
    assert values["mouth", "Vltava"] == "Elbe"
    assert values["birthplace", "Curie"] == "Warsaw"


def test_two_values_of_one_attribute_are_rejected(tmp_path) -> None:
    for name in ("rivers", "mountains", "people"):
        (tmp_path / f"{name}.csv").write_text("name\n", encoding="utf-8")
    (tmp_path / "countries.csv").write_text("name,capital\nFrance,Paris\n", encoding="utf-8")
    (tmp_path / "cities.csv").write_text("name,country\nParis,Italy\n", encoding="utf-8")
    with pytest.raises(ValueError, match="two values for the country of Paris"):
        load_world(tmp_path)


def test_numbers_are_facts_about_names_of_the_world(world: World) -> None:
    numbers = load_numbers(world)
    values = {(fact.attribute, fact.entity): fact.value for fact in numbers}
    assert values["height", "Everest"] == "8849"
    assert values["birthyear", "Mozart"] == "1756"
    assert len(numbers) == 242 and {fact.attribute for fact in numbers}.isdisjoint(world.attributes)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("height,Nowhere,3", "no whole number of a name"),
        ("height,Everest,8849.5", "no whole number of a name"),
        ("height,Everest,8848\nheight,Everest,8849", "two values for the height of Everest"),
    ],
)
def test_invalid_numbers_are_rejected(world: World, tmp_path, rows: str, said: str) -> None:
    (tmp_path / "numbers.csv").write_text(f"attribute,name,value\n{rows}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        load_numbers(world, tmp_path)


def test_sizes(world: World) -> None:
    rows = _rows("corpus.jsonl")
    assert len(rows) == len(world.names) >= 400
    assert len({row["id"] for row in rows}) == len({row["title"] for row in rows}) == len(rows)
    assert all(2 <= row["text"].count(".") <= corpus.MAX_FACTS + 1 for row in rows)
    countries = [name for name in world.names if world.kinds[name] == "country"]
    assert len(countries) >= 150
    held = [name for name in countries if name in world.held_out]
    assert len(held) == int(0.25 * len(countries))


def test_everything_in_a_held_out_country_is_held_out(world: World) -> None:
    for fact in world.facts:
        if fact.attribute in ("capital",) and fact.entity in world.held_out:
            assert fact.value in world.held_out
        if fact.attribute in ("country", "birthplace") and fact.value in world.held_out:
            assert fact.entity in world.held_out


HOPS = {"one hop": 1, "two hops": 2, "three hops": 3}


@pytest.mark.parametrize("name", ["train", "held_out"])
def test_every_step_of_a_question_is_in_its_evidence(world: World, name: str) -> None:
    texts = {row["id"]: row["text"] for row in _rows("corpus.jsonl")}
    rows = _rows(f"questions_{name}.jsonl")
    for kind in (*HOPS, "choice"):
        assert 100 <= [row["kind"] for row in rows].count(kind) <= questions.SET_SIZES[name]
    for row in [row for row in rows if row["kind"] != "choice"]:
        (answer,) = row["answers"]
        assert len(row["evidence_ids"]) == row["hops"] == HOPS[row["kind"]]
        assert f" is {answer}." in texts[row["evidence_ids"][-1]]
        assert answer not in row["question"].removesuffix("?").split()
    for row in [row for row in rows if row["kind"] == "choice"]:
        attribute, value, names = re.findall(r"Which one has the (\w+) (\w+): (.+)\?", row["question"])[0]
        candidates = re.findall(r"\w+", names.replace(" or ", " "))
        assert len(candidates) == len(row["evidence_ids"]) == questions.CANDIDATES
        told = [
            f"The {attribute} of {one} is {value}." in texts[key]
            for one, key in zip(candidates, row["evidence_ids"], strict=True)
        ]
        assert [one for one, is_told in zip(candidates, told, strict=True) if is_told] == row["answers"]


def test_chains() -> None:
    river, capital, back = (
        Fact("river", "Bonn", "Rhine"),
        Fact("country", "Rhine", "Germany"),
        Fact("capital", "Germany", "Bonn"),
    )
    money = Fact("currency", "Germany", "euro")
    world = World(
        (river, capital, back, money), frozenset({"Bonn"}), {"Bonn": "city", "Rhine": "river", "Germany": "country"}
    )
    assert questions.chains(world, 1) == [(river,), (capital,), (back,), (money,)]
    assert questions.chains(world, 2) == [(river, capital), (capital, back), (capital, money), (back, river)]
    assert questions.chains(world, 3) == [(river, capital, money)]  # chains visit no entity twice
    assert (
        questions.chain_question((river, capital, money)) == "What is the currency of the country of the river of Bonn?"
    )
    assert questions.chain_question((money,)) == "What is the currency of Germany?"


def test_a_choice() -> None:
    seine, loire = Fact("mouth", "Seine", "Channel"), Fact("mouth", "Loire", "Atlantic")
    others = [
        seine,
        loire,
        Fact("mouth", "Main", "Rhine"),
        Fact("mouth", "Somme", "Channel"),
        Fact("mouth", "Channel", "Sea"),
    ]
    made = questions.choice(seine, others, np.random.default_rng(0))
    assert made is not None and made.right is seine
    assert {fact.entity for fact in made.facts} == {
        "Seine",
        "Loire",
        "Main",
    }  # Somme has the same mouth; Channel is the value
    names = [fact.entity for fact in made.facts]
    assert made.question == f"Which one has the mouth Channel: {names[0]}, {names[1]} or {names[2]}?"
    assert questions.choice(seine, others[:2], np.random.default_rng(0)) is None


def test_only_the_held_out_set_asks_about_held_out_names(world: World) -> None:
    def named(row: dict) -> set[str]:
        return set(re.findall(r"\w+", row["question"])) & set(world.names)

    for row in _rows("questions_train.jsonl"):
        assert not world.held_out & (named(row) | set(row["answers"]))
    for row in _rows("questions_held_out.jsonl"):
        (last,) = re.findall(r"(\w+)\?$", row["question"])
        assert last in world.held_out
        if row["kind"] == "choice":
            assert len(named(row) & world.held_out) >= questions.CANDIDATES
    assert not world.held_out & {row["answer"] for row in _rows("answers.jsonl")}


@pytest.mark.slow
def test_a_search_for_a_fact_returns_it(world: World, show) -> None:
    missed = [fact.sentence for fact in world.facts if fact.sentence not in show(fact.phrase)]
    assert not missed
