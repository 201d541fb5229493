"""Markdown tables of the results of cards × seeds, and how they are inserted into a document."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.seeds.figures import Ends
from benchmarks.seeds.statistics import Estimate, estimate, paired, verdict
from scope_jax.errors import UserError, writing


@dataclass(frozen=True)
class Row:
    """One card: the results of its runs in one metric, by seed."""

    name: str
    runs: Mapping[int, Ends]

    @property
    def before(self) -> dict[int, float]:
        return {seed: before for seed, (before, _) in self.runs.items() if before is not None}

    @property
    def after(self) -> dict[int, float]:
        return {seed: after for seed, (_, after) in self.runs.items() if after is not None}


def shown(number: Estimate | None, sign: bool = False) -> str:
    """ "0.432 ± 0.011": three decimals, one for values of 10 or more; a dash for None."""
    if number is None:
        return "–"
    digits = 1 if abs(number.mean) >= 10 else 3
    mean = f"{number.mean:{'+' if sign else ''}.{digits}f}"
    return mean if number.error is None else f"{mean} ± {number.error:.{digits}f}"


def cells(rows: Sequence[Row], baseline: str | None) -> dict[str, dict[str, Any]]:
    """What a table shows of each card, by column. baseline: the card that the others are compared with, paired by
    seed; it comes first."""
    base = next((row for row in rows if row.name == baseline), None)
    shown_of: dict[str, dict[str, Any]] = {}
    for row in rows:
        columns: dict[str, Any] = {
            "seeds": len(row.after),
            "before": shown(estimate(row.before.values())),
            "after": shown(estimate(row.after.values())),
            "gain": shown(paired(row.after, row.before), sign=True),
        }
        if base:
            difference = None if row is base else paired(row.after, base.after)
            columns["difference"] = shown(difference, sign=True)
            columns["verdict"] = verdict(difference) if difference else "–"
        shown_of[row.name] = columns
    return shown_of


def table(metric: str, cards: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table of what `cells` gives, one row per card."""
    baseline, first = next(iter(cards.items()))
    heads = ["card", "seeds", "before", "after", "gain"]
    heads += [f"after, against `{baseline}`", ""] if "difference" in first else []
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join([f"`{name}`", *map(str, columns.values())]) + " |" for name, columns in cards.items()]
    return f"`{metric}`\n\n" + "\n".join(lines)


def record(
    command: str,
    metrics: Mapping[str, Sequence[Row]],
    baseline: str | None,
    commits: Iterable[str],
    left_out: Sequence[str],
) -> dict[str, Any]:
    """A file of benchmarks/results: the command, one table per metric, the code, and which runs are missing."""
    return {
        "command": command,
        "code": sorted(set(commits)),
        "left_out": list(left_out),
        "tables": {metric: cells(rows, baseline) for metric, rows in metrics.items()},
    }


def page(results: Mapping[str, Any]) -> str:
    """A record in Markdown. docs/results.md explains the words."""
    notes = [
        f"Code: {', '.join(results['code'])}." if results["code"] else "",
        f"Not in the tables: {'; '.join(results['left_out'])}." if results["left_out"] else "",
    ]
    tables = [table(metric, cards) for metric, cards in results["tables"].items()]
    return "\n\n".join([f"```\n{results['command']}\n```", *tables, " ".join(note for note in notes if note)])


def place(document: Path, name: str, text: str) -> None:
    """Replaces the text between the document's lines `<!-- seeds: NAME -->` and `<!-- end -->`.

    Raises UserError if the document lacks them.
    """
    begin, end = f"<!-- seeds: {name} -->\n", "<!-- end -->"
    whole = document.read_text(encoding="utf-8") if document.is_file() else ""
    head, opened, rest = whole.partition(begin)
    _, closed, tail = rest.partition(end)
    if not opened or not closed:
        raise UserError(
            f"{document} has no place for the table {name!r}; write the lines {begin.strip()} and {end} there."
        )
    partial = document.with_name(document.name + ".partial")
    with writing(document):
        partial.write_text(f"{head}{begin}\n{text}\n\n{end}{tail}", encoding="utf-8")
    os.replace(partial, document)
