"""The table of faults and outcomes in a Markdown file, between two comments."""

from __future__ import annotations

from pathlib import Path

BEGIN, END = "<!-- python -m tests.torture writes this table -->", "<!-- end -->"
HEAD = "| fault | outcome |\n|---|---|"


def rows(text: str) -> dict[str, str]:
    """Outcome by fault. Raises ValueError for a file without the two comments."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"the file has no table between {BEGIN} and {END}; add the two lines.")
    inside = text.split(BEGIN)[1].split(END)[0]
    return dict(line.strip("| ").split(" | ") for line in inside.strip().splitlines()[2:])


def put(file: Path, fault: str, outcome: str) -> None:
    """Writes one row: in place of the one of that name, or at the end."""
    text = file.read_text(encoding="utf-8")
    found = rows(text) | {fault: outcome}
    lines = "\n".join(f"| {name} | {said} |" for name, said in found.items())
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    new = file.with_name(file.name + ".partial")
    new.write_text(f"{before}{BEGIN}\n\n{HEAD}\n{lines}\n\n{END}{after}", encoding="utf-8")
    new.replace(file)
