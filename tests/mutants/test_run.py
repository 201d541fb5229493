"""Tests are chosen for a mutant and run against it, in a small checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.mutants.compare import Comparison, is_among
from tools.mutants.cover import Cover
from tools.mutants.results import Result, append, mutant_of, read_mutants, read_results, table
from tools.mutants.selection import by_file, covering, select
from tools.mutants.source import Mutant, find, mutants

ROOT = Path(__file__).parents[2]
FILE = "scope_jax/play/module.py"
TEXT = """LIMIT = 3


def below(a, b=4):
    if a > LIMIT:
        return False
    return a < b


def idle(a):
    return a + 1
"""
NEAR, FAR, MATE = "tests/play/test_a.py::test_near", "tests/web/test_b.py::test_far", "tests/web/test_b.py::test_mate"
HOUSE = "tests/house/test_c.py::test_house"


class Known(Cover):
    """A cover written by hand."""

    @property
    def seconds(self) -> dict[str, float]:
        """Of four tests."""
        return {NEAR: 3.0, FAR: 1.0, MATE: 0.5, HOUSE: 1.0}

    def lines(self, file: str) -> dict[int, set[str]]:
        """The far test returns early."""
        return {5: {NEAR, FAR}, 6: {FAR}, 7: {NEAR}} if file == FILE else {}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for package in ("scope_jax/play", "models", "rollouts", "retrieval", "sharding"):
        (tmp_path / package).mkdir(parents=True)
    (tmp_path / FILE).write_text(TEXT)
    return tmp_path


def mutant(before: str, after: str) -> Mutant:
    return next(each for each in mutants(FILE, TEXT) if (each.before, each.after) == (before, after))


def running(checkout: Path, before: str, after: str) -> set[str]:
    place = find(checkout, mutant(before, after))
    assert place is not None
    return covering(Known(checkout), checkout, place)


def test_tests_that_run_a_line_a_default_or_read_a_constant(checkout: Path) -> None:
    assert running(checkout, "False", "True") == {FAR}
    assert running(checkout, "a < b", "(a <= b)") == {NEAR}
    assert running(checkout, "4", "5") == {NEAR, FAR}  # of `b=4`: all that run the function
    assert running(checkout, "3", "4") == {NEAR, FAR}  # of LIMIT: line 5 reads it
    assert running(checkout, "a + 1", "(a - 1)") == set()


def test_near_tests_come_first_then_fast_ones_then_others_of_their_files(checkout: Path) -> None:
    known = Known(checkout)
    limit = mutant("3", "4")
    place = find(checkout, limit)
    assert place is not None
    whole = select(known, checkout, limit, place, 100.0, ())
    assert (whole.stages, whole.complete) == (((NEAR, FAR), (MATE, HOUSE)), True)
    small = select(known, checkout, limit, place, 3.5, ())
    assert (small.stages, small.complete) == (((NEAR,),), False)
    assert select(known, checkout, limit, place, 100.0, (NEAR, MATE)).stages == ((FAR,), (HOUSE,))
    nobody = mutant("a + 1", "(a - 1)")
    place = find(checkout, nobody)
    assert place is not None
    others = select(known, checkout, nobody, place, 100.0, ())
    assert (others.covering, others.stages) == (0, ((NEAR, FAR),))
    assert by_file(["a::1", "b::1", "a::2"]) == ["a::1", "a::2", "b::1"]


TESTS = """import sys
import pytest
sys.path.insert(0, "scope_jax/play")
import module

def test_early(): assert not module.below(7)
def test_low(): assert module.below(2)
def test_broken(): assert False
@pytest.mark.slow
def test_equal(): assert not module.below(2, 2)
def test_endless():
    while True: pass
"""
PROGRAM = """import sys
from dataclasses import replace
from pathlib import Path
from tools.mutants.children import run_tests
from tools.mutants.compare import is_killed_by_slow
from tools.mutants.cover import Cover
from tools.mutants.results import append, read_results
from tools.mutants.run import Bench, try_mutant, waiting
from tools.mutants.source import mutants

LOW, EARLY, BROKEN = (f"tests/test_module.py::test_{name}" for name in ("low", "early", "broken"))

class Known(Cover):
    seconds = {LOW: 0.1, EARLY: 0.1, BROKEN: 0.1}
    def lines(self, file):
        return {6: {EARLY, BROKEN}, 7: {LOW, BROKEN}}

tree = Path(sys.argv[1])
bench = Bench(Known(tree), tree, 100.0, tree.with_suffix(".jsonl"))
text = (tree / "scope_jax/play/module.py").read_text()
for mutant in mutants("scope_jax/play/module.py", text):
    if (mutant.before, mutant.after) in (("False", "True"), ("a < b", "(a <= b)"), ("a + 1", "(a - 1)")):
        append(bench.out, try_mutant(bench, mutant))
bench.check({result.by for result in read_results(bench.out) if result.is_killed})
print(*bench.failing())
for mutant in waiting([result.mutant for result in read_results(bench.out)], read_results(bench.out), bench.failing()):
    append(bench.out, try_mutant(bench, mutant))
for result in read_results(bench.out):
    before = replace(result, by="tests/test_gone.py::test_gone")
    print(result.mutant.before, result.outcome, result.by, is_killed_by_slow(tree, before))
print(run_tests(tree, ["tests/test_module.py::test_endless"], 3.0).how)
assert (tree / "scope_jax/play/module.py").read_text() == text
"""


def test_mutants_are_killed_survive_and_are_uncovered_and_tests_that_hang_are_ended(checkout: Path) -> None:
    (checkout / "tests").mkdir()
    (checkout / "tests" / "test_module.py").write_text(TESTS)
    (checkout / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, checkout], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "tests/test_module.py::test_broken",
        "False killed tests/test_module.py::test_early False",
        "a < b survived  True",
        "a + 1 uncovered  False",
        "timeout",
    ]


def results() -> list[Result]:
    return [
        Result(mutant("3", "4"), "killed", NEAR, 2, 1.5),
        Result(mutant("a < b", "(a <= b)"), "timeout", FAR, 2, 60.0),
        Result(mutant("False", "True"), "survived", "", 2, 60.0),
    ]


def test_results_are_appended_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert read_results(file) == []
    for result in results():
        append(file, result)
    assert read_results(file) == results()
    assert read_mutants(file) == [result.mutant for result in results()]
    assert mutant_of(results()[0].mutant.row()) == results()[0].mutant
    assert table(results()).splitlines()[1].split() == ["play", "3", "1", "1", "1", "0", "0", "0"]


def test_the_share_that_fast_tests_still_kill() -> None:
    near, far, _ = results()
    comparison = Comparison(kept=[near], again=[], slow=[far], lost=[], gone=[])
    assert comparison.share() == comparison.share("play") == 0.5
    assert comparison.text().splitlines()[-1].startswith(f"only by slow tests: {FILE}:7 below: a < b -> (a <= b)")
    assert is_among("tests/web/test_b.py", {FAR}) and not is_among("tests/web/test_c.py", {FAR})
