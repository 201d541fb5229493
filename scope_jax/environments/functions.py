"""Calls functions that a model has written, in the sandbox, and compares the values of literals there.

Each program has a worker of its own, in which all its calls are made; values come back as literals. So what a program
knows is its own inputs, never what its values are compared with, and nothing that a model writes is evaluated here.
What a worker tells is what its program lets it tell, so that it is not believed to have called a function twice.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from scope_jax.config import SandboxSection
from scope_jax.environments.fusion import Fusion
from scope_jax.environments.python_tool import python_service, python_tool
from scope_jax.environments.sandbox import Sandbox
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import Tool, ToolError
from scope_jax.play.tools import Tools

PROGRAMS, PAIRS = 16, 256  # of an item that is recorded, and that one process works on
LONGEST = 10_000  # characters of a program that is parsed: for a name of many parts Python takes quadratic time
_PROGRAM = (Path(__file__).parent / "isolation" / "functions.py").read_text(encoding="utf-8")


def service(section: SandboxSection) -> Sandbox | Fusion:
    """Where the functions of a card run; started by the run if the game has `tools_of` among its tools."""
    return _service(section.model_dump_json())


@cache
def _service(section: str) -> Sandbox | Fusion:
    return python_service(SandboxSection.model_validate_json(section))


def tools_of(section: SandboxSection) -> tuple[Tool, ...]:
    """For `Game.tools`: has a run start the sandbox, which tries whether it holds, and close it at the end."""
    return (python_tool(section, session=False, service=service(section)),)


def outputs(
    section: SandboxSection,
    tools: Tools,
    runs: Sequence[tuple[str, Sequence[str]]],
    *,
    name: str = "f",
    repeats: int = 1,
    longest: int = 400,
) -> list[list[str | None]]:
    """For each run, a program and the arguments of calls of its function `name` as text, their values as literals.

    None: it raises, is late (`sandbox.seconds`), has no value that is a literal of at most `longest` characters, or not
    the same one in `repeats` workers, each of which makes `repeats` calls; or the arguments are no literals. Recorded
    by `Tools.each`.
    """
    inputs: dict[str, dict[str, None]] = {}
    for program, texts in runs:
        inputs.setdefault(program, {}).update(dict.fromkeys(texts))
    items = [[program, [*texts]] for program, texts in inputs.items() if texts]
    work = partial(_programs, service(section), name, repeats, longest)
    parts = [*_parts(items, PROGRAMS)]
    values = [each for part in tools.each(f"functions {repeats}", work, parts) for each in part]
    known = {item[0]: dict(zip(item[1], own, strict=True)) for item, own in zip(items, values, strict=True)}
    return [[known[program][text] for text in texts] for program, texts in runs]


def same_values(
    section: SandboxSection, tools: Tools, cases: Sequence[tuple[Sequence[str | None], Sequence[str]]]
) -> list[bool]:
    """For each case whether the texts are literals of the values that are wanted, as many. Recorded by `Tools.each`."""
    known = [len(found) == len(wanted) and None not in found for found, wanted in cases]
    pairs = [[*pair] for case, good in zip(cases, known, strict=True) if good for pair in zip(*case, strict=True)]
    work = partial(_pairs, service(section))
    same = iter([each for part in tools.each("values", work, [*_parts(pairs, PAIRS)]) for each in part])
    each = [[next(same) for _ in wanted] if good else [False] for (_, wanted), good in zip(cases, known, strict=True)]
    return [*map(all, each)]


def parsed(program: str) -> ast.Module | None:
    """The syntax tree of a program, None if it has none or is longer than LONGEST."""
    if len(program) > LONGEST:
        return None
    try:
        return ast.parse(program)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def banned(program: str, names: Sequence[str]) -> bool:
    """Whether a program imports or uses one of these modules, or names of modules ("os.path"), by whatever name, and
    wherever they are ("numpy.random"). What it imports by a text (`__import__`) is not seen."""
    wanted = {tuple(name.split(".")) for name in names}
    longest = max(map(len, wanted), default=0)
    for parts in _used(program, longest):
        slices = (parts[start : start + size] for start in range(len(parts)) for size in range(1, longest + 1))
        if not wanted.isdisjoint(slices):
            return True
        if parts[-1] == "*" and any(name[: len(parts) - 1] == parts[:-1] for name in wanted):
            return True
    return False


def _used(program: str, longest: int) -> Iterator[tuple[str, ...]]:
    """The parts of dotted names: of what is imported, and of attributes of it, with as much of what is before them as
    a name of `longest` parts may need."""
    nodes = [*ast.walk(parsed(program) or ast.Module([], []))]
    known: dict[str, tuple[str, ...]] = {}  # what names of the program stand for
    for node in nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        module = (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
        for alias in node.names:
            whole = (*module, *alias.name.split("."))
            known[alias.asname or whole[len(module)]] = whole if alias.asname else whole[: len(module) + 1]
            yield whole
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if id(node) in inner:  # of a longer name
            continue
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in known:
            before = known[node.id]
            yield (*before[max(0, len(before) - longest) :], *reversed(parts))


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    yield from (items[first : first + size] for first in range(0, len(items), size))


def _programs(
    runs: Sandbox | Fusion, name: str, repeats: int, longest: int, items: list[list[Any]]
) -> list[list[str | None]]:
    """The values of several programs, of which as many run at a time as the sandbox allows."""

    def of_worker(program: str, inputs: list[str]) -> list[str | None]:
        told = _told(runs, f"outputs({program!r}, {name!r}, {inputs!r}, {repeats}, {longest})", len(inputs))
        if told is None and len(inputs) > 1:  # one of the calls may have ended it
            return [value for text in inputs for value in of_worker(program, [text])]
        read = [None] * len(inputs) if told is None else told
        return [each if isinstance(each, str) and len(each) <= longest else None for each in read]

    def agree(one: str | None, other: str | None) -> bool:
        return one is not None and other is not None and (one == other or _pairs(runs, [[one, other]])[0])

    def values(program: str, inputs: list[str]) -> list[str | None]:
        first, *others = [of_worker(program, inputs) for _ in range(repeats)]
        for other in others:
            first = [one if agree(one, two) else None for one, two in zip(first, other, strict=True)]
        return first

    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(lambda item: values(*item), items))


def _pairs(runs: Sandbox | Fusion, items: list[list[str]]) -> list[bool]:
    told = _told(runs, f"all_same({items!r})", len(items))
    if told is None and len(items) > 1:
        return [same for item in items for same in _pairs(runs, [item])]
    return [False] if told is None else [each is True for each in told]


def _told(runs: Sandbox | Fusion, call: str, count: int) -> list[Any] | None:
    """What the call of a function of `isolation.functions` prints, `count` values; None if it has no such result.
    Raises UserError if the sandbox runs nothing at all."""
    try:
        read = json.loads(runs.run(f"{_PROGRAM}\nprint({call})").rpartition("\n")[2])
        return read if isinstance(read, list) and len(read) == count else None
    except (ToolError, ValueError, RecursionError):  # ended, late, or it has printed something else
        _try_out(runs)
        return None


def _try_out(runs: Sandbox | Fusion) -> None:
    try:
        runs.run("print(1)")
    except ToolError as error:
        raise UserError(
            f"the sandbox runs no program any more ({error}); mend it, then run the same command again."
        ) from None
