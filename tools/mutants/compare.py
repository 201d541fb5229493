"""After the suite has changed: are the mutants that the old one killed still killed by `make test`?"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.children import copy_tree, run_tests
from tools.mutants.cover import Cover
from tools.mutants.results import Result
from tools.mutants.run import applied, run
from tools.mutants.selection import file_of
from tools.mutants.source import Mutant, find

SLOW_SECONDS = 1800.0


@dataclass(frozen=True)
class Comparison:
    """What has become of the mutants that were killed before."""

    kept: list[Result]
    """Killed by a test that is still there and fast."""
    again: list[Result]
    """Their test is gone or slow, and another fast one kills them."""
    slow: list[Result]
    """Only a slow test kills them."""
    lost: list[Result]
    """No test kills them, or they were not run again."""
    gone: list[Result]
    """The code that they change is no longer there."""

    def share(self, layer: str | None = None) -> float:
        """The share that fast tests kill, of those that are not gone; of one layer, if it is given."""

        def count(results: Sequence[Result]) -> int:
            return sum(layer in (None, result.mutant.layer) for result in results)

        fast = count(self.kept) + count(self.again)
        return fast / max(1, fast + count(self.slow) + count(self.lost))

    def text(self) -> str:
        """The shares by layer, and the mutants that fast tests kill no longer."""
        groups = (self.kept, self.again, self.slow, self.lost, self.gone)
        layers = sorted({result.mutant.layer for group in groups for result in group})
        lines = [f"{'layer':14}{'share':>7}{'kept':>7}{'again':>7}{'slow':>7}{'lost':>7}{'gone':>7}"]
        for layer in layers:
            numbers = [sum(result.mutant.layer == layer for result in group) for group in groups]
            lines.append(f"{layer:14}{self.share(layer):7.1%}" + "".join(f"{number:7}" for number in numbers))
        lines.append(f"{'all':14}{self.share():7.1%}" + "".join(f"{len(group):7}" for group in groups))
        for title, group in (("only by slow tests", self.slow), ("no longer", self.lost)):
            lines += [f"{title}: {said(result.mutant)} (before: {result.by})" for result in group]
        return "\n".join(lines)


def said(mutant: Mutant) -> str:
    """A mutant in one line."""
    return f"{mutant.file}:{mutant.line} {mutant.name}: {mutant.before} -> {mutant.after}"


def compare(
    root: Path, before: Sequence[Result], cover: Cover | None, out: Path, workers: int, budget: float
) -> Comparison:
    """Looks for the killing tests in the present suite; with `cover` runs those mutants again that have lost theirs."""
    killed = [result for result in before if result.is_killed]
    gone = [result for result in killed if find(root, result.mutant) is None]
    present = [result for result in killed if result not in gone]
    fast = set(cover.seconds) if cover else fast_tests(root)
    kept = [result for result in present if is_among(result.by, fast)]
    waiting = [result for result in present if result not in kept]
    if cover is None:
        return Comparison(kept, [], [], waiting, gone)
    fresh = run(root, [result.mutant for result in waiting], cover, out, workers, budget)
    again = {result.mutant for result in fresh if result.is_killed}
    rest = [result for result in waiting if result.mutant not in again]
    slow = killed_by_slow(root, rest)
    lost = [result for result in rest if result not in slow]
    return Comparison(kept, [result for result in waiting if result.mutant in again], slow, lost, gone)


def is_among(test: str, tests: Collection[str]) -> bool:
    """Whether a test is there; a file that could not be imported is there if one of its tests is."""
    return test in tests or test in {file_of(other) for other in tests}


def fast_tests(root: Path) -> set[str]:
    """The tests that `make test` runs."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--collect-only"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def killed_by_slow(root: Path, results: Sequence[Result]) -> list[Result]:
    """Those that a slow test kills, in the folder of the test that killed them before."""
    if not results:
        return []
    import tests.libraries  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        copy_tree(root, tree)
        return [result for result in results if is_killed_by_slow(tree, result)]


def is_killed_by_slow(tree: Path, result: Result) -> bool:
    """Whether a slow test of the folder fails with the mutant, and none does without it."""
    place = find(tree, result.mutant)
    tests = str(Path(file_of(result.by)).parent)
    if place is None or not (tree / tests).is_dir():
        return False
    words = ["-m", "slow", tests]
    with applied(tree, place, result.mutant.after):
        ending = run_tests(tree, (), SLOW_SECONDS, ["-x", *words])
    return ending.how != "passed" and run_tests(tree, (), SLOW_SECONDS, words).how == "passed"
