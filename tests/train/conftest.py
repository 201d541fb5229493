"""A run from start to end, for the tests of a file that compare others with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train import runs


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run by the `command` of the test's file."""
    run = tmp_path_factory.mktemp("whole") / "run"
    runs.finish(request.module.command(run))
    return run
