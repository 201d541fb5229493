"""Files of published data sets as they are published: which recipe their error names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config.tables import DataSection
from scope_jax.data import recognition
from scope_jax.data.conversion import convert
from scope_jax.data.rows import DataError
from scope_jax.data.schemas import Kind
from scope_jax.data.sources import Source

RAW: list[tuple[str, Kind, dict[str, Any]]] = [
    ("bbeh", "problems", {"input": "True or false?", "target": "True"}),
    ("frames", "questions", {"Unnamed: 0": 1, "Prompt": "Who?", "Answer": "She"}),
    (
        "gpqa-diamond",
        "choices",
        {"Question": "?", "Correct Answer": "a"} | {f"Incorrect Answer {n}": f"{n}" for n in (1, 2, 3)},
    ),
    ("hotpotqa-long", "readings", {"input": "?", "context": "A text.", "answers": ["a"]}),
    ("docmath", "readings", {"question_id": "q", "question": "?", "paragraphs": ["one"], "ground_truth": 3.0}),
    ("researchplangen", "tasks", {"Goal": "A plan", "Rubric": ["It is short."]}),
    ("wildbench", "tasks", {"conversation_input": [{"role": "user", "content": "Hi"}], "checklist": ["Is it kind?"]}),
    ("spell-clusters", "clusters", {"paragraphs": ["a", "b"], "question_id": "1", "data_source": "docmath"}),
    ("queries", "queries", {"title": "A question", "selftext": "And more."}),
]


def file(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "raw.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "kind", "row"), RAW, ids=[name for name, *_ in RAW])
def test_the_error_of_raw_rows_names_what_converts_them(
    name: str, kind: Kind, row: dict[str, Any], tmp_path: Path
) -> None:
    path = file(tmp_path, row)
    with pytest.raises(DataError, match="`") as error:
        recognition.load(Source(str(path), kind, DataSection()))
    assert str(error.value).endswith(
        f"; rows of {name} are converted by `scope-jax data {name} OUT.jsonl --source {path}`."
    )
    assert convert(name, tmp_path / "out.jsonl", [str(path)], split=None, hub_config=None, baseline=None)["rows"] == 1


def test_other_bad_rows_keep_their_error(tmp_path: Path) -> None:
    for text in ('{"story": "Once"}\n', "{\n", ""):
        path = tmp_path / "rows.jsonl"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError) as error:
            recognition.load(Source(str(path), "problems", DataSection()))
        assert "scope-jax data" not in str(error.value)
    with pytest.raises(FileNotFoundError):
        recognition.load(Source(str(tmp_path / "none.jsonl"), "problems", DataSection()))


def test_solutions_of_gsm8k_are_recognised(tmp_path: Path) -> None:
    assert recognition.holds_solutions(str(file(tmp_path, {"question": "?", "answer": "1 + 1 = 2\n#### 2"})))
    assert not recognition.holds_solutions(str(file(tmp_path, {"question": "?", "answer": "2"})))
    assert not recognition.holds_solutions("openai/gsm8k")
