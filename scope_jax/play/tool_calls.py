"""Tools that a policy calls: a function with a JSON schema, its limits, and its state in one episode."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np
from typing_extensions import is_typeddict

from scope_jax.errors import UserError
from scope_jax.text import schemas
from scope_jax.text.schemas import Schema
from scope_jax.text.validation import STEPS, budget

# The search of the games: its schema is what templates declare to roles that search, where the dialect has that.
SEARCH_NAME, SEARCH_ARGUMENT = "search", "query"
SEARCH: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": SEARCH_NAME,
        "description": "Searches a collection of documents for what fits the query best.",
        "parameters": {
            "type": "object",
            "properties": {SEARCH_ARGUMENT: {"type": "string", "description": "What to look for."}},
            "required": [SEARCH_ARGUMENT],
        },
    },
}


class ToolError(Exception):
    """Raised by a tool whose call fails: the policy reads `error: ` and its sentence."""


class ToolUnavailable(ToolError):
    """The tool's service does not work, whatever the call: if most calls of a step find it so, the run ends."""


@runtime_checkable
class Service(Protocol):
    """What a tool needs during a whole run, such as a pool of workers or a connection; several tools may share it."""

    def start(self) -> None:
        """Prepares and probes it, before the run starts; nothing if it is ready. Raises UserError with the remedy."""
        ...

    def close(self) -> None:
        """Ends it, with everything that it started."""
        ...


@dataclass(frozen=True, eq=False)
class Tool:
    """A function that a policy may call in its turns; `tool` makes one of an annotated function."""

    name: str
    """The name in calls."""
    run: Callable[..., str]
    """Takes the arguments of a call by name, and the state of the episode first if there is `open`; returns the text
    that the policy reads."""
    schema: Mapping[str, Any]
    """The JSON schema as chat templates and the OpenAI protocol have it: {"type": "function", "function": {"name": …,
    "description": …, "parameters": …}}."""
    open: Callable[[np.random.Generator], AbstractContextManager[Any]] | None = None
    """Opens the state of one episode at its first call; it is closed when the episode ends. The generator is seeded
    with the episode's name. None: calls share nothing."""
    seconds: float = 30.0
    """Most seconds of a call, from its start; a later result is dropped."""
    max_output_tokens: int = 2048
    """Most tokens of a result; a longer one is cut, with a mark."""
    pure: bool = False
    """Equal arguments give equal results, so that calls are shared, and not recorded."""
    strict: bool = True
    """An argument that the schema does not name is refused; False: it is left out."""
    parts: Callable[[Mapping[str, Any], bool], Sequence[Mapping[str, Any]]] | None = None
    """The calls that one call stands for, such as a list of queries, by its arguments and whether a turn may have
    several; none: the call is empty, thus malformed. None: every call stands for itself."""
    batch: Callable[[Sequence[Mapping[str, Any]]], list[str]] | None = None
    """Of a tool that belongs to the run, as the search does: the results of the calls of a turn, in place of `run`. It
    is called in the thread of the turn and has limits of its own; what it raises ends the run."""
    service: Service | None = None
    """What must run for it; started before the run, closed after it."""

    def __post_init__(self) -> None:
        function = schemas.function_of(self.schema)
        if not _NAME.fullmatch(self.name):
            raise UserError(f"The tool {self.name[:80]!r} needs a name of at most 64 letters, digits, _, - and dots.")
        if function.get("name") != self.name:
            raise UserError(f"The schema of the tool {self.name} is of {function.get('name')!r}; give both one name.")
        schemas.check(function.get("parameters", {}), f"The tool {self.name}")


@budget(4 * STEPS)  # to try all schemas
def clients_tools(given: Sequence[Schema]) -> tuple[Tool, ...]:
    """The functions of a client, who runs them: their schemas without patterns, which the client checks itself, as one
    that cannot be read here is no reason to refuse a request. Raises UserError for a name or a schema that no policy
    could call, and for a name that is there twice."""
    tools: list[Tool] = []
    for schema in given:
        function = schemas.function_of(schema)
        if any(function["name"] == tool.name for tool in tools):
            raise UserError(f"There are two functions of the name {function['name']}; give each its own.")
        readable = {**function, "parameters": schemas.without_patterns(function.get("parameters") or {})}
        tools.append(Tool(function["name"], _client_runs, {"type": "function", "function": readable}))
    return tuple(tools)


def _client_runs(**_: Any) -> str:
    raise AssertionError("functions of a client are not run here")


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_SECTION = re.compile(r"^(?:Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):\s*$", re.MULTILINE)


def tool(run: Callable[..., str] | None = None, **fields: Any) -> Any:
    """A `Tool` of a function whose arguments are annotated and whose docstring says what it does; also as a decorator,
    `@tool` or `@tool(seconds=5)`.

    fields: those of `Tool`; `name` replaces the function's name. With `open`, the first argument is the state of the
    episode, which is not in the schema. The docstring may describe arguments in a section `Args:` (Google's style).
    Raises UserError for an argument without an annotation, or of a type that JSON does not have.
    """
    if run is None:
        return lambda function: tool(function, **fields)
    name = fields.pop("name", None) or run.__name__
    return Tool(name, run, _schema_of(run, name, stateful=fields.get("open") is not None), **fields)


def _schema_of(run: Callable[..., str], name: str, stateful: bool) -> Mapping[str, Any]:
    """The function's JSON schema, without its first argument if that is the state."""
    from pydantic import ConfigDict, PydanticUserError, create_model
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    where = f"The tool {name}"
    text = inspect.getdoc(run)
    if not text:
        raise UserError(f"{where} has no docstring; write one, since the policy reads what the tool does.")
    described = parse_google_format_docstring(text)[1] or {}
    described = {argument: " ".join(words.split()) for argument, words in described.items()}
    taken = list(inspect.signature(run).parameters.values())[stateful:]
    if stateful and not inspect.signature(run).parameters:
        raise UserError(f"{where} has `open`, but no argument; its first one is the state.")
    hints = get_type_hints(run, include_extras=True)
    given: dict[str, Any] = {}
    for one in taken:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise UserError(f"{where}: calls give arguments by name, so that {one} cannot be one; name each.")
        if one.name not in hints:
            raise UserError(f"{where}: the argument {one.name} has no annotation; write its type, such as str.")
        if (foreign := _foreign(hints[one.name])) is not None:
            raise UserError(
                f"{where}: the argument {one.name} is of type {getattr(foreign, '__name__', foreign)}, which JSON does "
                "not have; use str, int, float, bool, list, dict, Literal, TypedDict, None or a union of these."
            )
        given[one.name] = (hints[one.name], ... if one.default is one.empty else one.default)
    fields = {f"field_{place}": value for place, value in enumerate(given.values())}
    names = dict(zip(fields, given, strict=True))
    try:
        whole = _untitled(create_model(name, __config__=ConfigDict(strict=True), **fields).model_json_schema())
    except PydanticUserError as error:
        raise UserError(f"{where}: {error.message.splitlines()[0].rstrip('.')}.") from None
    properties = {}
    for field, one in whole.get("properties", {}).items():
        words = {"description": described[names[field]]} if names[field] in described else {}
        properties[names[field]] = {**one, **words}
    parameters = {"type": "object", "properties": properties}
    if required := [names[field] for field in whole.get("required", ())]:
        parameters["required"] = required
    if "$defs" in whole:
        parameters["$defs"] = whole["$defs"]
    summary = " ".join(_SECTION.split(text)[0].split())
    return {"type": "function", "function": {"name": name, "description": summary, "parameters": parameters}}


def _foreign(hint: Any) -> Any:
    """A part of an annotation whose values are not those of JSON; None without one."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _foreign(parts[0])
    if origin is Literal:
        return next((type(one) for one in parts if type(one) not in (str, int, bool, NoneType)), None)
    if origin in (Union, UnionType, list, dict):
        if origin is dict and parts[0] is not str:
            return hint
        return next((found for one in parts if (found := _foreign(one)) is not None), None)
    if is_typeddict(hint):
        values = get_type_hints(hint).values()
        return next((found for one in values if one is not hint and (found := _foreign(one)) is not None), None)
    return None if hint in (str, int, float, bool, list, dict, None, NoneType, Any) else hint


def _untitled(schema: Any) -> Any:
    """A schema of pydantic's without the titles that it makes of names."""
    if isinstance(schema, dict):
        named = {"properties", "$defs"}
        return {
            key: {name: _untitled(one) for name, one in value.items()} if key in named else _untitled(value)
            for key, value in schema.items()
            if key != "title" or not isinstance(value, str)
        }
    return [_untitled(one) for one in schema] if isinstance(schema, list) else schema
