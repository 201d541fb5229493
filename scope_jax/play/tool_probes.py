"""Changed schemas of tools, with which a chat template is asked whether it shows all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from scope_jax.text.schemas import Schema, function_of


def marked_tools(tools: Sequence[Schema]) -> tuple[tuple[Schema, ...], dict[str, str]]:
    """(the tools with marks for every name and description, what each mark stands for)."""
    marks: dict[str, str] = {}

    def mark(what: str) -> str:
        name = f"zq{len(marks)}z"
        marks[name] = what
        return name

    def marked(schema: Any, where: str) -> Any:
        if isinstance(schema, Mapping):
            found = {
                key: marked(value, where) for key, value in schema.items() if key not in ("properties", "required")
            }
            if isinstance(schema.get("description"), str):
                found["description"] = mark(f"the description of {where}")
            if isinstance(properties := schema.get("properties"), Mapping):
                found["properties"] = {
                    mark(f"the argument {name} of {where}"): marked(value, f"{name} of {where}")
                    for name, value in properties.items()
                }
            return found
        return [marked(value, where) for value in schema] if isinstance(schema, list | tuple) else schema

    found = []
    for tool in tools:
        name = function_of(tool)["name"]
        copy = marked(tool, name)
        function = {**function_of(copy), "name": mark(f"the name {name}")}
        found.append({**copy, "function": function} if "function" in copy else function)
    return tuple(found), marks


def retyped_tools(tools: Sequence[Schema]) -> list[tuple[Schema, ...]]:
    """The tools with other types for the arguments of one of them, for each with arguments that have a type."""

    changed = [(place, _retyped(tool)) for place, tool in enumerate(tools)]
    return [(*tools[:place], tool, *tools[place + 1 :]) for place, tool in changed if tool != tools[place]]


def _retyped(tool: Schema) -> Schema:
    copy = deepcopy(dict(tool))
    for argument in function_of(copy).get("parameters", {}).get("properties", {}).values():
        if isinstance(argument, dict) and isinstance(argument.get("type"), str):
            argument["type"] = "integer" if argument["type"] != "integer" else "string"
    return copy
