"""Runs mutants against the tests that run their lines, some at a time, each in a copy of the checkout."""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tools.mutants.children import Ending, compile_tree, copy_tree, run_tests
from tools.mutants.cover import Cover
from tools.mutants.results import Result, append, read_results, write_results
from tools.mutants.selection import by_file, file_of, select
from tools.mutants.source import Mutant, Place, find, replaced

START_SECONDS = 60.0  # our own imports and a file's fixtures
NUMBER = struct.Struct("i")
FORK = multiprocessing.get_context("fork")  # workers have what their parent has imported


@dataclass(frozen=True)
class Bench:
    """Where mutants are tried."""

    cover: Cover
    """Which tests run which lines."""
    tree: Path
    """A copy of the checkout."""
    budget: float
    """Seconds of tests for each mutant, as they took in `cover`."""
    out: Path
    """Results; beside them, with `.checked`, the tests that were run without a mutant, and whether each passed."""

    def checked(self) -> dict[str, bool]:
        """Whether tests pass without a mutant."""
        path = self._path()
        return dict(map(json.loads, path.read_text(encoding="utf-8").splitlines())) if path.exists() else {}

    def failing(self) -> set[str]:
        """Tests that fail without a mutant."""
        return {test for test, passed in self.checked().items() if not passed}

    def check(self, tests: Collection[str]) -> None:
        """Runs tests, or the first of a file, without a mutant."""
        while left := sorted(set(tests) - set(self.checked())):
            runnable = {test if "::" in test else self._first_of(test): test for test in left}
            ending = run_tests(self.tree, by_file(runnable), self.limit(list(runnable)))
            passed = dict.fromkeys(ending.begun or runnable, True) | dict.fromkeys(ending.culprits, False)
            with self._path().open("a", encoding="utf-8") as file:
                for test in runnable.keys() & passed.keys():
                    file.write(json.dumps([runnable[test], passed[test]]) + "\n")

    def limit(self, tests: Collection[str]) -> float:
        """Seconds after which tests are taken to hang."""
        expected = sum(self.cover.seconds.get(test, 0.0) for test in tests) + len(set(map(file_of, tests)))
        return 3 * expected + START_SECONDS

    def _first_of(self, file: str) -> str:
        return next(test for test in self.cover.seconds if file_of(test) == file)

    def _path(self) -> Path:
        return self.out.with_name(self.out.name + ".checked")


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
    """Runs its tests, but those that are known to fail without it."""
    place = find(bench.tree, mutant)
    if place is None:
        return Result(mutant, "gone", "", 0, 0.0)
    selection = select(bench.cover, bench.tree, mutant, place, bench.budget, bench.failing())
    seconds = 0.0
    complete = selection.complete
    for stage in selection.stages:
        ending = _run_changed(bench, place, mutant.after, stage)
        seconds = round(seconds + ending.seconds, 1)
        if ending.how == "timeout":  # of the test that was running, or of a busy machine
            ending = _run_changed(bench, place, mutant.after, ending.begun[-1:] or stage[:1])
            complete = False
        if ending.how != "passed":
            outcome = "timeout" if ending.how == "timeout" else "killed"
            culprits = ending.culprits or stage[:1]  # the first, if the mutant ends pytest before any test begins
            return Result(mutant, outcome, culprits[0], selection.tests, seconds)
    outcome = "survived" if complete else "budget"
    return Result(mutant, outcome if selection.covering else "uncovered", "", selection.tests, seconds)


def _run_changed(bench: Bench, place: Place, after: str, tests: Sequence[str]) -> Ending:
    with applied(bench.tree, place, after):
        return run_tests(bench.tree, tests, bench.limit(tests), ["-x"])


def run(root: Path, mutants: Sequence[Mutant], cover: Cover, out: Path, workers: int, budget: float) -> list[Result]:
    """Results of all mutants, in their order; those that `out` has are kept, and new ones are appended to it.

    At the end the tests that killed run without a mutant; mutants whose test fails then, too, are tried without it."""
    import tests.libraries  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clean = Bench(cover, Path(folder, "clean"), budget, out)
        copy_tree(root, clean.tree)
        compile_tree(clean.tree)
        benches = [replace(clean, tree=Path(folder, f"tree{number}")) for number in range(workers)]
        for bench in benches:
            copy_tree(clean.tree, bench.tree)
        while left := waiting(mutants, read_results(out), clean.failing()):
            Random(0).shuffle(left)  # a run that is stopped has seen all layers
            _try_all(benches, left)
            clean.check({result.by for result in read_results(out) if result.is_killed})
    order = {mutant: number for number, mutant in enumerate(mutants)}
    results = sorted(read_results(out), key=lambda result: order.get(result.mutant, len(order)))
    write_results(out, results)
    return results


def waiting(mutants: Sequence[Mutant], results: Sequence[Result], failing: Collection[str]) -> list[Mutant]:
    """Mutants without a result, or with one by a test that fails without them, too."""
    done = {result.mutant for result in results if result.by not in failing}
    return [mutant for mutant in mutants if mutant not in done]


def _try_all(benches: Sequence[Bench], mutants: Sequence[Mutant]) -> None:
    """All benches take numbers from one pipe."""
    reading, writing = os.pipe()
    os.write(writing, b"".join(map(NUMBER.pack, range(len(mutants)))))
    os.close(writing)
    processes = [FORK.Process(target=_work, args=(bench, mutants, reading)) for bench in benches]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    os.close(reading)
    if any(process.exitcode for process in processes):
        sys.exit("a worker has failed; its traceback is above")


def _work(bench: Bench, mutants: Sequence[Mutant], reading: int) -> None:
    while number := os.read(reading, NUMBER.size):
        mutant = mutants[NUMBER.unpack(number)[0]]
        result = try_mutant(bench, mutant)
        append(bench.out, result)
        print(f"{result.outcome:10}{result.seconds:7.1f} s  {mutant.file}:{mutant.line}  {result.by}", flush=True)
