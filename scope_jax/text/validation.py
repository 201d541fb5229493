"""jsonschema with counted steps: what a schema of others says of a value, known after a bounded amount of work.

A step is a few microseconds of jsonschema's: a schema or a keyword that is applied to a value. A keyword that looks at
many parts costs more, and so do a pattern and an error, whose message jsonschema writes at once. Values in messages are
shortened.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any

import jsonschema
from jsonschema import TypeChecker, validators
from jsonschema.exceptions import ValidationError, best_match
from jsonschema_specifications import REGISTRY
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from scope_jax.text.patterns import Pattern, PatternError, compiled

STEPS = 50_000  # of one call's arguments
COMPILING = 100_000  # of a schema: is it one, and what are its patterns
LONGEST = 1 << 19  # characters of a schema as JSON
SHOWN = 80  # characters of a text in a message
ITEMS = 8  # of an array or object in a message
REFERENCE = 4  # steps to look up what a reference leads to
PER_STEP = 16  # parts that a keyword looks at in one step
ERROR, LETTERS = 4, 256  # steps of an error, and characters of its message in one step more
TEXT, PAIRS = 1024, 1024  # characters that are sorted, and pairs of items that are compared, in one step
PATTERN_WORK = 32_768  # instructions of a pattern's program times bytes of a text, in one step
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
WHOLE = ("enum", "const", "required", "dependentRequired", "dependencies")  # keywords that look at all of their value

Check = Callable[[Any, Any, Any, Any], Any]

# 5.0 is no integer here: a function that takes one would get a float.
_TYPES = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
)


class SchemaError(ValueError):
    """Not a schema that can be followed; the message is the end of a sentence about the parameters."""


class OverBudget(Exception):
    """More steps would be needed."""


# ------------------------------------------------------------------------------------------------------------- steps
class _Steps(threading.local):
    left: int | None = None  # None: nothing is being counted


_steps = _Steps()


@contextmanager
def budget(steps: int, *, apart: bool = False) -> Iterator[None]:
    """What is checked inside takes at most so many steps altogether.

    apart: also inside another budget, whose steps are spent otherwise.
    """
    before = _steps.left
    if before is None or apart:
        _steps.left = steps
    try:
        yield
    finally:
        if before is None or apart:
            _steps.left = before


def spend(steps: int) -> None:
    """Raises OverBudget if there are not so many left."""
    assert _steps.left is not None
    _steps.left -= steps
    if _steps.left < 0:
        raise OverBudget


# ------------------------------------------------------------------------------------------------------------- values
class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str.__repr__(self) if len(self) <= SHOWN else str.__repr__(self[:SHOWN]) + "…"


class _Array(list[Any]):
    def __repr__(self) -> str:
        parts = [_inside(value) for value in self[:ITEMS]] + ["…"] * (len(self) > ITEMS)
        return f"[{', '.join(parts)}]"


class _Object(dict[str, Any]):
    def __repr__(self) -> str:
        parts = [f"{key!r}: {_inside(self[key])}" for key in islice(self, ITEMS)] + ["…"] * (len(self) > ITEMS)
        return f"{{{', '.join(parts)}}}"


def _inside(value: Any) -> str:
    return "[…]" if isinstance(value, list) else "{…}" if isinstance(value, dict) else repr(value)


def shown(value: Any) -> Any:
    """The same JSON value, whose parts are short in messages."""
    if isinstance(value, str):
        return _Text(value)
    if isinstance(value, Mapping):
        return _Object({_Text(key): shown(part) for key, part in value.items()})
    return _Array(map(shown, value)) if isinstance(value, list) else value


def _count(value: Any) -> int:
    """How many values a value consists of, itself among them."""
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


# ----------------------------------------------------------------------------------------------------------- keywords
def _counted(name: str, check: Check) -> Check:
    """A keyword's check that costs steps: one, and more for the parts that it looks at itself, and for its errors."""

    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        parts = 4 * _count(value) if name in WHOLE else len(value) if isinstance(value, list | dict | str) else 0
        parts += len(instance) if isinstance(instance, list | dict) else 0
        spend(1 + parts // PER_STEP)
        for error in check(validator, value, instance, schema) or ():
            spend(ERROR + len(error.message) // LETTERS)
            yield error

    return counted


def _search(pattern: str, text: str) -> bool:
    found: Pattern = compiled(pattern)
    spend(1 + found.size * len(text) // PATTERN_WORK)
    return found.search(text)


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _search(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, schema in patterns.items():
        for key, value in instance.items():
            if _search(pattern, key):
                yield from validator.descend(value, schema, path=key, schema_path=pattern)


def _additional_properties(check: Check) -> Check:
    """jsonschema's check of the properties that no pattern matches: it would search for the patterns by `re`."""

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if not isinstance(instance, dict):
            return ()
        patterns = schema.get("patternProperties", {})
        rest = {key: part for key, part in instance.items() if not any(_search(each, key) for each in patterns)}
        return check(validator, value, rest, {"properties": schema.get("properties", {})})

    return additional


def _unique_items(_: Any, unique: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    """jsonschema's compares every item with every other one, unless they can be sorted."""
    if not unique or not isinstance(instance, list):
        return
    known = set()
    for item in instance:
        text = json.dumps(_normal(item), sort_keys=True)
        spend(1 + len(text) // TEXT)
        known.add(text)
    if len(known) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _normal(value: Any) -> Any:
    """The value with whole numbers as integers: 1.0 is 1 in JSON Schema."""
    if isinstance(value, dict):
        return {key: _normal(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_normal(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unevaluated(check: Check) -> Check:
    """jsonschema looks for every part among those that were evaluated, in a list."""

    def unevaluated(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if isinstance(instance, list | dict):
            spend(1 + len(instance) ** 2 // PAIRS)
        return check(validator, value, instance, schema)

    return unevaluated


@cache
def _counting(kind: Any, types: TypeChecker) -> Any:
    """A validator class of jsonschema's whose checks are counted and whose patterns take linear time."""
    checks: dict[str, Check] = {**kind.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique_items}
    for name, check in kind.VALIDATORS.items():
        if name == "patternProperties":
            checks[name] = _pattern_properties
        elif name == "additionalProperties":
            checks[name] = _additional_properties(check)
        elif name.startswith("unevaluated"):
            checks[name] = _unevaluated(check)
    alone = kind in (jsonschema.Draft4Validator, jsonschema.Draft6Validator, jsonschema.Draft7Validator)

    def applicable(schema: Any) -> Any:
        spend(1 + len(schema) // PER_STEP)
        return [("$ref", schema["$ref"])] if alone and "$ref" in schema else schema.items()

    return validators.create(
        kind.META_SCHEMA,
        {name: _counted(name, check) for name, check in checks.items()},
        type_checker=types,
        id_of=kind.ID_OF,
        applicable_validators=applicable,
    )


# ------------------------------------------------------------------------------------------------------------ schemas
@cache
def _metaschemas() -> Registry[Any]:
    """jsonschema's, without the `$schema` by which it would go on with validators of its own."""
    plain = {}
    for uri in REGISTRY:
        contents: Any = REGISTRY.contents(uri)
        specification = specification_with(contents["$schema"])
        plain[uri] = specification.create_resource({k: v for k, v in contents.items() if k != "$schema"})
    return Registry().with_resources(plain.items()).crawl()


class Validator:
    """A schema that others wrote, ready to check values. References are looked up in the schema itself only."""

    def __init__(self, text: str) -> None:
        """text: the schema as JSON, which is an object. Raises SchemaError, and OverBudget."""
        spend(len(text) // TEXT)
        if len(text) > LONGEST:
            raise SchemaError(f"have more than {LONGEST} characters as JSON; simplify them")
        self.schema = shown(json.loads(text))
        if not isinstance(self.schema.get("$schema", ""), str):
            raise SchemaError("are of a dialect, $schema, that is not an address")
        self._kind = validators.validator_for(self.schema, default=jsonschema.Draft202012Validator)
        if self._kind is jsonschema.Draft3Validator:
            raise SchemaError("are of JSON Schema's draft 3, which is not read; write them in draft 4 or a later one")
        self._specification = specification_with(self._kind.META_SCHEMA["$schema"])
        self._safe: set[int] = set()  # ids of schemas that were checked and prepared
        self._keywords: set[str] = set()
        self._patterns: set[str] = set()
        self._add(self.schema)
        resource = self._specification.create_resource(self.schema)
        uri = resource.id() or ""
        registry = Registry().with_resource(uri, resource).crawl()
        self._follow(registry.resolver(uri))
        if {"unevaluatedProperties", "patternProperties"} <= self._keywords:
            raise SchemaError("have both unevaluatedProperties and patternProperties; use only one of them")
        self._root = _counting(self._kind, _TYPES)(self.schema, registry=registry)

    def first_error(self, value: Any, argument: str | None = None) -> ValidationError | None:
        """The error that says most about a value, or about the value of one of the schema's properties; None without
        one. Raises OverBudget, RecursionError, and OverflowError for a number too large to be divided."""
        root = self._root if argument is None else self._root.evolve(schema=self.schema["properties"][argument])
        return best_match(root.iter_errors(shown(value)))

    def _add(self, tree: Any) -> None:
        """Makes a schema, and those inside, safe for jsonschema. Raises SchemaError unless it is one; formats are not
        checked."""
        meta = {key: value for key, value in self._kind.META_SCHEMA.items() if key != "$schema"}
        counting = _counting(self._kind, self._kind.TYPE_CHECKER)(meta, registry=_metaschemas())
        if wrong := best_match(counting.iter_errors(tree)):
            raise SchemaError(f"are not a JSON schema ({wrong.message}); correct it")
        left = [tree]
        while left:
            schema = left.pop()
            self._safe.add(id(schema))
            if isinstance(schema, dict):
                spend(1 + len(schema) // PER_STEP)
                self._keywords.update(schema)
                self._make_safe(schema)
                left += self._specification.subresources_of(schema)

    def _make_safe(self, schema: dict[str, Any]) -> None:
        if schema is not self.schema:
            schema.pop("$schema", None)  # else jsonschema goes on with validators of its own, which count nothing
        references = [schema[key] for key in REFERENCES if key in schema and key in self._kind.VALIDATORS]
        if not all(isinstance(reference, str) for reference in references):  # draft 4 does not say it of itself
            raise SchemaError("have a reference that is not text; correct it")
        if isinstance(schema.get("items"), bool) and "additionalItems" in self._kind.VALIDATORS:
            schema["items"] = _Object() if schema["items"] else _Object({"not": _Object()})  # it wants their length
        for pattern in [*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else [])]:
            if pattern in self._patterns:
                continue
            try:
                self._patterns.add(pattern)
                spend(compiled(pattern).size)  # to make an instruction takes a step at most
            except PatternError as error:
                raise SchemaError(f"have the pattern {_Text(pattern)!r}, which {error}; change it") from None

    def _follow(self, resolver: Any) -> None:
        """Adds what references lead to, which may lie under names that are no keywords."""
        left, followed = [(self.schema, resolver)], set()
        while left:
            schema, resolver = left.pop()
            if id(schema) not in self._safe:
                self._add(schema)
            if id(schema) in followed or not isinstance(schema, dict):
                continue
            followed.add(id(schema))
            resolver = resolver.in_subresource(self._specification.create_resource(schema))
            for key in REFERENCES:
                if key in schema and key in self._kind.VALIDATORS:
                    left.append(_looked_up(schema[key], resolver))
            left += [(part, resolver) for part in self._specification.subresources_of(schema)]


def _looked_up(reference: str, resolver: Any) -> tuple[Any, Any]:
    """(schema, resolver there)"""
    spend(REFERENCE)
    try:
        target = resolver.lookup(reference)
    except Unresolvable:
        raise SchemaError(f"refer to {reference!r}, which is not in them; put it in") from None
    return target.contents, target.resolver
