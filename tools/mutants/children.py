"""Runs tests in a process that is forked from one which has imported the libraries, so that it begins in a second."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

OURS = ("scope_jax", "tools", "tests", "benchmarks")
MARK = "SCOPE_JAX_MUTANT_TREE"
NO_TESTS = 5  # pytest's exit code
NEVER_COPIED = (".git", ".cache", ".hypothesis", ".pytest_cache", "build", "runs", "dist")
POLL = 0.02
COMPILE_SECONDS = 600.0


@dataclass(frozen=True)
class Ending:
    """How a run of tests ended."""

    how: str
    """passed, failed, timeout or crash."""
    failed: tuple[str, ...]
    """Tests that failed, and files that could not be imported."""
    begun: tuple[str, ...]
    """Tests in the order in which they began; after a timeout or crash, the last one was running."""
    seconds: float
    """Wall-clock seconds."""

    @property
    def culprits(self) -> tuple[str, ...]:
        """The tests that failed, and the one that was running when the process hung or crashed."""
        return self.failed + (self.begun[-1:] if self.how in ("timeout", "crash") else ())


class Watch:
    """A plugin that keeps some tests, in their order, and writes down which one begins and which one fails."""

    def __init__(self, tests: Sequence[str], events: Path) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._events = events

    def _write(self, event: str, test: str) -> None:
        with self._events.open("a", encoding="utf-8") as file:
            file.write(json.dumps([event, test]) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the tests; without a list, all that `-m` has kept."""
        if self._order:
            items[:] = [item for item in items if item.nodeid in self._order]
            items.sort(key=lambda item: self._order[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported is a failure of the file."""
        if report.failed:
            self._write("failed", report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Before each test."""
        self._write("start", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After each part of a test."""
        if report.failed:
            self._write("failed", report.nodeid)


def copy_tree(root: Path, tree: Path) -> None:
    """A copy of a checkout in which tests can run; the environment is a link."""

    def ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder) == root and name in (*NEVER_COPIED, ".venv")]

    shutil.copytree(root, tree, symlinks=True, ignore=ignored)
    if (root / ".venv").exists():
        (tree / ".venv").symlink_to((root / ".venv").resolve())


def compile_tree(tree: Path) -> None:
    """Writes the compiled files of all that tests import, so that only a mutant's module is compiled again."""
    run_tests(tree, (), COMPILE_SECONDS, ["--collect-only"])


def run_tests(tree: Path, tests: Sequence[str], limit: float, words: Sequence[str] = ()) -> Ending:
    """Runs tests in a tree for `limit` seconds at most. `words` go to pytest."""
    events = tree.with_suffix(".events")
    events.write_text("", encoding="utf-8")
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = _child(tree, tests, words, events)
        finally:
            os._exit(code)
    status = _wait(child, begun + limit)
    _end_all(tree, child)
    seconds = round(time.monotonic() - begun, 2)
    rows = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    failed = tuple(dict.fromkeys(test for event, test in rows if event == "failed"))
    begun_tests = tuple(test for event, test in rows if event == "start")
    how = "failed" if failed else "passed"
    if status is None:
        how = "timeout"
    elif not failed and os.waitstatus_to_exitcode(status) not in (0, NO_TESTS):
        how = "crash"
    return Ending(how, failed, begun_tests, seconds)


def _child(tree: Path, tests: Sequence[str], words: Sequence[str], events: Path) -> int:
    os.setsid()
    output = os.open(tree.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    with contextlib.suppress(OSError):  # where memory ends, this process ends first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", MARK: str(tree)}
    sys.dont_write_bytecode = "--collect-only" not in words  # what a mutant compiles is not kept
    root = Path(__file__).parents[2]
    sys.path[:] = [str(tree), *(path for path in sys.path if path and Path(path).resolve() != root)]
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    os.chdir(tree)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={tree.with_suffix('.tmp')}"]
    return int(pytest.main([*options, *words, *files], plugins=[Watch(tests, events)]))


def _wait(child: int, until: float) -> int | None:
    """The status of a child, or None if it had to be killed."""
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(POLL)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _end_all(tree: Path, child: int) -> None:
    """Kills what the child has left: its process group, and processes that carry the tree's mark."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    mark = f"{MARK}={tree}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
