"""Tables of a paper with our results beside the paper's own figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from scope_jax.config.suites import Figures, Heading, SuiteCard

METRICS = {"rubric": "score"}  # measures whose metric has another name


class Figure(TypedDict):
    """In per cent. se: the standard error, None of a single question."""

    mean: float
    se: float | None


Cell = Figure | None  # None: not measured


def metric_of(suite: SuiteCard) -> str:
    """The metric of a suite's first measure."""
    return METRICS.get(suite.measures[0], suite.measures[0])


def tables(figures: Figures, suites: Sequence[SuiteCard], metrics: Mapping[str, float]) -> list[dict[str, Any]]:
    """Each table as {"name", "about", "columns", "rows": {model: figures}, "ours": cells}, all in per cent.

    metrics: `eval/<exam>/<metric>` and its `_se`. A column of several exams is their mean; the last one, the mean of
    the others, is there only if none of them is missing.
    """
    first = {suite.name: metric_of(suite) for suite in suites}
    found = []
    for table in figures.tables:
        ours = [_cell(heading, first, metrics) for heading in table.columns]
        if table.mean is not None:
            ours.append(_mean(ours))
        titles = [heading.title for heading in table.columns] + ([] if table.mean is None else [table.mean])
        rows = {name: list(row) for name, row in table.rows.items()}
        found.append({"name": table.name, "about": table.about, "columns": titles, "rows": rows, "ours": ours})
    return found


def _cell(heading: Heading, first: Mapping[str, str], metrics: Mapping[str, float]) -> Cell:
    cells = []
    for exam in heading.exams:
        name = f"eval/{exam}/{heading.measure or first.get(exam)}"
        if name not in metrics:
            return None
        error = metrics.get(f"{name}_se")
        cells.append({"mean": 100 * metrics[name], "se": None if error is None else 100 * error})
    return _mean(cells)


def _mean(cells: Sequence[Cell]) -> Cell:
    """The mean of independent results and its standard error; None if there is none, or one of them is missing."""
    present = [cell for cell in cells if cell is not None]
    if not present or len(present) < len(cells):
        return None
    errors = [cell["se"] for cell in present]
    known = [error for error in errors if error is not None]
    error = math.sqrt(sum(error**2 for error in known)) / len(present) if len(known) == len(errors) else None
    return {"mean": sum(cell["mean"] for cell in present) / len(present), "se": error}


def lines(table: Mapping[str, Any], who: str) -> list[str]:
    """The table as text: the paper's rows, then ours under the name `who`, as mean ± standard error."""
    body = [[name, *(f"{value:g}" for value in row)] for name, row in table["rows"].items()]
    body.append([who, *map(shown, table["ours"])])
    head = ["", *table["columns"]]
    widths = [max(len(row[place]) for row in [head, *body]) for place in range(len(head))]
    text = [f"{table['name']}: {table['about']}"]
    for row in [head, *body]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        text.append("  ".join(cells).rstrip())
    return text


def shown(cell: Cell) -> str:
    """A result in per cent; – if it was not measured."""
    if cell is None:
        return "–"
    return f"{cell['mean']:.1f}" + ("" if cell["se"] is None else f" ± {cell['se']:.1f}")
