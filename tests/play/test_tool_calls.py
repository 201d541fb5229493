"""Tools of annotated functions, and what is wrong with the arguments of a call. Nothing is converted."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema
import numpy as np
import pytest
from pydantic import Field
from typing_extensions import TypedDict

from scope_jax.errors import UserError
from scope_jax.play.tool_calls import SEARCH, Tool, tool
from scope_jax.text.turns import refusal


@tool
def python(code: str, seconds: int = 10, names: list[str] | None = None) -> str:
    """Runs a program.

    What it prints is returned.

    Args:
        code: Python 3,
            in one text.
        seconds: After this time it is ended.

    Returns:
        The output.
    """
    return code * seconds


class Place(TypedDict):
    x: float
    y: float


def parameters(made: Tool) -> dict[str, Any]:
    return made.schema["function"]["parameters"]


def test_the_schema_of_a_function():
    assert python.name == "python" and python.run(code="a", seconds=2) == "aa"
    assert python.schema["function"]["description"] == "Runs a program. What it prints is returned."
    described = parameters(python)
    assert described["properties"]["code"] == {"type": "string", "description": "Python 3, in one text."}
    assert described["properties"]["seconds"] == {
        "type": "integer",
        "default": 10,
        "description": "After this time it is ended.",
    }
    assert described["required"] == ["code"] and "title" not in json.dumps(python.schema)


def test_types_of_json_and_constraints():
    @tool(name="go.to", seconds=5, pure=True)
    def go(
        place: Place,
        how: Literal["foot", "bus"],
        count: Annotated[int, Field(ge=1)],
        model_x: dict[str, float],
        any: Any,
    ):
        """Goes."""

    assert (go.name, go.seconds, go.pure) == ("go.to", 5, True)
    good = {"place": {"x": 1, "y": 0.5}, "how": "bus", "count": 1, "model_x": {"a": 1.5}, "any": [None]}
    assert refusal("go.to", good, [go.schema]) == ""
    for change, word in (({"how": "car"}, "how"), ({"count": 0}, "count"), ({"place": {"x": 1}}, "place")):
        assert refusal("go.to", good | change, [go.schema]).startswith(
            f'error: the argument "{word}" of go.to is wrong: '
        )
    wrong = good | {"place": {"x": "1", "y": 2}}
    assert (
        refusal("go.to", wrong, [go.schema])
        == 'error: the argument "place.x" of go.to must be number, not the string "1"'
    )


def test_the_state_of_an_episode_is_not_in_the_schema():
    def opened(rng: np.random.Generator) -> Any: ...

    @tool(open=opened)
    def count(state, by: int) -> str:
        """Counts on."""
        return str(state + by)

    assert [*parameters(count)["properties"]] == ["by"] and count.open is opened and count.run(1, by=2) == "3"


class Colour(Enum):
    RED = "red"


def undescribed(code: str) -> str:
    return code


def unannotated(code, limit: int) -> str:
    """Runs."""
    return code


def coloured(colour: Colour) -> str:
    """Paints."""
    return colour.value


def paired(pair: tuple[int, int], *rest: int) -> str:
    """Adds."""
    return ""


class Painted(TypedDict):
    where: Place
    colour: Colour


def painted(what: list[Painted]) -> str:
    """Paints."""
    return ""


def spread(**options: int) -> str:
    """Sets."""
    return ""


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (undescribed, "The tool undescribed has no docstring"),
        (unannotated, "The tool unannotated: the argument code has no annotation; write its type, such as str."),
        (coloured, "The tool coloured: the argument colour is of type Colour, which JSON does not have"),
        (paired, "the argument pair is of type tuple"),
        (painted, "The tool painted: the argument what is of type Colour, which JSON does not have"),
        (spread, "calls give arguments by name, so that [*][*]options: .int. cannot be one"),
    ],
)
def test_a_function_that_cannot_be_a_tool_gives_one_clear_error(run, sentence):
    with pytest.raises(UserError, match=sentence):
        tool(run)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"type": "array"}, "must be a JSON schema of type object"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "are not a JSON schema"),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}, "which is not in them"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}, "which is not in them"),
        ({"type": "object", "properties": {"a": {"enum": [{1, 2}]}}}, "are not JSON"),
    ],
)
def test_a_servers_schema_that_cannot_be_used_gives_one_clear_error(schema, sentence):
    function = {"name": "remote", "description": "", "parameters": schema}
    with pytest.raises(UserError, match=sentence):
        Tool("remote", str, {"type": "function", "function": function})


@pytest.mark.parametrize("name", ["", "a b", "1", "<x>", "a" * 65])
def test_a_name_that_calls_cannot_have_gives_one_clear_error(name):
    with pytest.raises(UserError, match="needs a name of at most 64 letters"):
        Tool(name, str, {"name": name, "parameters": {}})


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("python", {"code": "1"}, ""),
        ("python", {"code": "1", "seconds": 5, "names": ["a"]}, ""),
        ("python", {"code": "1", "names": None}, ""),
        ("pyton", {}, 'error: there is no tool "pyton"; there is python, search'),
        ("python", {"cod": "1"}, 'error: python has no argument "cod"; it takes code, seconds, names'),
        ("python", {"seconds": 1}, 'error: python needs the argument "code"; it takes code, seconds, names'),
        ("python", {"code": 1}, 'error: the argument "code" of python must be string, not the integer 1'),
        (
            "python",
            {"code": "1", "seconds": "5"},
            'the argument "seconds" of python must be integer, not the string "5"',
        ),
        (
            "python",
            {"code": "1", "seconds": 5.0},
            'the argument "seconds" of python must be integer, not the number 5.0',
        ),
        ("python", {"code": "1", "seconds": True}, "must be integer, not the boolean true"),
        ("python", {"code": None}, "must be string, not the null"),
        ("python", {"code": "1", "names": [1]}, 'error: the argument "names'),
        ("search", {"query": ["a"]}, 'error: the argument "query" of search must be string, not the array'),
    ],
)
def test_what_is_wrong_with_a_call(name, arguments, sentence):
    search = Tool("search", str, SEARCH)
    said = refusal(name, arguments, [python.schema, search.schema])
    assert (sentence in said) if sentence else said == ""
    assert len(said) <= 300 and "\n" not in said


def test_schemas_of_servers():
    """Draft 7, references, arguments that are not named, patterns of JavaScript, divisors of huge numbers."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "definitions": {"word": {"type": "string", "pattern": r"^\p{L}+$"}},
        "properties": {"word": {"$ref": "#/definitions/word"}, "step": {"type": "number", "multipleOf": 0.5}},
        "additionalProperties": {"type": "integer"},
    }
    remote = Tool("remote", str, {"name": "remote", "parameters": schema})
    assert refusal("remote", {"word": "é", "step": 1.5, "other": 3}, [remote.schema]) == ""
    assert "other" in refusal("remote", {"other": "3"}, [remote.schema])
    assert "step" in refusal("remote", {"step": 0.3}, [remote.schema])
    assert refusal("remote", {"step": 10**400}, [remote.schema]).startswith("error: ")
    nothing = Tool("nothing", str, {"name": "nothing", "parameters": {"type": "object"}})
    assert refusal("nothing", {}, [nothing.schema]) == ""
    assert refusal("nothing", {"a": 1}, [nothing.schema]) == 'error: nothing has no argument "a"; it takes none'


def test_a_schema_is_valid_for_the_library():
    jsonschema.Draft202012Validator.check_schema(parameters(python))
