"""Which tests are run against a mutant, and in which order."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.cover import Cover
from tools.mutants.source import Mutant, Place, layer, sources

FILE_SECONDS = 0.5  # what a file of tests costs before its first test runs
FIRST_SECONDS = 15.0  # most tests of a mutant that is killed at all
FIRST_FILES = 10
MATES_SECONDS = 30.0
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
READERS = 20  # files that read a name of a module


@dataclass(frozen=True)
class Selection:
    """Tests in the order in which they are run."""

    stages: tuple[tuple[str, ...], ...]
    """Names of tests; a stage is run if the one before killed nothing."""
    covering: int
    """How many tests run the changed line."""
    complete: bool
    """All of them are in the stages."""

    @property
    def tests(self) -> int:
        """Their number."""
        return sum(map(len, self.stages))


def select(
    cover: Cover, root: Path, mutant: Mutant, place: Place, budget: float, omitted: Collection[str]
) -> Selection:
    """The tests that run the changed line, near ones before far ones and fast ones first, within `budget` seconds.

    After them come others within MATES_SECONDS: tests of the same files, as of tests that share a fixture or a traced
    program only the first was seen to run its lines; for what runs on import, which tests may read by reflection, those
    of the layer and of the house; and where no test was seen, those that run other lines of the file or its package, as
    a process with an environment of its own is not seen."""
    text = (root / place.path).read_text(encoding="utf-8")
    direct = covering(cover, root, place) - set(omitted)
    files = {file_of(test) for test in direct}
    folders = () if runs_later(text, place.node) else (f"tests/{mutant.layer}/", "tests/house/")
    mates = {test for test in cover.seconds if file_of(test) in files or test.startswith(folders)}
    mates = (mates or _of_package(cover, root, place.path)) - direct - set(omitted)
    chosen = list(_within(_ranked(direct, cover, mutant), cover, budget))
    rest = min(MATES_SECONDS, max(0.0, budget - sum(cover.seconds[test] for test in chosen)))
    chosen_mates = list(_within(_ranked(mates, cover, mutant), cover, rest))
    first = _first(chosen, cover)
    remaining = [test for test in chosen if test not in set(first)] + chosen_mates
    stages = tuple(tuple(by_file(stage)) for stage in (first, remaining) if stage)
    return Selection(stages, len(direct), len(chosen) == len(direct))


def file_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


def by_file(tests: Iterable[str]) -> list[str]:
    """Tests of a file together, so that its fixtures are built once; files in the order of their first test."""
    groups: dict[str, list[str]] = {}
    for test in tests:
        groups.setdefault(file_of(test), []).append(test)
    return [test for group in groups.values() for test in group]


def _ranked(tests: Iterable[str], cover: Cover, mutant: Mutant) -> list[str]:
    return sorted(tests, key=lambda test: (not test.startswith(f"tests/{mutant.layer}/"), cover.seconds[test], test))


def _within(tests: Iterable[str], cover: Cover, budget: float) -> Iterator[str]:
    """Those that fit into a number of seconds together."""
    spent = 0.0
    files: set[str] = set()
    for test in tests:
        cost = cover.seconds[test] + FILE_SECONDS * (file_of(test) not in files)
        if spent + cost <= budget:
            spent += cost
            files.add(file_of(test))
            yield test


def _first(tests: Iterable[str], cover: Cover) -> list[str]:
    files: set[str] = set()
    result: list[str] = []
    for test in _within(tests, cover, FIRST_SECONDS):
        if len(files | {file_of(test)}) <= FIRST_FILES:
            files.add(file_of(test))
            result.append(test)
    return result


def covering(cover: Cover, root: Path, place: Place) -> set[str]:
    """The tests that run what is replaced; of what runs on import, those that run a line which reads its name."""
    text = (root / place.path).read_text(encoding="utf-8")
    lines = cover.lines(place.path)
    if runs_later(text, place.node):
        return _union(lines, range(place.node.lineno, _end(place.node) + 1))
    around = _around(text, place.node)
    functions = [node for node in around if isinstance(node, FUNCTIONS)]
    if functions:
        return _union(lines, range(functions[-1].body[0].lineno, _end(functions[-1]) + 1))
    return _reading(cover, root, place.path, _targets(around[-1])) or _union(lines, lines)


def runs_later(text: str, node: ast.stmt | ast.expr) -> bool:
    """Whether code runs when a function is called, not when the module is imported."""
    functions = [outer for outer in _around(text, node) if isinstance(outer, FUNCTIONS)]
    return bool(functions) and node.lineno >= functions[-1].body[0].lineno


def _around(text: str, node: ast.stmt | ast.expr) -> list[ast.stmt]:
    """The statements around a node, from the outermost."""
    outer = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.stmt) and _contains(each, node)]
    return sorted(outer, key=lambda each: each.lineno)


def _of_package(cover: Cover, root: Path, file: str) -> set[str]:
    """Tests that run any line of a file, or of the files beside it."""
    beside = [str(path.relative_to(root)) for path in sorted((root / file).parent.glob("*.py"))]
    return _union(cover.lines(file), cover.lines(file)) or {
        test for other in beside for test in _union(cover.lines(other), cover.lines(other))
    }


def _contains(outer: ast.stmt, inner: ast.stmt | ast.expr) -> bool:
    start = (outer.lineno, outer.col_offset) <= (inner.lineno, inner.col_offset)
    return start and (_end(inner), inner.end_col_offset or 0) <= (_end(outer), outer.end_col_offset or 0)


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _targets(statement: ast.stmt) -> set[str]:
    """The names that a statement assigns."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _reading(cover: Cover, root: Path, file: str, names: Collection[str]) -> set[str]:
    """Tests that run a line with one of these names, in this file or in others, of the same layer first."""
    if not names:
        return set()
    word = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    files = [str(path.relative_to(root)) for path in sources(root)]
    files.sort(key=lambda other: (other != file, layer(other) != layer(file)))
    texts = {other: (root / other).read_text(encoding="utf-8").splitlines() for other in files}
    readers = {other: [n for n, line in enumerate(text, 1) if word.search(line)] for other, text in texts.items()}
    with_name = [other for other in files if readers[other]][:READERS]
    return {test for other in with_name for test in _union(cover.lines(other), readers[other])}


def _union(lines: dict[int, set[str]], numbers: Iterable[int]) -> set[str]:
    return {test for number in numbers for test in lines.get(number, ())}
