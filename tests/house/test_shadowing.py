"""Packages of other people called models, rollouts, retrieval or sharding are no concern of scope-jax."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_folder_with_packages_of_the_same_names_changes_nothing(tmp_path: Path) -> None:
    for name in ("models", "rollouts", "retrieval", "sharding"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')")
    program = "import scope_jax.cli, scope_jax.train, scope_jax.rollouts.engine as engine; print(engine.__file__)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(ROOT / "scope_jax" / "rollouts" / "engine.py"), done.stderr
