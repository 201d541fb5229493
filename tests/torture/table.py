"""The table of attacks, tries and outcomes in a Markdown file, between two comments."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

BEGIN, END = "<!-- python -m tests.torture writes this table -->", "<!-- end -->"
HEAD = "| attack | tries | outcome |\n|---|---|---|"


class Tried(NamedTuple):
    """What a row found."""

    tries: int
    """How often the attack was made."""
    outcome: str
    """What came of it, in words."""


def rows(text: str) -> dict[str, Tried]:
    """What was found, by attack. Raises ValueError for a file without the two comments."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"the file has no table between {BEGIN} and {END}; add the two lines.")
    cells = [line.strip("| ").split(" | ") for line in text.split(BEGIN)[1].split(END)[0].strip().splitlines()[2:]]
    return {name: Tried(int(tries.replace(",", "")), outcome) for name, tries, outcome in cells}


def put(file: Path, attack: str, tried: Tried) -> None:
    """Writes one row: in place of the one of that name, or at the end."""
    text = file.read_text(encoding="utf-8")
    found = rows(text) | {attack: tried}
    lines = "\n".join(f"| {name} | {tries:,} | {said} |" for name, (tries, said) in found.items())
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    new = file.with_name(file.name + ".partial")
    new.write_text(f"{before}{BEGIN}\n\n{HEAD}\n{lines}\n\n{END}{after}", encoding="utf-8")
    new.replace(file)
