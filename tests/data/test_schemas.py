"""Published row formats are converted to the games' rows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from scope_jax.data import sources
from scope_jax.data.rows import DataError
from scope_jax.data.schemas import answers, clusters, queries, questions, readings, tasks
from scope_jax.games import ssp
from scope_jax.games.ssp import roles
from scope_jax.play.game import step_of
from tests.data.files import jsonl, source
from tests.games.harness import ScriptedTools, card


@pytest.mark.parametrize(
    ("row", "golds", "searches"),
    [
        ({"ground_truth": "Paris", "search_turns": 3, "sys_question_example": "…"}, ["Paris"], 3),  # released SSP
        ({"ground_truth": "Paris", "search_turns": None}, ["Paris"], None),
        ({"ground_truth": "Paris", "search_turns": 2.0}, ["Paris"], 2),  # what Parquet makes of a column with nulls
        ({"question": "Where?", "golden_answers": ["Paris", "Lutetia"]}, ["Paris", "Lutetia"], None),  # FlashRAG
        ({"question": "where", "answer": ["Paris", "Lutetia"]}, ["Paris", "Lutetia"], None),  # NQ-open
        ({"answers": "Paris"}, ["Paris"], None),
        ({"answers": ["Paris"]}, ["Paris"], None),
        ({"answer": "Rome", "aliases": ["Roma", "Rome"]}, ["Rome", "Roma"], None),
        ({"answer": "Rome", "aliases": "Roma"}, ["Rome", "Roma"], None),
        ({"answers": ["Rome"], "aliases": ["Roma"]}, ["Rome", "Roma"], None),
        ({"answer": "Rome", "answer_aliases": []}, ["Rome"], None),  # MuSiQue
        ({"answer": "Rome", "aliases": None, "answers": None}, ["Rome"], None),  # what Parquet writes for no value
        ({"answers": [], "answer": "Rome"}, ["Rome"], None),
    ],
)
def test_answers_of_every_known_form(row: dict[str, Any], golds: list[str], searches: int | None) -> None:
    assert answers(row, "a place", {}) == {"answers": golds, "searches": searches}


@pytest.mark.parametrize("name", ["question", "problem", "query", "prompt"])
def test_questions_by_their_known_names(name: str) -> None:
    assert questions({name: "Q?", "answer": "A"}, "a place", {}) == {"question": "Q?", "answers": ["A"]}


def test_columns_of_the_card_may_be_paths_into_objects() -> None:
    verl = {
        "reward_model": {"ground_truth": {"target": "Paris"}},
        "extra_info": {"question": "Where?", "n": 2},
        "answer": "not this",
    }
    columns = {
        "question": "extra_info.question",
        "answers": "reward_model.ground_truth.target",
        "searches": "extra_info.n",
    }
    assert answers(verl, "a place", columns) == {"answers": ["Paris"], "searches": 2}
    assert questions(verl, "a place", columns) == {"question": "Where?", "answers": ["Paris"]}
    trivia = {"question": "Q?", "answer": {"value": "Rome", "aliases": ["Roma"]}}
    columns = {"answers": "answer.value", "aliases": "answer.aliases"}
    assert questions(trivia, "a place", columns)["answers"] == ["Rome", "Roma"]
    dotted = {"question": "Q?", "a.b": "Rome", "a": {"b": "Oslo"}}
    assert questions(dotted, "a place", {"answers": "a.b"})["answers"] == ["Rome"]  # a name with a dot comes first


def test_a_column_that_the_card_names_must_exist() -> None:
    with pytest.raises(DataError, match=r"f, line 1: has no column `turns` for the searches; .* `answer`"):
        answers({"answer": "Rome", "search_turns": 3}, "f, line 1", {"searches": "turns"})
    assert answers({"answer": "Rome", "turns": None}, "f, line 1", {"searches": "turns"})["searches"] is None
    with pytest.raises(DataError, match="has no answers in `gold`"):
        answers({"answer": "Rome", "gold": []}, "f, line 1", {"answers": "gold"})


def test_a_column_that_the_kind_of_rows_does_not_have_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"answer": "Rome"})
    with pytest.raises(
        DataError, match=r"columns\.rubric does not apply to .*a\.jsonl, whose rows have the fields `answers`"
    ):
        sources.load(source(path, "answers", columns={"rubric": "rubric"}))


def test_a_row_may_give_the_number_of_searches_of_its_question(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", *[{"ground_truth": f"a{n}", "search_turns": n or None} for n in range(5)])
    cfg = card(data={"min_searches": 7, "max_searches": 9}, proposer={"samples": 2})
    rows = sources.load(source(path, "answers"))
    tools = ScriptedTools(lambda now: "", given=rows)
    slots = roles.open_slots(step_of(ssp.GAME, cfg, tools, ssp.GAME.start(cfg), 3))
    assert [slot.searches for slot in slots[2:]] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert slots[0].searches == slots[1].searches in (7, 8, 9)  # drawn at random, as the row has no number


# ------------------------------------------------------------------------------------------------------------- rubrics
def rubric(row: dict[str, Any]) -> list[tuple[str, float]]:
    return [(item["criterion"], item["weight"]) for item in tasks({"question": "Q", **row}, "a place", {})["rubric"]]


def test_rubrics_of_every_known_form() -> None:
    assert rubric({"rubric": [{"criterion": "a", "weight": 2}, {"criterion": "b"}]}) == [("a", 2.0), ("b", 1.0)]
    points = [{"criterion": "a", "points": 7, "tags": []}, {"criterion": "b", "points": -7}]
    assert rubric({"rubrics": points}) == rubric({"rubric": points}) == [("a", 7.0)]  # HealthBench
    item = {"dimension": "depth", "criterion": "a", "explanation": "says why", "weight": 0.5}
    assert rubric({"dimension_weight": {"depth": 0.4}, "rubric": [item]}) == [("a: says why", 0.2)]
    nothing = {"weight": None, "points": None, "explanation": None, "dimension": None}  # as a Parquet file has it
    row: dict[str, Any] = {"messages": None, "dimension_weight": None, "rubric": [{"criterion": "a", **nothing}]}
    assert rubric(row) == [("a", 1.0)]
    third = {"criterion": "a", "weight": 3, "dimension": "depth"}
    assert rubric({"dimension_weight": {"depth": None}, "rubric": [third]}) == [("a", 3.0)]


def test_a_criterion_may_be_a_fact() -> None:
    items = [{"criterion": "a", "fact": ["The mouth of Seine is", " Channel"]}, {"criterion": "b", "fact": None}]
    first, second = tasks({"question": "Q", "rubric": items}, "a place", {})["rubric"]
    assert first["fact"] == ["The mouth of Seine is", "Channel"] and "fact" not in second
    for broken in ("Seine", ["Seine"], ["Seine", 3], ["Seine", " "], {"Seine": "Channel"}):
        with pytest.raises(DataError, match=r"f, line 1: `rubric\[0\]\.fact"):
            tasks({"question": "Q", "rubric": [{"criterion": "a", "fact": broken}]}, "f, line 1", {})


def test_a_conversation_may_replace_a_question() -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    for row in ({"question": "Q", "messages": talk}, {"prompt": talk}):
        row = tasks({**row, "rubric": [{"criterion": "a", "priority": "bonus"}]}, "a place", {})
        assert row["question"] == "user: Hi\n\nassistant: Hello"
        assert row["rubric"] == [{"criterion": "a", "weight": 1.0, "priority": "bonus"}]


# ----------------------------------------------------------------------------------------------------------- real data
QA = {
    "2wikimultihopqa": 350,
    "aime": 42,
    "amc23": 28,
    "bamboogle": 88,
    "frames": 210,
    "gpqa_diamond": 139,
    "gsm8k": 350,
    "hotpotqa": 350,
    "hotpotqa_train": 70,
    "leval_nq": 74,
    "leval_quality": 132,
    "math500": 350,
    "mmlu_pro": 337,
    "musique": 168,
    "musique_train": 70,
    "nq": 350,
    "popqa": 350,
    "simpleqa": 350,
    "squad_xquad_en": 348,
    "triviaqa": 350,
}


@pytest.mark.parametrize(("name", "count"), QA.items())
def test_real_questions_load_by_the_name_of_their_file(shared_data: Path, name: str, count: int) -> None:
    (path,) = (shared_data / "qa").glob(f"{name}.jsonl*")
    rows = sources.load(source(path, "questions"))
    assert len(rows) == count and all(row["question"] and row["answers"] for row in rows)
    assert len(sources.load(source(path, "answers"))) == count
    assert len(sources.load(source(path, "questions", limit=20))) == 20


def test_real_questions_load_by_a_mapping(shared_data: Path) -> None:
    path = shared_data / "qa" / "mmlu_pro.jsonl"
    letters, texts = (sources.load(source(path, "questions", columns=c)) for c in ({}, {"answers": "answer_text"}))
    assert {len(row["answers"][0]) for row in letters} == {1}
    assert [row["question"] for row in letters] == [row["question"] for row in texts]
    assert max(len(row["answers"][0]) for row in texts) > 100
    worked = sources.load(source(shared_data / "qa" / "gsm8k.jsonl", "questions", columns={"answers": "solution"}))
    assert all("####" in row["answers"][0] for row in worked)
    hops = sources.load(source(shared_data / "qa" / "musique_train.jsonl", "answers", columns={"searches": "hops"}))
    assert {row["searches"] for row in hops} == {2, 3, 4}


@pytest.mark.parametrize(("name", "count"), [("healthbench", 70), ("scholarqa_cs", 73), ("deep_research_bench", 70)])
def test_real_rubrics_load_by_the_name_of_their_file(shared_data: Path, name: str, count: int) -> None:
    rows = sources.load(source(shared_data / "rubric_qa" / f"{name}.jsonl", "tasks"))
    assert len(rows) == count and all(item["weight"] > 0 for row in rows for item in row["rubric"])


@pytest.mark.parametrize("name", ["arena_hard_v2", "biggen_bench", "mt_bench"])
def test_real_tasks_without_a_list_of_criteria_are_refused(shared_data: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}\.jsonl, line 1: has no rubric in `rubric` or `rubrics`;"):
        sources.load(source(shared_data / "rubric_qa" / f"{name}.jsonl", "tasks"))


@pytest.mark.parametrize(("name", "count"), [("corpus/passages", 500), ("longdoc/docs", 24)])
def test_real_documents_load_by_name(shared_data: Path, tmp_path: Path, name: str, count: int) -> None:
    with (shared_data / f"{name}.jsonl").open(encoding="utf-8") as lines:
        path = tmp_path / "first.jsonl"  # the first rows, as reading all takes long
        path.write_text("".join(itertools.islice(lines, count)), encoding="utf-8")
    rows = sources.load(source(path, "documents"))
    assert len(rows) == count and set(rows[count - 1]) == {"id", "title", "text"}
    few = sources.load(source(path, "documents", limit=5))
    assert len(few) == 5 and all(row in list(rows) for row in few)


DOCUMENT = {"id": "a", "title": "A", "text": "About a."}


def test_queries_need_no_answer() -> None:
    for row in ({"question": "Why?", "answers": []}, {"query": "Why?"}, {"prompt": "Why?"}):
        assert queries(row, "a place", {}) == {"question": "Why?"}
    said = [{"role": "user", "content": "Why?"}]
    assert queries({"messages": said}, "a place", {}) == {"question": "user: Why?"}
    with pytest.raises(DataError, match="a place: "):
        queries({"question": ""}, "a place", {})


def test_clusters_have_an_id_and_documents() -> None:
    row = {"id": 7, "family": "math", "documents": [DOCUMENT, {"text": "About b."}], "size": 2}
    second = {"id": "1", "title": "", "text": "About b."}
    assert clusters(row, "a place", {}) == {"id": "7", "family": "math", "documents": [DOCUMENT, second]}
    assert clusters({"id": "x", "documents": [DOCUMENT]}, "a place", {})["family"] is None


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"documents": [DOCUMENT]}, "has no id"),
        ({"id": True, "documents": [DOCUMENT]}, "`id` holds true or false; an id is a string or a whole number"),
        ({"id": "x"}, "has no documents"),
        ({"id": "x", "documents": []}, "has no documents"),
        ({"id": "x", "documents": "About a."}, "`documents` holds a string, not a list of documents"),
        ({"id": "x", "documents": ["About a."]}, r"`documents\[0\]` holds a string, not a document"),
        ({"id": "x", "documents": [{"id": "a"}]}, r"documents\[0\]: has no text"),
        ({"id": "x", "documents": [DOCUMENT, DOCUMENT]}, "two of its documents have the id 'a'"),
        ({"id": "x", "family": 3, "documents": [DOCUMENT]}, "`family` holds a number, not text"),
    ],
)
def test_broken_clusters_are_named(row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DataError, match=f"^a place.*{complaint}"):
        clusters(row, "a place", {})


def test_two_clusters_with_one_id_are_refused(tmp_path: Path) -> None:
    rows = [{"id": "x", "documents": [DOCUMENT]}, {"id": "x", "documents": [{"text": "About b."}]}]
    with pytest.raises(DataError, match=r"two clusters have the id 'x'; make ids unique"):
        sources.load(source(jsonl(tmp_path / "clusters.jsonl", *rows), "clusters"))


def test_readings_are_questions_about_a_text() -> None:
    plain = {"question": "Who?", "answers": ["Ada"], "options": [], "task": None, "context": "About Ada."}
    assert readings({"question": "Who?", "answers": ["Ada"], "context": "About Ada."}, "a place", {}) == plain
    longbench = {"input": "Who?", "answers": ["Ada"], "context": "About Ada.", "length": 2}
    assert readings(longbench, "a place", {"question": "input"}) == plain
    parts = [{"id": "1", "title": "A", "text": "About a."}, "About b."]
    row = {"question": "How much?", "answer": "5", "documents": parts, "task": "math"}
    found = readings(row, "a place", {})
    assert (found["context"], found["task"]) == ("Title: A\nAbout a.\n\nAbout b.", "math")
    second = {f"choice_{letter}": f"in {letter}" for letter in "ABCD"}  # LongBench v2
    row = {"question": "When?", "answer": "B", "context": "…", **second}
    assert readings(row, "a place", {})["options"] == ["in A", "in B", "in C", "in D"]
    row = {"question": "When?", "answer": "B", "context": "…", "options": {"B": "two", "A": "one"}}
    assert readings(row, "a place", {})["options"] == ["one", "two"]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({}, "has no context"),
        ({"context": ""}, "`context` is empty"),
        ({"context": [{"id": "1"}]}, r"context\[0\]: has no text"),
        ({"context": "…", "options": "A or B"}, "`options` holds a string, not the options"),
        ({"context": "…", "options": ["A", 2]}, "`options` holds a number, not text"),
        ({"context": "…", "task": 1}, "`task` holds a number, not text"),
        ({"context": "…", "task": "poem"}, "`task` is 'poem'; write qa, math or choice, or leave it out"),
        ({"context": "…", "task": "choice"}, "`answers` holds 'ADA'; write a letter from A to Z"),
        ({"context": "…", "task": "choice", "answers": ["C"], "options": ["x", "y"]}, "`answers` holds 'C'; .* A to B"),
    ],
)
def test_broken_readings_are_named(row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DataError, match=f"^a place.*{complaint}"):
        readings({"question": "Who?", "answers": ["Ada"], **row}, "a place", {})
