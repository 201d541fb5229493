"""How a hostile file is described: the folder it is in, what is changed there, and how the folder is opened."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

BASE = Path("assets/atlas/ssp/base")
Change = Callable[[Path], Any]
CASES: dict[str, tuple[str, Change]] = {}  # name -> (how the folder is opened, what is changed in it)


def case(name: str, door: str, change: Change) -> None:
    assert name not in CASES
    CASES[name] = (door, change)


def edit(file: str, **fields: Any) -> Change:
    """Sets fields of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | fields))

    return change


def text(file: str, contents: str) -> Change:
    return lambda folder: (folder / file).write_text(contents)


def pipe(file: str) -> Change:
    def change(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return change
