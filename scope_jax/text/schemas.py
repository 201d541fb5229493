"""JSON schemas of functions: what arguments they take. Values are compared as they are, nothing is converted.

Schemas of servers are in drafts 4 to 2020-12. One that takes more than `STEPS` for short arguments is refused at the
start (`check`); later the policy reads that it cannot be followed to its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import ValidationError

from scope_jax.errors import UserError
from scope_jax.text.validation import COMPILING, STEPS, OverBudget, SchemaError, Validator, budget

Schema = Mapping[str, Any]
SAMPLES = ("a", 1, None, ["a"], {})  # values with which a new schema is tried
ENDLESS = "cannot be followed to its end: it refers to itself, or has too many alternatives"


def function_of(schema: Schema) -> Schema:
    """{"name", "description", "parameters"} of a function's schema, bare or under the key "function"."""
    return schema.get("function", schema)


def parameters_of(schemas: Sequence[Schema]) -> dict[str, Schema]:
    """The JSON schemas of the arguments by function."""
    return {function["name"]: function.get("parameters") or {} for function in map(function_of, schemas)}


def arguments_of(parameters: Schema) -> dict[str, Schema]:
    """The JSON schema of each argument by name."""
    known = parameters.get("properties")
    return {name: one if isinstance(one, Mapping) else {} for name, one in (known or {}).items()}


def check(parameters: Any, where: str) -> None:
    """Raises UserError unless `parameters` is a JSON schema of an object that refers to nothing outside of itself, has
    patterns that can be read, and is compared with arguments in at most STEPS."""
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise UserError(f"{where}: the parameters must be a JSON schema of type object.")
    try:
        validator = _validator(json.dumps(parameters))
    except SchemaError as error:
        raise UserError(f"{where}: the parameters {error}.") from None
    except OverBudget:
        raise UserError(f"{where}: the schema of the parameters is too large; simplify it.") from None
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"{where}: the parameters are not JSON of a usual depth; correct them.") from None
    try:
        with budget(STEPS):
            for value in SAMPLES:
                validator.first_error(dict.fromkeys(arguments_of(parameters), value))
    except (OverBudget, RecursionError):
        raise UserError(f"{where}: the schema of the parameters {ENDLESS}; simplify it.") from None


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Validator:
    """Of a schema as JSON."""
    with budget(COMPILING, apart=True):
        return Validator(schema)


class _Parameters:
    """A schema as a key: the same object, which nobody changes, has the same validator."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parameters) and self.schema is other.schema


@lru_cache(maxsize=256)
def _validator_of(parameters: _Parameters) -> Validator:
    """Without writing a large schema as JSON for each of its arguments."""
    return _validator(json.dumps(parameters.schema))


def fault(arguments: Any, parameters: Schema) -> ValidationError | None:
    """The first thing for which arguments violate their schema; None if they satisfy it."""
    return _fault(arguments, parameters)


def accepts(value: Any, argument: str, parameters: Schema) -> bool:
    """True if a value satisfies the schema of an argument of `parameters`."""
    return _fault(value, parameters, argument) is None


def _fault(value: Any, parameters: Schema, argument: str | None = None) -> ValidationError | None:
    try:
        with budget(STEPS):
            return _validator_of(_Parameters(parameters)).first_error(value, argument)
    except OverflowError:  # `multipleOf` divides, and an integer may be larger than any float
        return ValidationError("a number is too large")
    except (OverBudget, RecursionError):
        return ValidationError(f"its schema {ENDLESS}")


def without_patterns(schema: Any) -> Any:
    """A schema without regular expressions."""
    if isinstance(schema, Mapping):
        left_out = {"pattern": str, "patternProperties": Mapping}
        return {
            key: without_patterns(value)
            for key, value in schema.items()
            if not isinstance(value, left_out.get(key, ()))
        }
    return [without_patterns(value) for value in schema] if isinstance(schema, list) else schema


def only_text(argument: Schema) -> bool:
    """True if a schema says by itself that its values are text."""
    return argument.get("type") in ("string", ["string"]) and not argument.get("nullable")
