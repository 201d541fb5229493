"""Rows of given conversations and preferences, in the forms of published data sets; each fault is one sentence."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scope_jax.config import RowsSection
from scope_jax.data.rows import DataError
from scope_jax.data.schemas import SCHEMAS
from scope_jax.data.sources import Source, load

ASK, SAY = {"role": "user", "content": "a?"}, {"role": "assistant", "content": "one."}


def read(kind, row):
    return SCHEMAS[kind](row, "f:1", {})


@pytest.mark.parametrize(
    ("row", "messages", "first"),
    [
        ({"messages": [ASK, SAY]}, [ASK, SAY], 0),
        ({"prompt": "a?", "completion": "one."}, [ASK, SAY], 1),
        ({"prompt": [ASK, SAY, ASK], "completion": [SAY]}, [ASK, SAY, ASK, SAY], 3),
        ({"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "one."}]}, [ASK, SAY], 0),
        ({"system": "s", "question": "a?", "answer": "one."}, [{"role": "system", "content": "s"}, ASK, SAY], 2),
    ],
)
def test_forms_of_conversations(row, messages, first):
    assert read("conversations", row) == {"messages": messages, "first": first, "tools": None}


def test_forms_of_preferences():
    other = {"role": "assistant", "content": "two."}
    wanted = {
        "chosen": {"messages": [ASK, SAY], "first": 1, "tools": None},
        "rejected": {"messages": [ASK, other], "first": 1, "tools": None},
    }
    assert read("preferences", {"prompt": "a?", "chosen": "one.", "rejected": "two."}) == wanted
    assert read("preferences", {"prompt": [ASK], "chosen": [SAY], "rejected": [other]}) == wanted
    assert read("preferences", {"prompt": "a?", "chosen": [ASK, SAY], "rejected": [ASK, other]}) == wanted


def test_a_file_of_parquet_gives_the_rows_of_one_of_jsonl(tmp_path):
    """Parquet writes null for what a message of another role has."""
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    other = {"id": "call00000", "type": "function", "function": {"name": "g", "arguments": {"y": {"z": [1]}}}}
    rows = [
        {"messages": [ASK, {"role": "assistant", "content": "", "tool_calls": [call]}]},
        {"messages": [ASK, {"role": "assistant", "content": "", "tool_calls": [other]}]},
        {"messages": [ASK, SAY]},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    one, two = (
        load(Source(str(tmp_path / f"rows.{kind}"), "conversations", RowsSection())) for kind in ("jsonl", "parquet")
    )
    assert list(one) == list(two) and one[0]["messages"][1]["tool_calls"] == [call]


@pytest.mark.parametrize(
    ("kind", "row", "sentence"),
    [
        ("conversations", {"text": "a"}, "f:1: has no messages in `messages` or `conversations`"),
        ("conversations", {"prompt": "a"}, "f:1: has no completion in `completion`"),
        ("conversations", {"messages": "a"}, "f:1: `messages` holds a string, not messages"),
        ("conversations", {"messages": ["a"]}, r"f:1: `messages\[0\]` holds a string, not a message"),
        ("conversations", {"messages": [{"content": "a"}]}, r"f:1: `messages\[0\]` has no role"),
        ("conversations", {"messages": [ASK, {"role": "assistant"}]}, r"`messages\[1\].content` holds null, not text"),
        ("conversations", {"messages": [SAY]}, "f:1: `messages` begins with the assistant"),
        ("conversations", {"messages": [ASK]}, "f:1: `messages` does not end with a message of the assistant"),
        ("conversations", {"messages": [ASK, SAY | {"content": " "}]}, "f:1: the last message of `messages` is empty"),
        ("conversations", {"messages": [ASK, SAY], "tools": "f"}, "f:1: `tools` holds a string, not the schemas"),
        ("conversations", {"messages": [ASK, SAY | {"content": "\ud800"}]}, "half of a surrogate pair"),
        ("preferences", {"prompt": "a?", "chosen": "one."}, "f:1: has no rejected in `rejected`"),
        ("preferences", {"chosen": "one.", "rejected": "two."}, "f:1: has no prompt in `prompt`"),
        ("preferences", {"prompt": "a?", "chosen": "x", "rejected": "x"}, "f:1: `chosen` and `rejected` are the same"),
        ("preferences", {"prompt": "a?", "chosen": [ASK, SAY], "rejected": [ASK]}, "`rejected` does not end with"),
    ],
)
def test_each_fault_is_one_sentence(kind, row, sentence):
    with pytest.raises(DataError, match=sentence) as error:
        read(kind, row)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)
