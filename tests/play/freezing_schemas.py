"""Schemas that keep other validators busy for seconds, minutes or ever, with arguments that set them off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

A = "a" * 40 + "!"
DRAFT_4, DRAFT_7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
Case = tuple[Mapping[str, Any], Mapping[str, Any]]


def of(argument: Any, value: Any, **more: Any) -> Case:
    """The parameters of a function with one argument x, and a value of it."""
    return {"type": "object", "properties": {"x": argument}, **more}, {"x": value}


def doubled(keyword: str, times: int, last: Any) -> dict[str, Any]:
    """Definitions each of which takes the next one twice."""
    return {
        **{f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(times)},
        f"d{times}": last,
    }


def nested(keyword: str, depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = {keyword: inner}
    return inner


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


FIRST = {"$ref": "#/$defs/d0"}
OBJECTS = [{"n": n} for n in range(3000)]
NUMBERS = list(range(16_000))
CONSTS = [{"const": n} for n in range(20_000)]
HUGE = 10**4000

CASES: dict[str, Case] = {
    "pattern (a+)+": of({"pattern": "^(a+)+$"}, A),
    "pattern (a|a)*": of({"pattern": "^(a|a)*$"}, A),
    "pattern (.*a){20}": of({"pattern": "^(.*a){20}$"}, "a" * 5000 + "!"),
    "pattern of nested repetitions": of({"pattern": "(((x{1,100}){1,100}){1,100})"}, "x" * 1000),
    "pattern of a large program": of({"pattern": "(?:a?){900}a{900}" * 8}, "a" * 100_000),
    "pattern of many classes": of({"pattern": r"(\p{L}{1,100}\p{N}{1,100}){1,9}"}, A),
    "pattern with many lookaheads": of({"pattern": "^" + "(?=a)" * 3000 + "a"}, A),
    "pattern that is long": of({"pattern": "a?" * 200_000}, A),
    "patternProperties": of({"patternProperties": {"^(a+)+$": True}}, {A: 1}),
    "patternProperties beside additionalProperties": of(
        {"patternProperties": {"^(a+)+$": True}, "additionalProperties": False}, {A: 1}
    ),
    "patternProperties, many patterns and names": of(
        {"patternProperties": {f"^(a+)+{n}$": False for n in range(500)}}, {f"a{n}": 1 for n in range(2000)}
    ),
    "propertyNames": of({"propertyNames": {"pattern": "^(a+)+$"}}, {A: 1}),
    "pattern by a reference": of({"$ref": "#/$defs/p"}, A, **{"$defs": {"p": {"pattern": "^(a+)+$"}}}),
    "pattern in allOf, not, if": of(
        {"allOf": [{"not": {"pattern": "^(a+)+$"}}, {"if": {"pattern": "(b+)+$"}, "then": False}]}, A
    ),
    "pattern below another $schema": of({"$schema": DRAFT_7, "pattern": "^(a+)+$"}, A),
    "pattern under a name that is no keyword": of({"$ref": "#/more/p"}, A, more={"p": {"pattern": "^(a+)+$"}}),
    "pattern of contains": of({"contains": {"pattern": "^(a+)+$"}}, [A] * 50),
    "pattern beside unevaluatedProperties": of(
        {"patternProperties": {"^(a+)+$": True}, "unevaluatedProperties": False}, {A: 1}
    ),
    "uniqueItems of objects": of({"uniqueItems": True}, OBJECTS),
    "uniqueItems of mixed values": of({"uniqueItems": True}, [[n, str(n)] for n in range(3000)] + ["a", 1, None]),
    "uniqueItems of numbers that hash alike": of({"uniqueItems": True}, [n * (2**61 - 1) for n in range(5000)]),
    "enum of objects in draft 4": of({"enum": OBJECTS}, 1, **{"$schema": DRAFT_4}),
    "required with objects": of({"required": OBJECTS}, 1),
    "oneOf of consts": of({"oneOf": CONSTS}, 19_999),
    "anyOf of consts": of({"anyOf": CONSTS}, "a" * 100_000),
    "anyOf of false for a large value": of({"anyOf": [False] * 50_000}, NUMBERS),
    "anyOf of types for a large value": of({"anyOf": [{"type": "string"}] * 5000}, NUMBERS),
    "enum for many items": of({"items": {"enum": NUMBERS}}, [-1] * 5000),
    "const that is large for many items": of({"items": {"const": NUMBERS}}, [NUMBERS] * 2),
    "anyOf doubled by $ref": of(FIRST, 1, **{"$defs": doubled("anyOf", 25, {"type": "string"})}),
    "allOf doubled by $ref": of(FIRST, 1, **{"$defs": doubled("allOf", 25, {"type": "integer"})}),
    "oneOf doubled by $ref": of(FIRST, 1, **{"$defs": doubled("oneOf", 25, {"type": "integer"})}),
    "anyOf doubled below the argument": of(
        {"properties": {"y": {"items": FIRST}}}, {"y": [1]}, **{"$defs": doubled("anyOf", 25, {"type": "string"})}
    ),
    "doubled at every level of the value": of(
        FIRST, deep(25), **{"$defs": {"d0": {"anyOf": [{"items": {"$ref": "#/$defs/d0"}}] * 2 + [False]}}}
    ),
    "$ref to itself": of({"$ref": "#/$defs/a"}, 1, **{"$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "$ref to each other, twice": of(
        {"$ref": "#/$defs/a"},
        1,
        **{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}] * 2}, "b": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}},
    ),
    "$dynamicRef to itself": of(
        {"$dynamicRef": "#a"}, 1, **{"$defs": {"a": {"$dynamicAnchor": "a", "$dynamicRef": "#a"}}}
    ),
    "$recursiveRef to itself": of(
        {"$recursiveRef": "#"},
        {"x": 1},
        **{"$schema": DRAFT_2019, "$recursiveAnchor": True, "allOf": [{"$recursiveRef": "#"}]},
    ),
    "a chain of references": of(
        {"$ref": "#/$defs/0"},
        1,
        **{"$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5000)} | {"5000": {}}},
    ),
    "anchors of many": of(
        {"allOf": [{"$ref": f"#a{n}"} for n in range(2000)]},
        1,
        **{"$defs": {f"d{n}": {"$anchor": f"a{n}"} for n in range(2000)}},
    ),
    "contains with minContains": of(
        {"contains": {"contains": {"const": -1}}, "minContains": 100}, [list(range(300))] * 300
    ),
    "dependentSchemas": of(
        {"dependentSchemas": {f"k{n}": {"minProperties": 3000} for n in range(2000)}}, {f"k{n}": n for n in range(2000)}
    ),
    "dependentRequired": of(
        {"items": {"dependentRequired": {"a": [f"k{n}" for n in range(20_000)]}}}, [{"a": 1}] * 500
    ),
    "unevaluatedProperties": of(
        {"unevaluatedProperties": False, "allOf": [{"properties": {"a": True}}] * 50}, {f"k{n}": n for n in range(3000)}
    ),
    "unevaluatedItems": of({"contains": {"type": "integer"}, "unevaluatedItems": False}, NUMBERS),
    "unevaluatedProperties doubled": of(
        {"unevaluatedProperties": False, **FIRST},
        {"a": 1},
        **{"$defs": doubled("allOf", 25, {"properties": {"a": True}})},
    ),
    "nested not": of(nested("not", 200, {"type": "string"}), 1),
    "nested not, deeper than Python calls": of(nested("not", 900, {"type": "string"}), 1),
    "multipleOf of a huge number": of({"multipleOf": 1e-300}, HUGE),
    "multipleOf for many huge numbers": of({"items": {"multipleOf": 7}}, [HUGE] * 10_000),
    "a schema with many names that are no keywords": of(
        {"items": {"$ref": "#/$defs/d"}}, [1] * 10_000, **{"$defs": {"d": {f"k{n}": n for n in range(50_000)}}}
    ),
    "many names that are not allowed": of(
        {"anyOf": [{"additionalProperties": False}] * 2000}, {f"{n}" * 100: n for n in range(2000)}
    ),
    "a deep value": of({"$ref": "#/$defs/d"}, deep(300), **{"$defs": {"d": {"items": {"$ref": "#/$defs/d"}}}}),
    "a schema of many parts": of({"allOf": [{"properties": {f"k{n}": {"type": "string"}}} for n in range(30_000)]}, {}),
}
