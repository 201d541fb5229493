"""A plugin of pytest: coverage.py is told which test runs, and each test's seconds and outcome are written down."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

VARIABLE = "SCOPE_JAX_TEST_SECONDS"  # the file of seconds and outcomes, one JSON line for each test
_seconds: dict[str, float] = {}
_outcomes: dict[str, str] = {}
_files: list[str] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Lines that run from here on belong to this test, and traces of the file before are forgotten."""
    from coverage import Coverage

    file = item.nodeid.partition("::")[0]
    if _files[-1:] != [file]:
        _files.append(file)
        if "jax" in sys.modules:
            sys.modules["jax"].clear_caches()
    running = Coverage.current()
    assert running is not None, "coverage.py has not started: is it installed in this environment?"
    running.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        running.switch_context("")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker saves what it has counted, as it may end without its exit handlers."""
    from coverage import Coverage

    running = Coverage.current()
    if hasattr(session.config, "workerinput") and running is not None:
        running.stop()
        running.save()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The process that hears of all tests writes a line when one is over."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed" or report.nodeid not in _outcomes:
        _outcomes[report.nodeid] = report.outcome
    if report.when == "teardown":
        row = {"test": report.nodeid, "seconds": round(_seconds[report.nodeid], 3), "outcome": _outcomes[report.nodeid]}
        with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
