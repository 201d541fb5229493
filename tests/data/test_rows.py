"""Rows and subsets are the same for every format; rows outside the subset are not kept in memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import CardError
from scope_jax.data import sources
from scope_jax.data.corpus import load_corpus
from scope_jax.data.rows import DataError
from scope_jax.data.schemas import Kind
from scope_jax.games import load_card
from scope_jax.run.config_file import to_toml
from tests.data.files import every_format, hub, jsonl, source

ROWS: dict[Kind, list[dict[str, Any]]] = {
    "answers": [{"answer": f"a{n}", "aliases": ["é", f"b{n}"], "search_turns": n} for n in range(1, 41)],
    "questions": [{"question": f"q{n}", "golden_answers": [f"a{n}"]} for n in range(40)],
    "tasks": [{"question": f"q{n}", "rubric": [{"criterion": f"c{n}", "weight": 2}]} for n in range(40)],
    "documents": [{"id": f"d{n}", "title": f"t{n}", "text": f"text {n}"} for n in range(40)],
}


@pytest.mark.parametrize("kind", ROWS)
def test_every_format_gives_the_same_rows_and_the_same_subset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    places = every_format(tmp_path, ROWS[kind], monkeypatch)
    whole = {name: list(sources.load(source(place, kind))) for name, place in places.items()}
    assert [rows == whole["jsonl"] for rows in whole.values()] == [True] * 5
    few = {name: list(sources.load(source(place, kind, limit=7))) for name, place in places.items()}
    assert [rows == few["jsonl"] for rows in few.values()] == [True] * 5
    order = [whole["jsonl"].index(row) for row in few["jsonl"]]
    assert len(order) == 7 and order == sorted(order) and order != list(range(7))


def test_a_subset_is_random_fixed_by_its_seed_and_contains_every_smaller_one() -> None:
    assert sources.subset(range(40), 40, 0) == sources.subset(range(40), 99, 0) == list(range(40))
    drawn = [set(sources.subset(range(40), limit, 5)) for limit in (1, 5, 20, 39)]
    assert [len(chosen) for chosen in drawn] == [1, 5, 20, 39]
    assert all(small < large for small, large in itertools.pairwise(drawn))
    counts = Counter(place for seed in range(800) for place in sources.subset(range(40), 10, seed))
    assert all(abs(counts[place] - 200) < 5 * 12.3 for place in range(40))  # 12.3 = √(800 · ¼ · ¾)


def test_an_evaluation_subset_does_not_depend_on_the_seed_of_the_run() -> None:
    card, sets = Path("configs/ssp/atlas.toml"), []
    for override in ("seed=0", "seed=1"):
        cfg = load_card(card, [override])
        (exam,) = cfg.evaluate.sets
        few = exam.model_copy(update={"limit": 20})
        sets.append(sources.load(sources.Source(exam.path, "questions", few)))
    other = exam.model_copy(update={"limit": 20, "limit_seed": 1})
    assert sets[0] == sets[1] != sources.load(sources.Source(exam.path, "questions", other))
    assert len(sets[0]) == 20


class Row:
    """An item that counts how many instances are alive."""

    alive = most = 0

    def __init__(self) -> None:
        Row.alive += 1
        Row.most = max(Row.most, Row.alive)

    def __del__(self) -> None:
        Row.alive -= 1


def test_only_the_subset_is_in_memory() -> None:
    rows: Iterator[Row] = (Row() for _ in range(200_000))
    assert len(sources.subset(rows, 50, 0)) == 50
    assert Row.most < 60  # those kept, and a few being read


def test_documents_are_read_on_demand(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "c.jsonl", *ROWS["documents"])
    rows = sources.load(source(path, "documents"))
    assert isinstance(rows, sources.Documents) and len(rows) == 40
    assert rows[3] == ROWS["documents"][3] and rows[38:] == ROWS["documents"][38:]
    seen = [row["id"] for row in sources.items(rows, 0, 40, seed=1)]
    assert sorted(seen) == sorted(row["id"] for row in ROWS["documents"]) != seen
    with pytest.raises(IndexError):
        rows[40]


def test_documents_need_no_title_and_no_id(tmp_path: Path) -> None:
    rows = sources.load(
        source(jsonl(tmp_path / "c.jsonl", {"text": "a"}, {"contents": '"T"\nb', "id": 7}), "documents")
    )
    assert list(rows) == [{"id": "0", "title": "", "text": "a"}, {"id": "7", "title": "T", "text": "b"}]


def test_columns_of_documents(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "c.jsonl", {"docid": 3, "meta": {"name": "T"}, "body": "b", "text": "not this"})
    columns = {"id": "docid", "title": "meta.name", "text": "body"}
    assert list(sources.load(source(path, "documents", columns=columns))) == [{"id": "3", "title": "T", "text": "b"}]
    assert load_corpus(path, columns)[0].contents == "T\nb"


def test_any_split_of_a_hub_set(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "someone/qa"
    sets = {(name, None, "train"): "one", (name, None, "test"): "two", (name, "nq", "test"): "three"}
    hub(monkeypatch, {key: [{"question": word, "answer": "a"}] for key, word in sets.items()})

    def first(**card: Any) -> str:
        return sources.load(source(name, "questions", **card))[0]["question"]

    assert [first(), first(split="test"), first(split="test", hub_config="nq")] == ["one", "two", "three"]
    message = (
        r"someone/qa is not a local file, and the split 'dev' of its configuration 'nq' cannot be loaded from the hub"
    )
    with pytest.raises(DataError, match=message):
        first(split="dev", hub_config="nq")


def test_a_hub_corpus_is_read_again_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (1, 2):
        hub(monkeypatch, {("someone/wiki", None, "test"): ROWS["documents"][:count]})
        assert len(sources.load(source("someone/wiki", "documents", split="test"))) == count


def test_columns_are_set_in_cards_or_overrides_and_written_to_the_run(tmp_path: Path) -> None:
    exam = '{name="e", path="e.jsonl", split="test", limit=9, limit_seed=4, columns={answers="answer.value"}}'
    overrides = ["data.columns.searches=hops", "retrieval.columns.text=body", f"evaluate.sets=[{exam}]"]
    cfg = load_card("configs/ssp/atlas.toml", overrides)
    assert cfg.retrieval is not None
    assert (cfg.data.columns, cfg.retrieval.columns) == ({"searches": "hops"}, {"text": "body"})
    (tmp_path / "config.toml").write_text(to_toml(cfg), encoding="utf-8")
    assert load_card(tmp_path / "config.toml") == cfg
    with pytest.raises(CardError, match="answer"):
        load_card("configs/ssp/atlas.toml", ["data.columns.answer=gold"])  # the field's name is answers


def test_a_file_has_no_splits(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"answer": "Rome"})
    for card in ({"split": "test"}, {"hub_config": "nq"}):
        with pytest.raises(DataError, match=r"a\.jsonl is a file, which has no splits"):
            sources.load(source(path, "answers", **card))
