"""The changes that can be made to one expression or statement, as text before and after."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KINDS = ("operator", "constant", "branch", "call")

COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
# Calls that return what their first argument is, or that change speed and memory alone.
TRANSPARENT = ("jit", "cast", "cache", "lru_cache", "named_scope", "checkpoint", "with_sharding_constraint")
TYPES = ("int", "float", "str", "bool", "bytes", "dict", "list", "tuple", "type")


@dataclass(frozen=True)
class Change:
    """One change of one node."""

    kind: str
    """One of KINDS."""
    node: ast.expr | ast.stmt
    """What is replaced."""
    after: str
    """The text that stands there instead."""


def changes(node: ast.AST, parent: ast.AST, last: bool) -> Iterator[Change]:
    """The changes of a node; `last`: it is the last statement of its function, where a return is no early one."""
    yield from _operators(node)
    yield from _constants(node, parent)
    yield from _branches(node, last)
    yield from _calls(node)


def callee(node: ast.AST) -> str:
    """The last part of the name that a call calls; "" for other nodes."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _text(node: ast.AST) -> str:
    """An expression in parentheses, so that it can stand anywhere."""
    return ast.unparse(node) if isinstance(node, ast.Constant | ast.Name) else f"({ast.unparse(node)})"


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_type(node: ast.AST) -> bool:
    named = isinstance(node, ast.Name) and node.id in TYPES
    return named or (isinstance(node, ast.Constant) and node.value is None)


def _operators(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for index, operation in enumerate(node.ops):
            operations = list(node.ops)
            operations[index] = COMPARISONS[type(operation)]()
            yield Change("operator", node, _text(ast.Compare(node.left, operations, node.comparators)))
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        sides = (node.left, node.right)
        if not any(_is_string(side) or _is_type(side) for side in sides):
            yield Change("operator", node, _text(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)))
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC and not _is_string(node.value):
        changed = ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
        yield Change("operator", node, ast.unparse(changed))
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield Change("operator", node, _text(ast.BoolOp(other, node.values)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield Change("operator", node, _text(node.operand))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield Change("operator", node, _text(node.operand))


def _constants(node: ast.AST, parent: ast.AST) -> Iterator[Change]:
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield Change("constant", node, repr(not value))
    elif isinstance(value, int):
        yield Change("constant", node, repr(value + 1))
        if value > 0:
            yield Change("constant", node, repr(value - 1))
    elif isinstance(value, float):
        yield Change("constant", node, repr(2 * value if value else 1.0))
    elif isinstance(value, str) and _is_compared_or_key(node, parent):
        yield Change("constant", node, repr(value + "_"))


def _is_compared_or_key(node: ast.Constant, parent: ast.AST) -> bool:
    if isinstance(parent, ast.Compare | ast.MatchValue):
        return True
    if isinstance(parent, ast.Subscript):
        return parent.slice is node
    return isinstance(parent, ast.Dict) and node in parent.keys


def _branches(node: ast.AST, last: bool) -> Iterator[Change]:
    tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
    if isinstance(node, ast.comprehension):
        tests = node.ifs
    for test in tests:
        yield Change("branch", test, _text(ast.UnaryOp(ast.Not(), test)))
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Return) and not last):
        yield Change("branch", node, "pass")


def _calls(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield Change("call", node, "pass")
    if not isinstance(node, ast.Call) or callee(node) in TRANSPARENT:
        return
    if node.args and not isinstance(node.args[0], ast.Starred):
        yield Change("call", node, _text(node.args[0]))
    for keyword in node.keywords:
        if keyword.arg is not None:
            rest = [other for other in node.keywords if other is not keyword]
            yield Change("call", node, _text(ast.Call(node.func, node.args, rest)))
