"""A foreign package with the name of one of ours gives a clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def start(*path: Path) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join(str(place) for place in path)
    command = [sys.executable, "-P", "-c", "import scope_jax; print(scope_jax.__file__)"]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": places}, capture_output=True, text=True, check=False)


def test_our_own_packages_are_accepted() -> None:
    done = start(ROOT)
    assert done.returncode == 0
    assert done.stdout.strip() == str(ROOT / "scope_jax" / "__init__.py")


@pytest.mark.parametrize("room", ["models", "rollouts", "retrieval", "sharding"])
def test_a_foreign_package_is_named(tmp_path: Path, room: str) -> None:
    (tmp_path / room).mkdir()
    (tmp_path / room / "__init__.py").write_text("")
    done = start(tmp_path, ROOT)
    assert done.returncode == 1
    assert (
        f"ImportError: `import {room}` finds {tmp_path / room}, a package that is not part of scope-jax" in done.stderr
    )


def test_a_foreign_module_is_named(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("")
    assert f"`import models` finds {tmp_path / 'models.py'}" in start(tmp_path, ROOT).stderr
