"""Where a module can be changed, and how a change is found again after lines have moved."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.mutants.changes import callee, changes

PACKAGES = ("scope_jax", "models", "rollouts", "retrieval", "sharding")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Text for people, and parts that change nothing that runs.
DEAD_KEYWORDS = ("help", "description", "label", "metavar", "title", "epilog")
DEAD_FIELDS = ("annotation", "returns", "decorator_list", "bases", "msg")
LOGGERS = ("log", "logger", "logging", "_log", "_logger", "LOG", "LOGGER")
DECLARATIONS = ("TypeVar", "TypeVarTuple", "ParamSpec", "NewType", "getLogger")


@dataclass(frozen=True)
class Mutant:
    """A program with one change; `file`, `name`, `before` and `occurrence` find it, `line` is for the reader."""

    file: str
    """Path from the root of the checkout, without links."""
    line: int
    """First line of what is replaced, when it was drawn."""
    name: str
    """Qualified name of the function or class around it; "" at the level of the module."""
    kind: str
    """operator, constant, branch or call."""
    before: str
    """What is replaced, as ast.unparse writes it."""
    after: str
    """What stands there instead."""
    occurrence: int
    """Its number, from 0, among equal pieces of code under that name."""

    @property
    def layer(self) -> str:
        """The layer of its file."""
        return layer(self.file)

    def row(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


@dataclass(frozen=True)
class Site:
    """A node that can be replaced."""

    name: str
    """Qualified name of the function or class around it."""
    node: ast.AST
    """The node."""
    parent: ast.AST
    """The node it belongs to."""
    last: bool
    """It is the last statement of its function."""


@dataclass(frozen=True)
class Place:
    """Where a mutant's text lies in the present tree."""

    path: str
    """Path from the root of the checkout."""
    node: ast.expr | ast.stmt
    """What is replaced."""


def layer(file: str) -> str:
    """The layer of a file: a package under scope_jax, a package at the top level, or a module of scope_jax."""
    parts = Path(file).with_suffix("").parts
    return parts[1] if parts[0] == "scope_jax" else parts[0]


def sources(root: Path) -> list[Path]:
    """All modules of the product, sorted, each once (links to packages are not followed)."""
    return sorted(path for package in PACKAGES for path in _modules(root / package))


def _modules(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            yield from _modules(path)
        elif path.suffix == ".py":
            yield path


def sites(tree: ast.Module) -> Iterator[Site]:
    """All nodes of a module but texts for people, annotations, imports, assertions and logging."""
    for statement in tree.body:
        yield from _visit(statement, tree, "", False)


def _visit(node: ast.AST, parent: ast.AST, name: str, last: bool) -> Iterator[Site]:
    if _is_dead(node):
        return
    yield Site(name, node, parent, last)
    if isinstance(node, ast.Raise) or callee(node).endswith("Error"):
        return
    if isinstance(node, SCOPES):
        name = f"{name}.{node.name}".removeprefix(".")
    for field, value in ast.iter_fields(node):
        if field in DEAD_FIELDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                ends = field == "body" and isinstance(node, SCOPES) and child is node.body[-1]
                yield from _visit(child, node, name, ends)


def _is_dead(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_dead(node.value)
    if isinstance(node, ast.keyword):
        return node.arg in DEAD_KEYWORDS
    if isinstance(node, ast.If):
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__" or callee(node.value) in DECLARATIONS
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value) in LOGGERS
    return False


def mutants(file: str, text: str) -> list[Mutant]:
    """All mutants of a module."""
    tree = ast.parse(text)
    positions: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for site in _ordered(tree):
        known = positions.setdefault((site.name, ast.unparse(site.node)), [])
        if _position(site.node) not in known:
            known.append(_position(site.node))
    result: list[Mutant] = []
    for site in sites(tree):
        for change in changes(site.node, site.parent, site.last):
            before = ast.unparse(change.node)
            known = positions.get((site.name, before), [])
            if _position(change.node) in known:  # not in a part that is dead
                occurrence = known.index(_position(change.node))
                line = change.node.lineno
                result.append(Mutant(file, line, site.name, change.kind, before, change.after, occurrence))
    return result


def _position(node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, ast.expr | ast.stmt)
    return node.lineno, node.col_offset


def _ordered(tree: ast.Module) -> list[Site]:
    """Sites that are expressions or statements, in the order of the text."""
    placed = [site for site in sites(tree) if isinstance(site.node, ast.expr | ast.stmt)]
    return sorted(placed, key=lambda site: _position(site.node))


def find_in(text: str, mutant: Mutant) -> ast.expr | ast.stmt | None:
    """The node of a text that a mutant replaces, or None if there is none such."""
    positions: list[tuple[int, int]] = []
    for site in _ordered(ast.parse(text)):
        if site.name != mutant.name or ast.unparse(site.node) != mutant.before:
            continue
        if _position(site.node) not in positions:
            positions.append(_position(site.node))
        if len(positions) == mutant.occurrence + 1:
            assert isinstance(site.node, ast.expr | ast.stmt)
            return site.node
    return None


def find(root: Path, mutant: Mutant) -> Place | None:
    """Where a mutant lies: in its file, or in the only other one that has its name and text; None: it is gone."""
    file = root / mutant.file
    if file.is_file() and (node := find_in(file.read_text(encoding="utf-8"), mutant)):
        return Place(mutant.file, node)
    moved: list[Place] = []
    last_name = mutant.name.rpartition(".")[2]
    for path in sources(root):
        text = path.read_text(encoding="utf-8")
        if mutant.name and last_name in text and (node := find_in(text, mutant)):
            moved.append(Place(str(path.relative_to(root)), node))
    return moved[0] if len(moved) == 1 else None


def replaced(text: str, node: ast.expr | ast.stmt, after: str) -> str:
    """The text with a node's text replaced; columns of nodes count bytes."""
    lines = text.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole = b"".join(lines)
    return (whole[:start] + after.encode() + whole[end:]).decode()
