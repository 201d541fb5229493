"""JSON schemas of functions: what arguments they take. Values are compared as they are, nothing is converted."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jsonschema
import referencing
from jsonschema import validators
from jsonschema.exceptions import ValidationError, best_match
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from scope_jax.errors import UserError

Schema = Mapping[str, Any]
STEPS = 100_000  # keywords that are looked at for one value; schemas of others may need any number
# 5.0 is no integer here: a function that takes one would get a float.
_TYPES = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", lambda checker, value: isinstance(value, int) and not isinstance(value, bool)
)


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
    """Raises UserError unless `parameters` is a JSON schema of an object that refers to nothing outside of itself."""
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise UserError(f"{where}: the parameters must be a JSON schema of type object.")
    try:
        whole = json.loads(json.dumps(parameters))
        kind = validators.validator_for(whole, default=jsonschema.Draft202012Validator)
        # Formats are not checked: patterns are JavaScript's.
        if wrong := best_match(kind(kind.META_SCHEMA).iter_errors(whole)):
            raise UserError(f"{where}: the parameters are not a JSON schema ({wrong.message}); correct it.")
        resolver = referencing.Registry().with_resource("", DRAFT202012.create_resource(whole)).resolver()
        for ref in _references(whole):
            resolver.lookup(ref)
    except UserError:
        raise
    except Unresolvable as error:
        raise UserError(f"{where}: the parameters refer to {error.ref!r}, which is not in them; put it in.") from None
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"{where}: the parameters are not JSON of a usual depth; correct them.") from None


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        yield from (ref for key in ("$ref", "$dynamicRef") if isinstance(ref := schema.get(key), str))
    for part in schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ():
        yield from _references(part)


def _pattern(validator: Any, pattern: str, value: Any, schema: Schema) -> Iterator[ValidationError]:
    """As jsonschema has it, but a pattern of JavaScript's that Python cannot read admits everything."""
    try:
        known = re.compile(pattern)
    except re.error:
        return
    if isinstance(value, str) and not known.search(value):
        yield ValidationError(f"it does not match {pattern}")


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    """Of a schema as JSON. References are looked up in the schema itself, never elsewhere."""
    parsed = json.loads(schema)
    kind = validators.validator_for(parsed, default=jsonschema.Draft202012Validator)
    checks = {name: _counted(check) for name, check in {**kind.VALIDATORS, "pattern": _pattern}.items()}
    return validators.extend(kind, checks, type_checker=_TYPES)(parsed, registry=referencing.Registry())


class _TooLong(Exception):
    """A value needs more than STEPS."""


_spent = threading.local()


def _counted(check: Callable[..., Any]) -> Callable[..., Any]:
    """A keyword's check that counts as one step."""

    def counted(*given: Any) -> Any:
        _spent.steps += 1
        if _spent.steps > STEPS:
            raise _TooLong
        return check(*given)

    return counted


def fault(arguments: Any, parameters: Schema) -> ValidationError | None:
    """The first thing for which arguments violate their schema; None if they satisfy it."""
    _spent.steps = 0
    try:
        return best_match(_validator(json.dumps(parameters)).iter_errors(arguments))
    except OverflowError:  # `multipleOf` divides, and an integer may be larger than any float
        return ValidationError("a number is too large")
    except (_TooLong, RecursionError, Unresolvable):  # schemas that refer to themselves, or rename their base
        return ValidationError("its schema cannot be followed to its end")


def accepts(value: Any, argument: Schema, parameters: Schema) -> bool:
    """True if a value satisfies the schema of an argument of `parameters`."""
    within = {key: parameters[key] for key in ("$schema", "$defs", "definitions") if key in parameters}
    return fault(value, {**argument, **within}) is None


def only_text(argument: Schema) -> bool:
    """True if a schema says by itself that its values are text."""
    return argument.get("type") in ("string", ["string"]) and not argument.get("nullable")
