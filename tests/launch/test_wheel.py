"""What a wheel holds, and that it works from any folder without the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".toml", ".ipynb")}


def test_examples_that_pages_name_are_there() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    named = {name for text in texts for name in re.findall(r"examples/([\w.]+\.(?:py|toml|ipynb))", text)}
    assert len(named) > 8 and named <= EXAMPLES


@pytest.mark.slow
def test_a_wheel_holds_the_examples_and_finds_them_from_any_folder(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    assert {path.name for path in (tmp_path / "site" / "scope_jax" / "examples").iterdir()} >= EXAMPLES
    away = tmp_path / "away"
    away.mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    words = [sys.executable, "-m", "scope_jax", "check", "examples/guess.toml"]
    done = subprocess.run(words, cwd=away, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        f"ok     game: {tmp_path / 'site' / 'scope_jax' / 'examples' / 'guess.py'}, which trains actor" in done.stdout
    )
