"""The table of attacks, tries and outcomes: a JSON file, which tools/site.py shows as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class Tried(NamedTuple):
    """What a row found."""

    tries: int
    """How often the attack was made."""
    outcome: str
    """What came of it, in words."""


def rows(file: Path) -> dict[str, Tried]:
    """What was found, by attack; {} without the file."""
    table = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {attack: Tried(row["tries"], row["outcome"]) for attack, row in table.items()}


def put(file: Path, attack: str, tried: Tried) -> None:
    """Writes one row: in place of the one of that name, or at the end."""
    table = {name: row._asdict() for name, row in (rows(file) | {attack: tried}).items()}
    new = file.with_name(file.name + ".partial")
    new.write_text(json.dumps(table, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    new.replace(file)
