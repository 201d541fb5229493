"""Results: one JSON line for each mutant, appended, so that a run which was stopped goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tools.mutants.source import Mutant

OUTCOMES = ("killed", "timeout", "survived", "budget", "uncovered", "gone")


@dataclass(frozen=True)
class Result:
    """What tests said about a mutant."""

    mutant: Mutant
    """The mutant."""
    outcome: str
    """killed: by a failing test or a crash; timeout: by a test that did not end; survived: all tests that run its line;
    budget: survived those within the budget; uncovered: no test was seen to run its line; gone: no such code."""
    by: str
    """The test that killed it; "" if none did."""
    tests: int
    """How many tests were chosen."""
    seconds: float
    """Wall-clock seconds of the last look."""

    @property
    def is_killed(self) -> bool:
        """A test noticed it."""
        return self.outcome in ("killed", "timeout")


def mutant_of(row: dict[str, Any]) -> Mutant:
    """The mutant of a line, which may have further keys."""
    return Mutant(**{field.name: row[field.name] for field in fields(Mutant)})


def read_mutants(path: Path) -> list[Mutant]:
    """The mutants of a file of mutants or results."""
    return [mutant_of(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def write_mutants(path: Path, mutants: Iterable[Mutant]) -> None:
    """Writes a file of mutants."""
    path.write_text("".join(_line(mutant.row()) for mutant in mutants), encoding="utf-8")


def read_results(path: Path) -> list[Result]:
    """The results of a file, the last one of each mutant; none if there is no such file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    results = [Result(mutant_of(row), row["outcome"], row["by"], row["tests"], row["seconds"]) for row in rows]
    return list({result.mutant: result for result in results}.values())


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Writes a file of results."""
    path.write_text("".join(map(_result_line, results)), encoding="utf-8")


def append(path: Path, result: Result) -> None:
    """Adds a line; lines of several processes do not mix."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_result_line(result))


def _result_line(result: Result) -> str:
    row = asdict(result)
    return _line(row.pop("mutant") | row)


def table(results: Sequence[Result]) -> str:
    """Numbers of outcomes by layer, as text."""
    layers = sorted({result.mutant.layer for result in results})
    counts = {name: Counter(result.outcome for result in results if result.mutant.layer == name) for name in layers}
    counts["all"] = Counter(result.outcome for result in results)
    lines = [f"{'layer':14}{'drawn':>10}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES)]
    for name, count in counts.items():
        numbers = "".join(f"{count[outcome]:10}" for outcome in OUTCOMES)
        lines.append(f"{name:14}{count.total():10}{numbers}")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
