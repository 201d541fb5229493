"""Compares a game's table of its paper's Algorithm 1 with the game's syntax tree, where comments and strings do not
count as calls."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from scope_jax.play.system import System

HOME = Path(__file__).parents[2] / "scope_jax"
LOOP = sorted([*HOME.glob("*.py"), *(HOME / "run").glob("*.py")])
ASKED = [name for name in vars(System) if not name.startswith("_")]  # what the training loop calls


@dataclass(frozen=True)
class Place:
    """The code from the comment with one or more line numbers of the algorithm to the next such comment."""

    function: str
    calls: tuple[tuple[str, ...], ...]  # dotted names in order, ("drawing", "orders")


def complaints(game: ModuleType, steps: tuple[str, ...], source: str | None = None) -> list[str]:
    """The differences between the table in the docstring and the functions `steps`, of which `play` is the first.

    Every line of the table has one comment, in the table's order. A function that a row names must be a step that
    contains the comment or that `play` refers to, or a function that the training loop calls, or one that is called
    below the comment, in the order of the row.
    """
    tree = ast.parse(source or inspect.getsource(game))
    rows = re.findall(r"^\| (\d+) \| .+? \| (.+?) \|$", ast.get_docstring(tree) or "", re.MULTILINE)
    places = _places(source or inspect.getsource(game), tree, steps)
    found = [] if rows else ["no table"]
    if [number for number, _ in places] != [int(number) for number, _ in rows]:
        found.append(f"comments are {[number for number, _ in places]}")
    for number, where in rows:
        place = dict(places).get(int(number))
        names = re.findall(r"`(\w+)`", where)
        if place is None or not names:
            found.append(f"l.{number} has no comment or names no function")
            continue
        called = [call[-1] for call in place.calls if _defined(game, call)]
        for name in names:
            if name in steps:
                if name not in (place.function, *_named_in(tree, "play")):
                    found.append(f"l.{number}: `play` does not go to {name}")
            elif name in ASKED:
                if name not in _asked_by_the_loop() or not _defined(game, (name,)):
                    found.append(f"l.{number}: the loop does not ask for {name}")
            elif name in called:
                called = called[called.index(name) + 1 :]
            else:
                found.append(f"l.{number}: {name} is not called there")
    return found


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _places(source: str, tree: ast.Module, steps: tuple[str, ...]) -> list[tuple[int, Place]]:
    """(line of the algorithm, its place), in the order of the steps and of the comments in them."""
    comments = [
        (token.start[0], [int(number) for number in re.findall(r"l\.(\d+)", mark[1])])
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and (mark := re.match(r"# (l\.\d+(?:, l\.\d+)*): ", token.string))
    ]
    places = []
    for name in steps:
        function = _functions(tree)[name]
        own = [(row, numbers) for row, numbers in comments if function.lineno < row <= (function.end_lineno or 0)]
        ends = [row for row, _ in own[1:]] + [(function.end_lineno or 0) + 1]
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        calls.sort(key=lambda node: (node.end_lineno, node.end_col_offset))  # in the order of evaluation
        for (row, numbers), end in zip(own, ends, strict=True):
            here = tuple(_dotted(call.func) for call in calls if row < call.lineno < end)
            places += [(number, Place(name, here)) for number in numbers]
    return places


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute):
        return (*_dotted(node.value), node.attr)
    return (node.id,) if isinstance(node, ast.Name) else ("",)


def _defined(game: ModuleType, call: tuple[str, ...]) -> bool:
    """True if the dotted name is a function of the game's module or of a module that it imports."""
    owner: object = game
    for name in call:
        if not isinstance(owner, ModuleType) or name not in vars(owner):
            return False
        owner = vars(owner)[name]
    return inspect.isfunction(owner)


def _named_in(tree: ast.Module, function: str) -> set[str]:
    return {node.id for node in ast.walk(_functions(tree)[function]) if isinstance(node, ast.Name)}


def _asked_by_the_loop() -> set[str]:
    """The names x in all calls `….system.x(…)` and `system.x(…)` outside of the games."""
    calls = [
        _dotted(node.func)
        for path in LOOP
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    return {call[-1] for call in calls if len(call) > 1 and call[-2] == "system"}
