"""`scope-jax data`: rows of published formats, made here after their descriptions, become ours; bad rows are kept."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.config import RowsSection
from scope_jax.config.suites import load_suite, suite_names
from scope_jax.data.published import RECIPES
from scope_jax.data.rows import attempts
from scope_jax.data.schemas import SCHEMAS
from scope_jax.data.sources import Source, load
from scope_jax.evaluation.suites import KINDS

TALK = [{"role": "user", "content": "hi"}]
# name: (published row, our row)
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nq": (
        {"id": "test_0", "question": "who?", "golden_answers": ["A", "B"], "metadata": {}},
        {"id": "test_0", "question": "who?", "answers": ["A", "B"]},
    ),
    "musique": (
        {"id": "2hop", "question": "who?", "answer": "A", "answer_aliases": ["B", "A"]},
        {"id": "2hop", "question": "who?", "answers": ["A", "B"]},
    ),
    "simpleqa": ({"problem": "when?", "answer": "1999"}, {"question": "when?", "answers": ["1999"]}),
    "frames": (
        {"Unnamed: 0": 3, "Prompt": "when?", "Answer": "1999"},
        {"id": "3", "question": "when?", "answers": ["1999"]},
    ),
    "math500": (
        {"problem": "1+1?", "answer": "2", "unique_id": "test/algebra/1.json"},
        {"id": "test/algebra/1.json", "question": "1+1?", "answers": ["2"]},
    ),
    "gsm8k": (
        {"question": "many?", "answer": "a\nb <<1*1=1>>\n#### 1,234"},
        {"question": "many?", "answers": ["1234"]},
    ),
    "aime24": ({"id": 60, "problem": "p", "answer": "033"}, {"id": "60", "question": "p", "answers": ["33"]}),
    "amc23": ({"id": 0, "question": "p", "answer": 27.0}, {"id": "0", "question": "p", "answers": ["27"]}),
    "olympiadbench": (
        {"id": 7, "question": "p", "final_answer": ["$1$", "$2$"]},
        {"id": "7", "question": "p", "answers": ["$1$, $2$"]},
    ),
    "bbeh": (
        {"input": "p", "target": ["(C)", "3, 1, 2"], "task": "t"},
        {"question": "p", "answers": ["(C)", "C", "3, 1, 2", "3,1,2"]},
    ),
    "mmlu-pro": (
        {"question_id": 70, "question": "q", "options": ["a", "b", "N/A"], "answer": "B", "answer_index": 1},
        {"id": "70", "question": "q", "options": ["a", "b"], "answers": ["B"]},
    ),
    "supergpqa": (
        {"uuid": "u", "question": "q", "options": ["a", "b"], "answer": "b", "answer_letter": "B"},
        {"id": "u", "question": "q", "options": ["a", "b"], "answers": ["B"]},
    ),
    "drb-race": (
        {
            "id": 1,
            "prompt": "report",
            "dimension_weight": {"insight": 1.0},
            "criterions": {"insight": [{"criterion": "c", "explanation": "e", "weight": 0.5}]},
        },
        {
            "id": "1",
            "question": "report",
            "dimension_weight": {"insight": 1.0},
            "rubric": [{"dimension": "insight", "criterion": "c", "explanation": "e", "weight": 0.5}],
        },
    ),
    "researchrubrics": (
        {
            "sample_id": "s",
            "prompt": "p",
            "rubrics": [{"criterion": "c", "weight": 5}, {"criterion": "d", "weight": -2}],
        },
        {"id": "s", "question": "p", "rubric": [{"criterion": "c", "weight": 5}, {"criterion": "d", "weight": -2}]},
    ),
    "researchqa": (
        {"id": "r", "query": "q", "rubric": [{"rubric_item": "i", "type": "t"}]},
        {"id": "r", "question": "q", "rubric": [{"criterion": "i", "weight": 1.0}]},
    ),
    "researchplangen": ({"Goal": "g", "Rubric": ["a"]}, {"question": "g", "rubric": [{"criterion": "a"}]}),
    "sqa-cs-v2": (
        {
            "case_id": "c",
            "initial_prompt": "q",
            "metric_config": {"config": {"question": "q", "other_properties": [{"criterion": "i", "weight": 0.1}]}},
        },
        {"id": "c", "question": "q", "rubric": [{"criterion": "i", "weight": 0.1}]},
    ),
    "healthbench": (
        {"prompt_id": "h", "prompt": TALK, "rubrics": [{"criterion": "c", "points": -3, "tags": []}], "canary": "x"},
        {"id": "h", "messages": TALK, "rubric": [{"criterion": "c", "weight": -3}], "canary": "x"},
    ),
    "wildbench": (
        {"session_id": "w", "conversation_input": TALK, "checklist": ["a", "b"]},
        {"id": "w", "question": "hi", "rubric": [{"criterion": "a"}, {"criterion": "b"}]},
    ),
    "docmath": (
        {"question_id": "d", "question": "q", "paragraphs": ["a", "b"], "ground_truth": 12.5},
        {"id": "d", "question": "q", "context": ["a", "b"], "answers": ["12.5"], "task": "math"},
    ),
    "hotpotqa-long": (
        {"_id": "l", "input": "q", "context": "c", "answers": ["a"], "length": 3},
        {"id": "l", "question": "q", "context": "c", "answers": ["a"]},
    ),
    "longbench-v2": (
        {"_id": "v", "question": "q", "context": "c", **{f"choice_{x}": x for x in "ABCD"}, "answer": "D"},
        {"id": "v", "question": "q", "context": "c", "options": [*"ABCD"], "answers": ["D"], "task": "choice"},
    ),
    "frames-long": (
        {"Prompt": "q", "Answer": "a", "wiki_items": [{"title": "t", "text": "one"}, {"title": "u", "text": "two"}]},
        {"question": "q", "answers": ["a"], "context": [{"title": "t", "text": "one"}, {"title": "u", "text": "two"}]},
    ),
    "squad": (
        {
            "id": "5f",
            "title": "New_Tin",
            "context": "Tin is soft.",
            "question": "How is tin?",
            "answers": {"text": ["soft", "soft", "is soft"], "answer_start": [7, 7, 4]},
        },
        {
            "id": "5f",
            "prompt": "New Tin\nTin is soft.\n\nQuestion: How is tin?\n"
            "Answer with a few words from the text, nothing else.",
            "completion": "soft",
            "answers": ["soft", "is soft"],
        },
    ),
    "squad-questions": (
        {
            "id": "5f",
            "title": "T",
            "context": "c",
            "question": "q",
            "answers": {"text": ["a", "b"], "answer_start": [1]},
        },
        {"id": "5f", "question": "q", "answers": ["a", "b"]},
    ),
    "squad-passages": (
        {"id": "5f", "title": "New_Tin", "context": "Tin is soft.", "question": "q", "answers": {"text": ["soft"]}},
        {"id": "706ccb770f6d4241", "title": "New Tin", "text": "Tin is soft."},
    ),
    "wiki-18": ({"id": "5", "contents": '"Title"\ntext'}, {"id": "5", "title": "Title", "text": "text"}),
    "spell-clusters": (
        {"question_id": 7, "data_source": "docmath_complong", "paragraphs": ["Sales rose.", " ", "Costs fell."]},
        {
            "id": "docmath_complong-7",
            "family": "math",
            "documents": [{"id": "0", "text": "Sales rose."}, {"id": "1", "text": "Costs fell."}],
        },
    ),
    "ssp-answers": ({"ground_truth": "a", "search_turns": 3}, {"answers": ["a"], "search_turns": 3}),
    "verl": (
        {"prompt": TALK, "reward_model": {"ground_truth": {"target": ["a"]}}},
        {"question": "hi", "answers": ["a"]},
    ),
    "queries": ({"title": "t", "selftext": "s"}, {"question": "t\n\ns"}),
    "prompts": ({"prompt": "p", "rubric": ["a"]}, {"question": "p", "rubric": [{"criterion": "a"}]}),
}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_row_becomes_ours(name: str) -> None:
    published, ours = PUBLISHED[name]
    recipe = RECIPES[name]
    assert recipe.make(published, "f, line 1") == ours
    row = ours | {"rubric": [{"criterion": "good"}, *ours["rubric"]]} if name == "healthbench" else ours
    if recipe.kind != "documents":
        SCHEMAS[recipe.kind](row, "f, line 1", {})


def test_the_header_of_every_exam_names_a_command_that_can_make_its_rows() -> None:
    """Of data sets that have no name on the hub, or come in two files, it names the files."""
    for path in sorted(Path("configs/exams").glob("*.toml")):
        (command,) = re.findall(r"^#   (scope-jax data .*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        recipe = RECIPES[path.stem]
        assert command.startswith(f"scope-jax data {path.stem} data/exams/{path.stem}.jsonl")
        assert (recipe.hub is None) == ("--source " in command) and recipe.baseline == ("--baseline " in command), path


def test_every_exam_has_a_recipe_of_its_kind() -> None:
    for name in suite_names():
        suite, kind = load_suite(name), RECIPES[name].kind
        rubric = {"rubric": "tasks", "rating": "tasks", "points": "marked"}.get(suite.measures[0])
        assert kind == (rubric or KINDS[suite.form])


def test_gpqa_has_an_order_that_depends_on_the_question_only() -> None:
    row = {"Question": "q", "Correct Answer": "right\n"} | {f"Incorrect Answer {i}": f"wrong {i}" for i in (1, 2, 3)}
    made = [RECIPES["gpqa-diamond"].make(row | {"Question": f"q{place}"}, "f") for place in range(40)]
    assert all(one["options"]["ABCD".index(one["answers"][0])] == "right" for one in made)
    assert {one["answers"][0] for one in made} == set("ABCD")
    assert RECIPES["gpqa-diamond"].make(row, "f") == RECIPES["gpqa-diamond"].make(dict(reversed(row.items())), "g")


def test_nothing_is_lost(tmp_path: Path) -> None:
    """Invalid lines and rows are counted and kept with place and reason; the manifest has counts and checksums."""
    source, out = tmp_path / "raw.jsonl", tmp_path / "deep" / "nq.jsonl.gz"
    good = {"id": "1", "question": "who?", "golden_answers": ["é"]}
    bad = ['{"question": "no answer"}', "not json", '{"question": "", "golden_answers": ["x"]}', "[1]", '"text"',
           '{"question": "q", "golden_answers": [{"a": 1}]}']  # fmt: skip
    source.write_text("\n".join([json.dumps(good), "", *bad, json.dumps(good | {"id": "2"})]), encoding="utf-8")
    result = run("data", "nq", out, "--source", source, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    with gzip.open(out, "rt", encoding="utf-8") as file:
        written = [json.loads(line) for line in file]
    assert [row["id"] for row in written] == ["1", "2"] and written[0]["answers"] == ["é"]
    refused = lines(tmp_path / "deep" / "nq.jsonl.gz.refused.jsonl")
    assert len(refused) == len(bad) and [each["row"] for each in refused][1] == "not json"
    assert [each["reason"].split(":")[0].rpartition(" ")[2] for each in refused] == ["3", "4", "5", "6", "7", "8"]
    shown = json.loads(result.stdout.splitlines()[-1])
    manifest = json.loads((tmp_path / "deep" / "nq.jsonl.gz.manifest.json").read_text())
    assert shown == {"file": str(out), **manifest}
    assert (manifest["rows"], manifest["refused"], manifest["other"]) == (2, len(bad), 0)
    assert manifest["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert manifest["sources"] == {str(source): hashlib.sha256(source.read_bytes()).hexdigest()}
    assert "6 rows could not be converted" in result.stderr and "line 3: has no answers" in result.stderr
    assert not list(tmp_path.rglob("*.partial"))
    before = out.read_bytes()
    assert run("data", "nq", out, "--source", source).exit_code == 0 and out.read_bytes() == before
    source.write_text(json.dumps(good))
    assert run("data", "nq", out, "--source", source).exit_code == 0
    assert not (tmp_path / "deep" / "nq.jsonl.gz.refused.jsonl").exists()  # nothing was refused this time


def test_a_row_of_another_shape_is_refused_and_said_so(tmp_path: Path) -> None:
    good = PUBLISHED["wildbench"][0]
    rows = [good, good | {"conversation_input": ["hi"]}, good | {"checklist": [{"criterion": "\ud800"}]}]
    (tmp_path / "raw.json").write_text(json.dumps(rows))  # one JSON list
    result = run("data", "wildbench", tmp_path / "w.jsonl", "--source", tmp_path / "raw.json")
    assert result.exit_code == 0, (result.output, result.exception)
    reasons = [each["reason"] for each in lines(tmp_path / "w.jsonl.refused.jsonl")]
    assert "row 2: is not in the format of WildBench v2" in reasons[0] and "surrogate" in reasons[1]


def test_spells_training_sets_become_clusters(tmp_path: Path) -> None:
    """Two files of the columns that the authors publish: reports for math, pages for the other two tasks alike."""
    report, page = {"data_source": "docmath", "paragraphs": ["Sales.", "Costs."]}, {"data_source": "ultrafineweb"}
    sets = {
        "docmath": [report | {"question_id": str(number)} for number in range(3)],
        "web": [page | {"question_id": str(number), "paragraphs": [f"Page {number}."]} for number in range(400)],
    }
    for name, rows in sets.items():
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    words = [word for name in sets for word in ("--source", tmp_path / f"{name}.parquet")]
    done = run("data", "spell-clusters", tmp_path / "clusters.jsonl", *words)
    assert done.exit_code == 0, done.output
    rows = list(load(Source(str(tmp_path / "clusters.jsonl"), "clusters", RowsSection())))  # as the game does
    families = [row["family"] for row in rows]
    assert len({row["id"] for row in rows}) == 403 and families[:3] == ["math"] * 3
    assert set(families[3:]) == {"qa", "choice"} and 160 < families.count("qa") < 240
    assert [document["text"] for document in rows[0]["documents"]] == ["Sales.", "Costs."]


def test_the_passages_of_squad_are_written_once(tmp_path: Path) -> None:
    row = PUBLISHED["squad-passages"][0]
    rows = [row, row | {"id": "60", "question": "other"}, row | {"context": "Tin melts."}, row, row | {"title": "Tin"}]
    (tmp_path / "raw.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = run("data", "squad-passages", tmp_path / "p.jsonl", "--source", tmp_path / "raw.jsonl", "--json")
    assert done.exit_code == 0, done.output
    written = [(each["title"], each["text"]) for each in lines(tmp_path / "p.jsonl")]
    assert written == [("New Tin", "Tin is soft."), ("New Tin", "Tin melts."), ("Tin", "Tin is soft.")]
    assert len({each["id"] for each in lines(tmp_path / "p.jsonl")}) == 3
    assert json.loads(done.stdout.splitlines()[-1])["other"] == 2
    assert run("data", "squad-questions", tmp_path / "q.jsonl", "--source", tmp_path / "raw.jsonl").exit_code == 0
    assert [each["question"] for each in lines(tmp_path / "q.jsonl")] == ["q", "other", "q", "q", "q"]


def test_parquet_and_several_sources(tmp_path: Path) -> None:
    for place in (1, 2):
        table = pa.table({"ground_truth": [f"a{place}", "b"], "search_turns": [place, None]})
        pq.write_table(table, tmp_path / f"{place}.parquet")
    words = [word for place in (1, 2) for word in ("--source", tmp_path / f"{place}.parquet")]
    assert run("data", "ssp-answers", tmp_path / "a.jsonl", *words).exit_code == 0
    made = [{"answers": ["a1"], "search_turns": 1}, {"answers": ["b"]}, {"answers": ["a2"], "search_turns": 2}]
    assert lines(tmp_path / "a.jsonl") == [*made, {"answers": ["b"]}]


def test_arena_hard_gets_the_answers_of_its_baseline(tmp_path: Path) -> None:
    asked = [{"uid": "1", "category": "creative_writing", "prompt": "a poem"}, {"uid": "2", "category": "hard_prompt"}]
    told = [{"uid": "1", "messages": [*TALK, {"role": "assistant", "content": {"answer": "roses"}}]}]
    for name, rows in (("asked", asked), ("told", told)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("data", "arena-hard-cw", tmp_path / "out.jsonl", "--source", tmp_path / "asked.jsonl")
    assert "needs the answers of a baseline" in run(*words).stderr
    result = run(*words, "--baseline", tmp_path / "told.jsonl", "--json")
    assert json.loads(result.stdout)["other"] == 1
    assert lines(tmp_path / "out.jsonl") == [{"id": "1", "question": "a poem", "answers": ["roses"]}]


@pytest.mark.parametrize(
    "messages", [["hi"], "hello", {"content": "x"}, [{"content": {"text": "x"}}], [{"content": 3}]]
)
def test_a_baseline_without_answers_is_one_sentence(tmp_path: Path, messages: Any) -> None:
    for name, row in (("asked", {"uid": "1", "prompt": "a poem"}), ("told", {"uid": "1", "messages": messages})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    words = ("data", "arena-hard-cw", tmp_path / "out.jsonl", "--source", tmp_path / "asked.jsonl")
    result = run(*words, "--baseline", tmp_path / "told.jsonl")
    assert result.exit_code == 2 and "told.jsonl, line 1: `messages` is not a list that ends" in result.stderr


def test_questions_are_no_documents(tmp_path: Path) -> None:
    """NaturalReasoning's rows; SPICE's cards say what its two halves are made from."""
    row = {"question": "Why?", "reference_answer": "So.", "responses": [{"response_model": "m", "response": "So."}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({"text": "A page."}))
    result = run("data", "documents", tmp_path / "out.jsonl", "--source", tmp_path / "rows.jsonl")
    assert result.exit_code == 0 and "is a question, not a document; give pages with a `text`" in result.stderr
    assert [json.loads(line)["text"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == ["A page."]
    for card in (Path(__file__).parents[2] / "configs" / "spice").glob("[oq]*.toml"):
        header = card.read_text().split("\nsystem =")[0]
        assert "Nemotron-CC-Math" in header and "pages of DCLM" in header and "10,000 documents" in header


def test_documents_without_ids_get_none(tmp_path: Path) -> None:
    """A corpus numbers them; numbers of two files would be the same."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"id": 7, "text": "two"}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "three"}\n')
    words = [word for name in "ab" for word in ("--source", tmp_path / f"{name}.jsonl")]
    assert run("data", "documents", tmp_path / "out.jsonl", *words).exit_code == 0
    assert [(row.get("id"), row["text"]) for row in lines(tmp_path / "out.jsonl")] == [
        (None, "one"),
        ("7", "two"),
        (None, "three"),
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nqq", "{}/o.jsonl"), "there is no data set 'nqq'; give one of 2wikimultihopqa,"),
        (("nq", "{}/o.txt"), "is neither .jsonl nor .jsonl.gz"),
        (("docmath", "{}/o.jsonl"), "docmath has no name on the hub; give its file"),
        (("nq", "{}/o.jsonl", "--baseline", "x.jsonl"), "nq has no baseline"),
        (("nq", "{}/o.jsonl", "--source", "{}/gone.jsonl"), "gone.jsonl does not exist"),
        (("nq", "{}/o.jsonl", "--source", "{}/bad.jsonl"), "no row of"),
        (("nq", "{}/o.jsonl", "--source", "{}/list.json"), "is not a JSON list"),
        (("nq", "{}/bad.jsonl", "--source", "{}/bad.jsonl"), "bad.jsonl is also a source, which would be overwritten"),
    ],
)
def test_user_errors_are_sentences_and_leave_no_file(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{}\n")
    (tmp_path / "list.json").write_text("[{}, ")
    result = run("data", *(word.replace("{}", str(tmp_path)) for word in words))
    assert result.exit_code == 2 and sentence in result.stderr, (result.output, result.exception)
    assert not (tmp_path / "o.jsonl").exists()


def test_attempts_go_on_after_a_line_that_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('\n{"a": 1}\n{"a": NaN}\n{"a": 2}\n')
    found = [
        (where[-1], row if isinstance(row, dict) else None) for where, row, _ in attempts(str(tmp_path / "x.jsonl"))
    ]
    assert found == [("2", {"a": 1}), ("3", None), ("4", {"a": 2})]
