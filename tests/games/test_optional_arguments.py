"""Arguments that may be of several types: each dialect accepts the tool, and reads every value that it writes."""

from __future__ import annotations

from typing import Any

import pytest

from scope_jax.play.turns import Joiner
from scope_jax.text import dialects
from scope_jax.text.dialects import Call
from tests.play.byte_tokenizer import tokenizer_in

TEXT = ["a", "null", "5", '"q"', "true", "[1]", "", " a\nb "]
SCHEMAS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "text": ({"type": "string"}, TEXT),
    "optional text": ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, ["a", None, '"q"', "5", ""]),
    "one of": ({"oneOf": [{"type": "null"}, {"type": "string"}]}, ["a", None, "[1]"]),
    "list of types": ({"type": ["string", "null"]}, ["a", None, "true"]),
    "nullable": ({"type": "string", "nullable": True}, ["a", "5"]),
    "optional number": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [3, None]),
    "number or text": ({"type": ["integer", "string"]}, [3, "x", "3.5"]),
    "names": ({"enum": ["a", "b", 3]}, ["a", 3]),
    "optional names": ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, ["a", None]),
    "constant": ({"const": "x"}, ["x"]),
    "pattern": ({"type": "string", "pattern": "^[0-9]+$"}, ["12"]),
    "optional pattern": ({"anyOf": [{"type": "string", "minLength": 30}, {"type": "null"}]}, [None, "x" * 30]),
    "list": ({"type": "array", "items": {"type": "string"}}, [["a"], []]),
    "list or text": ({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}, [["a"], "a"]),
    "object": ({"type": "object", "properties": {"k": {"type": "string"}}}, [{"k": "v"}]),
    "optional object": ({"anyOf": [{"type": "object"}, {"type": "null"}]}, [{"k": 1}, None]),
    "truth": ({"type": "boolean"}, [True]),
    "anything": ({}, ["a", 3, [1], None, {"a": 1}]),
    "reference": ({"$ref": "#/$defs/Name"}, ["a", None]),
}


def tool(argument: dict[str, Any]) -> dict[str, Any]:
    properties = {"note": argument, "text": {"type": "string"}}
    names = {"Name": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    parameters = {"type": "object", "properties": properties, "required": ["text"], "$defs": names}
    return {"type": "function", "function": {"name": "f", "description": "F.", "parameters": parameters}}


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("name", dialects.names())
def test_every_value_is_read_as_it_was_written(name: str, kind: str) -> None:
    argument, values = SCHEMAS[kind]
    dialect = dialects.load(name)
    for value in values:
        call = Call("f", {"note": value, "text": "t"})
        assert dialect.read(dialect.write(call, [tool(argument)]), [tool(argument)]) == [call]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_qwen_coder_accepts_the_tool(tmp_path, kind: str) -> None:
    Joiner(
        "chat-trimmed", tokenizer_in(tmp_path, "qwen3_5"), dialects.load("qwen-coder"), {}, (tool(SCHEMAS[kind][0]),)
    )
