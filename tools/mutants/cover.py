"""Which tests run which lines: the suite once under coverage.py, with a context for each test."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.mutants.contexts import VARIABLE
from tools.mutants.source import PACKAGES

# A process that a test starts takes its context from the environment. `_exit`: one without exit handlers counts, too.
SETTINGS = """[run]
parallel = true
data_file = {folder}/data/lines
include =
{include}
context = ${{PYTEST_CURRENT_TEST}}
patch = _exit
disable_warnings = no-data-collected, module-not-measured, module-not-imported, context-switch
"""
PHASE = re.compile(r" \((setup|call|teardown)\)$")


def cover(root: Path, out: Path, workers: int) -> int:
    """Runs the suite and writes the lines of each test with its seconds and outcome to `out`.

    Returns pytest's exit code. Intermediate files lie in a folder beside `out`, with its name and `.parts`."""
    folder = out.with_name(out.name + ".parts").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    settings = folder / "coveragerc"
    include = "\n".join(f"    {root}/{package}/*" for package in PACKAGES)
    settings.write_text(SETTINGS.format(folder=folder, include=include), encoding="utf-8")
    own = {
        "COVERAGE_PROCESS_START": str(settings),
        "PYTHONPATH": str(root),
        VARIABLE: str(folder / "seconds.jsonl"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "tools.mutants.contexts"]
    command += ["-n", str(workers), "--dist", "loadfile"]
    code = subprocess.run(command, cwd=root, env={**os.environ, **own}, check=False).returncode
    combine(root, folder, out)
    return code


def combine(root: Path, folder: Path, out: Path) -> None:
    """Writes `out` from the files of all processes and the seconds of all tests."""
    from coverage import Coverage

    out.unlink(missing_ok=True)
    whole = Coverage(data_file=str(out), config_file=False)
    whole.combine(sorted(map(str, (folder / "data").iterdir())), keep=True)
    whole.save()
    rows = [json.loads(line) for line in (folder / "seconds.jsonl").read_text(encoding="utf-8").splitlines()]
    with sqlite3.connect(out) as database:
        database.execute("create table test (name text primary key, seconds real, outcome text)")
        values = [(row["test"], row["seconds"], row["outcome"]) for row in rows]
        database.executemany("insert or replace into test values (?, ?, ?)", values)
        database.execute("create table root (path text)")
        database.execute("insert into root values (?)", (str(root),))


@dataclass(frozen=True)
class Cover:
    """What `cover` wrote."""

    path: Path
    """Its file."""

    @cached_property
    def root(self) -> str:
        """The checkout whose lines were counted."""
        with sqlite3.connect(self.path) as database:
            return str(database.execute("select path from root").fetchone()[0])

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds of each test that passed."""
        with sqlite3.connect(self.path) as database:
            return dict(database.execute("select name, seconds from test where outcome = 'passed'"))

    @cached_property
    def _lines(self) -> dict[str, dict[int, set[str]]]:
        return {}

    def lines(self, file: str) -> dict[int, set[str]]:
        """The tests that run each line of a file; lines that no test runs, but perhaps an import, are absent."""
        from coverage import CoverageData

        if file not in self._lines:
            data = CoverageData(basename=str(self.path))
            data.read()
            contexts = data.contexts_by_lineno(f"{self.root}/{file}")
            tests = {line: {PHASE.sub("", name) for name in names} for line, names in contexts.items()}
            passed = {line: {name for name in names if name in self.seconds} for line, names in tests.items()}
            self._lines[file] = {line: names for line, names in passed.items() if names}
        return self._lines[file]
