"""Rows that were trained wrongly before, in the forms in which people have them (the shared data has more of each)."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scope_jax.config import RowsSection
from scope_jax.data.rows import DataError
from scope_jax.data.schemas import SCHEMAS
from scope_jax.data.sources import Source, load
from scope_jax.errors import UserError
from scope_jax.play.conversations import given_rows, trained_rows
from scope_jax.play.turns import Joiner
from scope_jax.text import dialects
from tests.play.templates import paths, tokenizer_of

TEMPLATES = paths()


@pytest.fixture(scope="module")
def field(shared_data: Path) -> dict[int, Any]:
    """The rows by number."""
    lines = (shared_data / "conversations_field" / "sft_rows.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["row"]: row["data"] for row in map(json.loads, lines)}


def trained(template: str, row: dict[str, Any]) -> list[str]:
    """The trained stretches of a row."""
    read = SCHEMAS["conversations"](row, "f:1", {})
    tokenizer = tokenizer_of(TEMPLATES[template])
    stretches = []
    for datum in trained_rows(tokenizer, read["messages"], read["first"], read["tools"]):
        edges = np.flatnonzero(np.diff(datum.sampled_T.astype(int), prepend=0, append=0))
        parts = zip(edges[::2], edges[1::2], strict=True)
        stretches += [tokenizer.decode(datum.ids_T[start:end].tolist()) for start, end in parts]
    return stretches


def test_results_of_tools_are_not_trained_on_gpt_oss(field: dict[int, Any]) -> None:
    call, answer = trained("gptoss", field[39])
    assert call.endswith('<|message|>{"city": "Bern"}<|call|>') and "Look it up." in call
    assert answer.startswith("<|channel|>analysis<|message|>It rained.") and answer.endswith("Yes.<|return|>")
    assert "SECRET" not in call + answer


@pytest.mark.parametrize("template", ["qwen2_5", "llama3_1", "qwen3", "glm4moe"])
def test_arguments_as_text_are_an_object(field: dict[int, Any], template: str) -> None:
    call, _ = trained(template, field[41])
    assert "Zürich" in call and "\\" not in call


def test_nulls_of_tables_are_not_arguments(field: dict[int, Any], tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(field[43]), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in field[43]))
    kinds = ("parquet", "jsonl")
    one, two = (load(Source(str(tmp_path / f"rows.{kind}"), "conversations", RowsSection())) for kind in kinds)
    assert list(one) == list(two)
    assert not any("null" in text for row in field[43] for text in trained("qwen3", row))


def test_a_null_that_the_function_does_not_have_is_left_out() -> None:
    call = {"function": {"name": "f", "arguments": {"city": "Bern", "x": None, "note": None}}}
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"city": {}, "note": {}}}}]
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}], "tools": tools}
    kept = SCHEMAS["conversations"](row, "f:1", {})["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert kept == {"city": "Bern", "note": None}


def test_messages_of_weight_0_are_not_trained(field: dict[int, Any]) -> None:
    assert trained("qwen2_5", field[45]) == ["good<|im_end|>"]


@pytest.mark.parametrize("name", ["weight", "loss_weight", "loss_mask", "train", "training", "trainable", "loss"])
@pytest.mark.parametrize("off", [0, 0.0, False])
def test_weights_have_many_names(name: str, off: Any) -> None:
    messages = [
        {"role": "user", "content": "?", name: off},
        {"role": "assistant", "content": "bad", name: off},
        {"role": "user", "content": "??"},
        {"role": "assistant", "content": "good", name: type(off)(1)},
    ]
    assert trained("qwen2_5", {"messages": messages}) == ["good<|im_end|>"]


def test_calls_and_results_of_sharegpt(field: dict[int, Any]) -> None:
    call, answer = trained("qwen2_5", field[47])
    assert '{"name": "weather", "arguments": {"city": "Bern"}}' in call and answer == "Yes.<|im_end|>"
    with pytest.raises(DataError, match=r"value` holds text that is no JSON"):
        trained(
            "qwen2_5", {"conversations": [*field[47]["conversations"][:1], {"from": "function_call", "value": "["}]}
        )


@pytest.mark.parametrize("template", ["qwen2_5", "llama3_1"])
def test_a_thought_that_the_template_does_not_show_is_refused(field: dict[int, Any], template: str) -> None:
    with pytest.raises(UserError, match=r"messages\[1\]: the chat template leaves out the thought"):
        trained(template, field[49])
    assert trained("qwen3", field[49])[0].startswith("<think>\nsecret thought\n</think>")
    assert trained("deepseek_r1_distill", field[49])[0].startswith("secret thought\n</think>")


def test_a_template_without_tools_is_refused_calls(field: dict[int, Any]) -> None:
    with pytest.raises(UserError, match=r"messages\[1\]: the chat template leaves out a call of weather"):
        trained("gemma3", field[50])


def test_tools_are_declared_as_the_template_writes_calls(field: dict[int, Any]) -> None:
    row = SCHEMAS["conversations"](field[52], "f:1", {})
    tokenizer = tokenizer_of(TEMPLATES["qwen3"])
    joiner = Joiner("raw", tokenizer, dialects.load("xml"))
    (datum,) = given_rows(joiner, tokenizer, row["messages"], row["first"], row["tools"])
    text = tokenizer.decode(datum.ids_T.tolist())
    assert "<tools>" in text and "<weather>" not in text
    silent = {**row, "messages": [row["messages"][0], {"role": "assistant", "content": "No."}]}  # also without a call
    (datum,) = given_rows(joiner, tokenizer, silent["messages"], 0, row["tools"])
    assert "<weather>" not in tokenizer.decode(datum.ids_T.tolist())


def test_a_second_system_message_is_refused(field: dict[int, Any]) -> None:
    with pytest.raises(DataError, match="`system` is one system message, and the first message another"):
        trained("qwen2_5", field[53])
    same = {**field[53], "system": field[53]["messages"][0]["content"]}
    assert trained("qwen2_5", same) == ["Yes.<|im_end|>"]


@pytest.mark.parametrize("template", ["llama3_1", "gptoss"])
def test_an_empty_list_of_calls_is_none(field: dict[int, Any], template: str) -> None:
    (text,) = trained(template, field[57])
    assert (
        "Yes." in text
        and text
        == trained(template, {"messages": [field[57]["messages"][0], {"role": "assistant", "content": "Yes."}]})[0]
    )


def test_results_stand_in_the_order_of_the_calls(field: dict[int, Any]) -> None:
    row = SCHEMAS["conversations"](field[61], "f:1", {})
    assert [one["content"] for one in row["messages"] if one["role"] == "tool"] == ["of Bern", "of Ulm"]


# -------------------------------------------------------------------------------------------------------------- faults
ASK = {"role": "user", "content": "?"}
SAY = {"role": "assistant", "content": "!"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
FAULTS = [
    ([ASK, {**SAY, "tool_calls": [1]}], r"tool_calls\[0\]` is not a call"),
    ([ASK, {**SAY, "tool_calls": 5}], "tool_calls` holds a number, not calls"),
    ([ASK, {**SAY, "tool_calls": [{"function": {"arguments": {}}}]}], r"tool_calls\[0\]` is not a call"),
    ([ASK, {**SAY, "tool_calls": [{**CALL, "type": "custom"}]}], "only functions can be called"),
    ([ASK, {**SAY, "tool_calls": [CALL, CALL]}], "have the same id"),
    ([ASK, {**SAY, "tool_calls": [{"name": "f", "arguments": "[1]"}]}], "the arguments are no JSON object"),
    ([ASK, {**SAY, "tool_calls": [{"name": "f", "arguments": "{"}]}], "the arguments are no JSON object"),
    ([{**ASK, "tool_calls": [CALL]}, SAY], "thoughts and calls are the assistant's"),
    ([{**ASK, "reasoning": "hm"}, SAY], "thoughts and calls are the assistant's"),
    ([ASK, {**SAY, "weight": 0.5}], "weight` is 0.5; a message is trained, 1, or not, 0"),
    ([ASK, {**SAY, "weight": "1"}], "weight` is 1; a message is trained"),
    ([ASK, {**SAY, "mask": 1}], "mask` is not understood"),
    ([ASK, {**SAY, "train_detail": [1]}], "train_detail` is not understood"),
    ([ASK, {**SAY, "weight": 1, "train": False}], "is trained by one of weight, train, and not by another"),
    ([{**ASK, "weight": 1}, SAY], "only the assistant is trained"),
    ([ASK, {**SAY, "weight": 0}], "no message of `messages` is trained"),
    ([ASK, {**SAY, "thinking": "a", "reasoning": "b"}], "has two thoughts, reasoning and thinking"),
    (
        [ASK, {**SAY, "content": "<think>a</think>b", "reasoning": "c"}],
        "a thought in its content and another beside it",
    ),
    ([ASK, {**SAY, "reasoning_content": ["a"]}], "reasoning_content` holds a list, not text"),
    ([ASK, {**SAY, "content": [{"type": "image_url", "image_url": "x"}]}], "a part of type 'image_url'"),
    ([ASK, {**SAY, "content": {"text": "x"}}], "content` holds an object, not text"),
    ([ASK, {"role": "tool", "content": "7", "tool_call_id": "a"}, SAY], "a result answers one of the calls"),
    (
        [ASK, {**SAY, "tool_calls": [CALL]}, {"role": "tool", "content": "7", "tool_call_id": "b"}, SAY],
        "is 'b', which no call has",
    ),
    (
        [ASK, {**SAY, "tool_calls": [CALL]}, *[{"role": "tool", "content": "7"}] * 2, SAY],
        "one more result than there are calls",
    ),
    (
        [
            ASK,
            {**SAY, "tool_calls": [CALL, {**CALL, "id": "b"}]},
            *[{"role": "tool", "content": "7", "tool_call_id": "a"}] * 2,
            SAY,
        ],
        "answers a call that has a result already",
    ),
    ([ASK, {"role": 5, "content": "x"}, SAY], r"messages\[1\]` has no role"),
    ([ASK, {**SAY, "tool_calls": [{"name": "f", "arguments": {"a": "\ud800"}}]}], "half of a surrogate pair"),
    ("[1", "holds text that is no JSON object or list"),
]


@pytest.mark.parametrize(("messages", "sentence"), FAULTS)
def test_what_is_not_understood_is_one_sentence(messages: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as error:
        SCHEMAS["conversations"]({"messages": messages}, "f:1", {})
    assert str(error.value).startswith("f:1: ") and str(error.value).endswith(".") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, [("user", "Add.\n\n1 2"), ("assistant", "3")]),
        ({"instruction": "Add.", "input": "", "output": "3"}, [("user", "Add."), ("assistant", "3")]),
        (
            {"instruction": "c?", "output": "d", "history": [["a?", "b"]], "system": "s"},
            [("system", "s"), ("user", "a?"), ("assistant", "b"), ("user", "c?"), ("assistant", "d")],
        ),
        ({"prompt": "a?", "completion": {"role": "assistant", "content": "b"}}, [("user", "a?"), ("assistant", "b")]),
        ({"messages": json.dumps([ASK, SAY])}, [("user", "?"), ("assistant", "!")]),
        (
            {"messages": [{"role": "developer", "content": "s"}, {"role": "human", "content": "?"}, SAY]},
            [("system", "s"), ("user", "?"), ("assistant", "!")],
        ),
    ],
)
def test_other_forms_of_rows(row: dict[str, Any], messages: list[tuple[str, str]]) -> None:
    read = SCHEMAS["conversations"](row, "f:1", {})
    assert [(one["role"], one["content"]) for one in read["messages"]] == messages


def test_older_calls_of_openai_and_schemas_as_text() -> None:
    schema = {"name": "f", "description": "d", "parameters": json.dumps({"type": "object", "properties": {}})}
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    messages = [ASK, called, {"role": "function", "name": "f", "content": "7"}, SAY]
    row = SCHEMAS["conversations"]({"messages": messages, "functions": json.dumps([schema])}, "f:1", {})
    assert [one["role"] for one in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert row["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
    parameters = {"type": "object", "properties": {}}
    assert row["tools"] == [{"type": "function", "function": {**schema, "parameters": parameters}}]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"chosen": [ASK, SAY], "rejected": [{**ASK, "content": "other?"}, SAY]}, "answer different prompts"),
        ({"chosen": [ASK, SAY, ASK, SAY], "rejected": [ASK, SAY, {**ASK, "content": "b?"}, SAY]}, "different prompts"),
        ({"chosen": [ASK, SAY], "rejected": [{**SAY, "content": "no"}], "prompt": "?"}, "begins with a prompt"),
        ({"prompt": "?", "chosen": None, "rejected": "a"}, "`chosen` is null; fill it, or remove the row"),
    ],
)
def test_preferences_have_one_prompt(row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        SCHEMAS["preferences"](row, "f:1", {})


def test_preferences_of_other_trainers() -> None:
    other = {**SAY, "content": "no"}
    wanted = SCHEMAS["preferences"]({"prompt": "?", "chosen": "!", "rejected": "no"}, "f:1", {})
    openai = {"input": {"messages": [ASK], "tools": []}, "preferred_output": [SAY], "non_preferred_output": [other]}
    sharegpt = {
        "conversations": [{"from": "human", "value": "?"}],
        "chosen": {"from": "gpt", "value": "!"},
        "rejected": {"from": "gpt", "value": "no"},
    }
    assert SCHEMAS["preferences"](openai, "f:1", {}) == wanted == SCHEMAS["preferences"](sharegpt, "f:1", {})


# ------------------------------------------------------------------------------------- what outsiders' rows brought up
def called(*calls: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    said = {"role": "assistant", "content": None, "tool_calls": [*calls]}
    return {"messages": [ASK, said, *({"role": "tool", **result} for result in results), SAY]}


WEATHER, TRAINS = {"name": "weather", "arguments": {}}, {"name": "trains", "arguments": {}}


@pytest.mark.parametrize(
    "row",
    [
        called(WEATHER, TRAINS, results=[{"name": "trains", "content": "T"}, {"name": "weather", "content": "W"}]),
        called(
            {"id": 1, **WEATHER},
            {"id": 2, **TRAINS},
            results=[{"tool_call_id": 2, "content": "T"}, {"tool_call_id": 1, "content": "W"}],
        ),
        called(
            {"id": "a", **WEATHER},
            {"id": "b", **TRAINS},
            results=[{"id": "b", "content": "T"}, {"id": "a", "content": "W"}],
        ),
    ],
)
def test_results_go_to_their_calls(row: dict[str, Any]) -> None:
    read = SCHEMAS["conversations"](row, "f:1", {})["messages"]
    assert [(one["name"], one["content"]) for one in read if one["role"] == "tool"] == [
        ("weather", "W"),
        ("trains", "T"),
    ]


@pytest.mark.parametrize(
    "call",
    [
        {"name": "f", "arguments": None, "parameters": {"c": "W"}},
        {"name": "f", "arguments": {}, "parameters": {"c": "W"}},
        {"function": {"name": "f"}, "arguments": {"c": "W"}},
        {"function": {"name": "f", "arguments": '{"c": "W"}', "parsed_arguments": {"c": "W"}}, "index": 0},
    ],
)
def test_arguments_are_read_wherever_they_stand(call: dict[str, Any]) -> None:
    (read,) = SCHEMAS["conversations"](called(call, results=[]), "f:1", {})["messages"][1]["tool_calls"]
    assert read["function"] == {"name": "f", "arguments": {"c": "W"}}


OTHERS = [
    (called({"name": "f", "args": {"c": "W"}}, results=[]), "args` is not understood"),
    (called({"name": "f", "input": {"c": "W"}}, results=[]), "input` is not understood"),
    (called({"name": "f", "arguments": {}, "response": "x"}, results=[]), "response` is not understood"),
    (called({"name": "f", "arguments": {"a": 1}, "parameters": {"b": 1}}, results=[]), "arguments in two places"),
    (
        called(WEATHER, results=[{"name": "nothing", "content": "x"}]),
        "a result of nothing, which its call does",
    ),
    (
        called({"id": "a", **WEATHER}, results=[{"tool_call_id": "a", "name": "trains", "content": "x"}]),
        "a result of trains, which its call does not name",
    ),
    ({"messages": [ASK, {**SAY, "tool_calls": [CALL], "function_call": {"name": "g"}}]}, "calls in tool_calls and in"),
    ({"messages": [ASK, {**SAY, "train_on_turn": False}]}, "train_on_turn` is not understood"),
    ({"messages": [ASK, {**SAY, "ignore": True}]}, "ignore` is not understood"),
    ({"messages": [ASK, {**SAY, "value": "other"}]}, "has a content and another value"),
    ({"messages": [{**ASK, "tools": [{"name": "f"}]}, SAY]}, "are tools of a message"),
    ({"messages": [ASK, SAY], "loss_mask": [0, 0]}, "`loss_mask` of a row is not read"),
    ({"messages": [ASK, SAY], "weight": 0}, "`weight` of a row is not read"),
    ({"messages": [ASK, SAY], "tools": [{"name": "f"}, {"name": "f"}]}, "two functions of the name f"),
    (
        {"messages": [ASK, SAY], "tools": [{"name": "f", "parameters": {"type": "object", "properties": ["city"]}}]},
        "is not a JSON schema of an object",
    ),
    (called({"name": "f", "arguments": {"d": datetime(2020, 1, 1)}}, results=[]), "holds a datetime, which JSON"),
    (called({"name": "f", "arguments": {"d": float("nan")}}, results=[]), "holds nan, which is no number of JSON"),
    (called({"name": "f", "arguments": {"d": b"x"}}, results=[]), "holds a bytes, which JSON does not have"),
]


@pytest.mark.parametrize(("row", "sentence"), OTHERS)
def test_what_would_be_dropped_is_one_sentence(row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as error:
        SCHEMAS["conversations"](row, "f:1", {})
    assert str(error.value).startswith("f:1: ") and "\n" not in str(error.value)


def test_a_file_of_datasets_has_no_nulls_of_other_rows(tmp_path: Path) -> None:
    rows = [
        {
            "messages": [
                ASK,
                {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": value}}]},
            ],
            "tools": [
                {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": known}}}
            ],
        }
        for name, value, known in (
            ("f", {"city": {"a": "B"}}, {"city": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            ("g", {"x": 1, "city": {"b": "C"}}, {"x": {"type": "integer"}, "city": {"properties": {"b": {}}}}),
        )
    ]
    datasets.Dataset.from_list(rows).to_json(tmp_path / "rows.jsonl")
    (tmp_path / "plain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, two = (
        load(Source(str(tmp_path / name), "conversations", RowsSection())) for name in ("rows.jsonl", "plain.jsonl")
    )
    assert [row["messages"] for row in one] == [row["messages"] for row in two]
    assert "null" not in json.dumps([row["tools"] for row in one])


def test_maps_of_parquet_are_objects(tmp_path: Path) -> None:
    call = pa.struct([("name", pa.string()), ("arguments", pa.map_(pa.string(), pa.string()))])
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(call))])
    rows = [[ASK, {**SAY, "tool_calls": [{"name": "f", "arguments": [("city", "Bern")]}]}]]
    pq.write_table(pa.table({"messages": pa.array(rows, pa.list_(message))}), tmp_path / "rows.parquet")
    (row,) = load(Source(str(tmp_path / "rows.parquet"), "conversations", RowsSection()))
    assert row["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"city": "Bern"}}


def test_messages_as_text_in_any_column() -> None:
    row = SCHEMAS["conversations"]({"prompt": json.dumps([ASK]), "completion": json.dumps(SAY)}, "f:1", {})
    assert row["messages"] == [ASK, SAY] and row["first"] == 1
    plain = SCHEMAS["conversations"]({"prompt": "[1, 2]", "completion": '{"a": 1}'}, "f:1", {})
    assert [one["content"] for one in plain["messages"]] == ["[1, 2]", '{"a": 1}']
    pair = SCHEMAS["preferences"]({"prompt": "?", "chosen": json.dumps([SAY]), "rejected": "no"}, "f:1", {})
    assert pair["chosen"]["messages"] == [ASK, SAY]


def test_whole_preferences_keep_what_the_row_says_besides() -> None:
    answers = {"chosen": [ASK, SAY], "rejected": [ASK, {**SAY, "content": "no"}]}
    system = SCHEMAS["preferences"]({**answers, "system": "s", "prompt": " ? "}, "f:1", {})
    assert [one["role"] for one in system["chosen"]["messages"]] == ["system", "user", "assistant"]
    assert system["chosen"]["first"] == 2
    for wrong in ({"prompt": "else"}, {"prompt": [{"role": "system", "content": "s"}, ASK]}, {"history": [["a", "b"]]}):
        with pytest.raises(DataError, match=r"is not the prompt with which|is not read beside whole"):
            SCHEMAS["preferences"]({**answers, **wrong}, "f:1", {})
    with pytest.raises(DataError, match="are the same"):
        SCHEMAS["preferences"]({**answers, "rejected": [ASK, {**SAY, "id": 7}]}, "f:1", {})


def test_results_may_begin_an_answer() -> None:
    prompt = [ASK, {**SAY, "tool_calls": [{"id": "a", **WEATHER}]}]
    row = SCHEMAS["conversations"](
        {"prompt": prompt, "completion": [{"role": "tool", "content": "7", "tool_call_id": "a"}, SAY]}, "f:1", {}
    )
    assert row["first"] == 2 and row["messages"][2]["name"] == "weather"


@pytest.mark.parametrize("role", ["User", "USER", " human "])
def test_roles_in_capitals(role: str) -> None:
    row = {"messages": [{"role": role, "content": "?"}, {"role": "Assistant", "content": "!"}]}
    assert SCHEMAS["conversations"](row, "f:1", {})["messages"] == [ASK, SAY]


def test_calls_in_messages_of_their_own_are_parallel() -> None:
    said = [{"role": "tool_call", "content": json.dumps(one)} for one in (WEATHER, TRAINS)]
    results = [{"role": "tool_response", "content": text} for text in ("W", "T")]
    read = SCHEMAS["conversations"]({"messages": [ASK, *said, *results, SAY]}, "f:1", {})["messages"]
    assert [one["function"]["name"] for one in read[1]["tool_calls"]] == ["weather", "trains"]
    assert [one["content"] for one in read[2:4]] == ["W", "T"]


@pytest.mark.parametrize("template", ["llama3", "lfm2", "deepseek_r1_distill"])
def test_an_earlier_call_that_a_template_leaves_out_is_refused(template: str) -> None:
    row = {"prompt": called(WEATHER, results=[{"content": "7"}])["messages"][:-1], "completion": [SAY]}
    with pytest.raises(UserError, match=r"leaves out a call of weather"):
        trained(template, row)


def test_places_are_those_of_the_row() -> None:
    tokenizer = tokenizer_of(TEMPLATES["phi3"])
    joiner = Joiner("chat", tokenizer, dialects.load("xml"), {}, ())
    messages = [ASK, {**SAY, "reasoning_content": "hm"}]
    with pytest.raises(UserError, match=r"^messages\[1\]"):
        given_rows(joiner, tokenizer, messages, 0, [{"name": "f", "description": "d", "parameters": {}}])
