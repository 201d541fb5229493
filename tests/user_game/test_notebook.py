"""The notebook for a free GPU, executed cell by cell on a CPU in the small size that it then has."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"


def python(source: str) -> str:
    """A cell as plain Python: a line "!COMMAND", perhaps continued, runs a command with the values of {NAMES}."""
    joined = re.sub(r"\\\n\s*", "", source)
    return re.sub(r"^(\s*)!(.*)$", lambda found: f"{found[1]}shell(f{found[2]!r})", joined, flags=re.MULTILINE)


def test_a_cell_as_python() -> None:
    """As IPython reads it."""
    assert python('if A:\n    !pip -q "{A}"\n!b \\\n   --c\nx = 1') == (
        "if A:\n    shell(f'pip -q \"{A}\"')\nshell(f'b --c')\nx = 1"
    )


def test_the_notebook_is_one() -> None:
    """Format 4.5: every cell has an id of its own and text; nothing that it printed is kept."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert all(cell["source"] for cell in cells)
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    program = tmp_path / "scope-jax"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m scope_jax "$@"\n')
    program.chmod(0o755)
    variables = os.environ | {
        "DEVICE": "cpu",
        "SOURCE": "",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    script = [
        "import subprocess",
        "def shell(command):",
        "    subprocess.run(command, shell=True, check=True)",
        *(python("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / "first" / "report" / "index.html").is_file()
    assert (tmp_path / "exported" / "adapter_config.json").is_file()
