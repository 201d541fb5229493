"""Runs mutants against the tests that run their lines, some at a time, each in a copy of the checkout."""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tools.mutants.children import Ending, compile_tree, copy_tree, run_tests
from tools.mutants.cover import Cover
from tools.mutants.results import Result, append, read_results
from tools.mutants.selection import Selection, select
from tools.mutants.source import Mutant, Place, find, replaced

START_SECONDS = 30.0  # our own imports and a file's fixtures
LEAST_LIMIT = 60.0
NUMBER = struct.Struct("i")
FORK = multiprocessing.get_context("fork")  # workers have what their parent has imported


@dataclass(frozen=True)
class Bench:
    """Where mutants are tried."""

    cover: Cover
    """Which tests run which lines."""
    tree: Path
    """A copy of the checkout."""
    checked: Path
    """Tests that were run without a mutant, one JSON line each: its name, and whether it passed."""
    budget: float
    """Seconds of tests for each mutant, as they took in `cover`."""

    def failing(self) -> set[str]:
        """Tests that fail without a mutant."""
        return {test for test, passed in self._known().items() if not passed}

    def _known(self) -> dict[str, bool]:
        lines = self.checked.read_text(encoding="utf-8").splitlines() if self.checked.exists() else []
        return dict(map(json.loads, lines))

    def passes_unchanged(self, test: str) -> bool:
        """Whether a test passes, alone, without a mutant; each is tried once."""
        if test not in self._known():
            tests = (
                [test] if "::" in test else [name for name in self.cover.seconds if name.startswith(f"{test}::")][:1]
            )
            ending = run_tests(self.tree, tests, self.limit(tests))
            with self.checked.open("a", encoding="utf-8") as file:
                file.write(json.dumps([test, ending.how == "passed"]) + "\n")
        return self._known()[test]

    def limit(self, tests: Sequence[str]) -> float:
        """Seconds after which tests are taken to hang."""
        return max(LEAST_LIMIT, 3 * sum(self.cover.seconds.get(test, 0.0) for test in tests) + START_SECONDS)


@contextmanager
def applied(tree: Path, place: Place, after: str) -> Iterator[None]:
    """The tree has the mutant's text; then its own again, with its own time, for which compiled files exist."""
    path = tree / place.path
    content = path.read_bytes()
    times = path.stat()
    path.write_bytes(replaced(content.decode(), place.node, after).encode())
    try:
        yield
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def try_mutant(bench: Bench, mutant: Mutant) -> Result:
    """Runs its tests. Tests that fail without it, too, are left out, and the others are run again."""
    place = find(bench.tree, mutant)
    if place is None:
        return Result(mutant, "gone", "", 0, 0.0)
    while True:
        selection = select(bench.cover, bench.tree, mutant, place, bench.budget, bench.failing())
        if not selection.tests:
            return Result(mutant, "uncovered", "", 0, 0.0)
        ending = _run_stages(bench, selection, place, mutant.after)
        if ending.how == "passed":
            outcome = "survived" if selection.complete else "budget"
            return Result(mutant, outcome, "", selection.tests, ending.seconds)
        test = ending.test or selection.stages[0][0]
        if bench.passes_unchanged(test):
            outcome = "timeout" if ending.how == "timeout" else "killed"
            return Result(mutant, outcome, test, selection.tests, ending.seconds)


def _run_stages(bench: Bench, selection: Selection, place: Place, after: str) -> Ending:
    seconds = 0.0
    for stage in selection.stages:
        with applied(bench.tree, place, after):
            ending = run_tests(bench.tree, stage, bench.limit(stage))
        seconds += ending.seconds
        if ending.how != "passed":
            return replace(ending, seconds=seconds)
    return Ending("", "passed", seconds)


def run(root: Path, mutants: Sequence[Mutant], cover: Cover, out: Path, workers: int, budget: float) -> list[Result]:
    """Results of all mutants; those that `out` has are kept, new ones are appended to it."""
    done = {result.mutant for result in read_results(out)}
    left = [mutant for mutant in mutants if mutant not in done]
    Random(0).shuffle(left)  # a run that is stopped has seen all layers
    import tests.libraries  # noqa: F401

    reading, writing = os.pipe()
    os.write(writing, b"".join(map(NUMBER.pack, range(len(left)))))
    os.close(writing)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clean = Path(folder, "clean")
        copy_tree(root, clean)
        compile_tree(clean)
        processes = []
        for number in range(workers):
            tree = Path(folder, f"tree{number}")
            copy_tree(clean, tree)
            bench = Bench(cover, tree, out.with_name(out.name + ".checked"), budget)
            processes.append(FORK.Process(target=_work, args=(bench, left, reading, out)))
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return read_results(out)


def _work(bench: Bench, mutants: Sequence[Mutant], reading: int, out: Path) -> None:
    while number := os.read(reading, NUMBER.size):
        mutant = mutants[NUMBER.unpack(number)[0]]
        result = try_mutant(bench, mutant)
        append(out, result)
        print(f"{result.outcome:10}{result.seconds:7.1f} s  {mutant.file}:{mutant.line}  {result.by}", flush=True)
