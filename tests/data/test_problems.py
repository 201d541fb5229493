"""Prompts with answers: the forms of other trainers, and the part of a file that is held out."""

import json
import random

import pytest

from scope_jax.config import RowsSection
from scope_jax.data import sources
from scope_jax.data.held_out import held_out
from scope_jax.data.problems import problems
from scope_jax.data.rows import DataError
from scope_jax.data.sources import Source
from tests.data.files import jsonl

ASKED = [{"role": "user", "content": "1 + 1"}]


def read(row, **columns):
    return problems(row, "f, line 1", columns)


@pytest.mark.parametrize(
    ("row", "answers", "rest"),
    [
        ({"question": "1 + 1", "answer": "2"}, ["2"], {}),
        ({"prompt": "1 + 1", "solution": "\\boxed{2}", "level": 3}, ["\\boxed{2}"], {"level": 3}),  # TRL
        ({"prompt": ASKED, "answer": 2}, ["2"], {}),
        ({"messages": ASKED, "reference_answer": "2"}, ["2"], {}),  # OpenAI
        ({"prompt": json.dumps(ASKED), "answers": ["2", "2.0", "2"]}, ["2", "2.0"], {}),
        ({"problem": "1 + 1", "solution": "As 1 + 1 …", "answer": "2"}, ["2"], {"solution": "As 1 + 1 …"}),
        ({"prompt": "1 + 1", "answer": {"a": [1]}}, ['{"a": [1]}'], {}),
        ({"prompt": "1 + 1", "answer": [1, 2]}, ["[1, 2]"], {}),
        ({"prompt": "1 + 1", "answer": [["a"]]}, ['[["a"]]'], {}),
        ({"prompt": "1 + 1", "answer": True}, ["true"], {}),
        ({"prompt": "1 + 1", "tests": ["f"]}, [], {"tests": ["f"]}),
        ({"prompt": "1 + 1", "answer": " "}, [], {}),
    ],
)
def test_forms_of_rows(row, answers, rest):
    found = read(row)
    assert (found["question"], found["answers"], found["columns"]) == ("1 + 1", answers, rest)
    assert found["messages"] == ASKED and found["where"] == "f, line 1"
    given = next((row[key] for key in ("answers", "answer", "reference_answer", "solution") if key in row), None)
    assert (found["prompt"], found["answer"]) == (row.get("prompt", ASKED if "messages" in row else "1 + 1"), given)


@pytest.mark.parametrize(("truth", "answers"), [("72", ["72"]), ({"target": ["a", "b"]}, ["a", "b"]), (None, [])])
def test_rows_of_verl(truth, answers):
    row = {
        "data_source": "openai/gsm8k",
        "prompt": ASKED,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"answer": "no"},
    }
    found = read(row)
    assert found["answers"] == answers and found["columns"] == {key: row[key] for key in row if key != "prompt"}


def test_columns_name_others():
    row = {"text": "1 + 1", "extra": {"gold": "2"}, "answer": "no"}
    found = read(row, prompt="text", answers="extra.gold")
    assert found["answers"] == ["2"] and found["columns"] == {"extra": {"gold": "2"}, "answer": "no"}


def test_systems_and_earlier_turns_are_kept():
    turns = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}, *ASKED]
    found = read({"messages": turns, "system": "Be brief.", "answer": "2"})
    assert found["messages"] == [{"role": "system", "content": "Be brief."}, *turns]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"answer": "2"}, "has no prompt in `prompt` or `messages` or `question`"),
        ({"prompt": " ", "answer": "2"}, "`prompt` is empty"),
        ({"prompt": 3, "answer": "2"}, "`prompt` holds a number, not text"),
        ({"prompt": [*ASKED, {"role": "assistant", "content": "2"}]}, "ends with a message of the assistant"),
        ({"prompt": [{"role": "user"}]}, r"`prompt\[0\].content` holds null"),
        ({"prompt": [*ASKED[:0]]}, "has no prompt"),
    ],
)
def test_bad_rows_are_one_sentence(row, said):
    with pytest.raises(DataError, match=f"^f, line 1: .*{said}"):
        read(row)


# ------------------------------------------------------------------------------------------------------------ held out
def prompts(count: int) -> list[str]:
    return [f"prompt {number}" for number in range(count)]


@pytest.mark.parametrize("count", [100, 101, 300, 499, 1_000, 3_000, 8_000])
def test_a_tenth_within_bounds_is_held_out(count):
    held = sum(held_out(prompts(count)))
    assert 50 <= held <= 500
    assert count not in (100, 101, 300) or held == 50
    assert count != 8_000 or held == 500
    assert count not in (1_000, 3_000) or abs(held - count / 10) < 4 * (0.09 * count) ** 0.5


def test_neither_order_nor_other_rows_matter_within_the_bounds():
    texts = prompts(3_000)
    held = dict(zip(texts, held_out(texts), strict=True))
    random.Random(0).shuffle(texts)
    assert dict(zip(texts, held_out(texts), strict=True)) == held
    fewer = texts[:1_500]
    assert held_out(fewer) == [held[text] for text in fewer]


def test_equal_prompts_are_on_one_side():
    texts = [f"prompt {number % 70}" for number in range(700)]
    held = held_out(texts)
    assert 50 <= sum(held) <= 500 and len({*zip(texts, held, strict=True)}) == 70
    assert sum(held_out(["one"] * 700)) == 0 and sum(held_out(["one"] * 700 + prompts(60))) == 50
    assert not any(held_out(prompts(99)))


def test_the_two_parts_of_a_file_are_the_whole(tmp_path):
    path = str(jsonl(tmp_path / "rows.jsonl", *({"prompt": text, "answer": "a"} for text in prompts(200))))
    whole, trained, held = (
        sources.load(Source(path, "problems", RowsSection(), part=part)) for part in ("all", "trained", "held-out")
    )
    assert (len(trained), len(held)) == (150, 50)
    assert sorted([*trained, *held], key=lambda row: row["where"]) == sorted(whole, key=lambda row: row["where"])
    few = sources.load(Source(path, "problems", RowsSection(limit=20), part="trained"))
    assert len(few) == 20 and all(row in trained for row in few)


def test_too_few_rows_ask_for_an_exam(tmp_path):
    path = str(jsonl(tmp_path / "rows.jsonl", *({"prompt": text, "answer": "a"} for text in prompts(99))))
    with pytest.raises(DataError, match=r"has 99 rows, too few .* give at least 100, or an exam of other rows"):
        sources.load(Source(path, "problems", RowsSection(), part="trained"))
    with pytest.raises(DataError, match="no part of questions is held out; remove `part`"):
        sources.load(Source(str(jsonl(tmp_path / "q.jsonl", {"question": "q", "answer": "a"})), "questions",
                            RowsSection(), part="held-out"))  # fmt: skip
