"""The answers that `scope-jax eval` got from checkpoints of a run: <run>/evaluations.jsonl.gz.

    {"step": 40, "set": "held_out", "taken": "2026-01-31T12:00:00+00:00", "metrics": {"accuracy": 0.5, …}}
    {"step": 40, "set": "held_out", "taken": "2026-01-31T12:00:00+00:00", "place": 0, "record": {"question": …}}

A set that was answered is one gzip member: a line with its metrics, then one per answer (see `ExamSet.records`);
`place` is the index of the question, from 0. A set may be answered again: the newest answers of a step count. See
`run.files` for the file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scope_jax.errors import writing
from scope_jax.run.files import EVALUATIONS, LineWriter, read_records
from scope_jax.run.processes import writes
from scope_jax.run.records import Questions, by_question

Line = dict[str, Any]


def keep(
    run: Path | None, step: int | None, name: str, records: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]
) -> None:
    """Adds the answers to a set; returns when they are on disk. metrics: `eval/<set>/<measure>`.

    Does nothing for weights that are not a run's (run or step None) and for a run that this user may not write to.
    """
    if run is None or step is None or not writes() or not os.access(run, os.W_OK):
        return
    head = {"step": step, "set": name, "taken": datetime.now(UTC).isoformat(timespec="microseconds")}
    lines: list[Line] = [
        head | {"metrics": {key.removeprefix(f"eval/{name}/"): value for key, value in metrics.items()}}
    ]
    place = -1
    for record in records:
        place += not record.get("sample")
        lines.append(head | {"place": place, "record": record})
    path = run / EVALUATIONS
    with writing(path), path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another `eval` of this run may be writing
        LineWriter(path).add(lines)


def newest(run: Path) -> Iterator[Line]:
    """The lines of the newest answers to each set at each step, in the order of the file; none if there is no file."""
    last = {(line["step"], line["set"]): line["taken"] for line in read_records(run / EVALUATIONS)}
    yield from (line for line in read_records(run / EVALUATIONS) if last[line["step"], line["set"]] == line["taken"])


@dataclass(frozen=True)
class LastEvaluation:
    """What was last measured of a set."""

    step: int
    """Of the weights."""
    metrics: Mapping[str, float]
    """By name, without the set's."""
    questions: Questions
    """The measures of its questions."""


def last(run: Path) -> dict[str, LastEvaluation]:
    """What `scope-jax eval` last measured, by name of the set; {} if nothing was answered."""
    heads: dict[str, Line] = {}
    records: dict[str, list[Line]] = {}
    for line in newest(run):
        if line["step"] < heads.get(line["set"], line)["step"]:
            continue
        if "metrics" in line:
            heads[line["set"]], records[line["set"]] = line, []
        else:
            kept = {name: line["record"].get(name) for name in ("question", "sample", "measures")}
            records[line["set"]].append(kept)  # without the text, which may be long
    return {
        name: LastEvaluation(head["step"], head["metrics"], by_question(records[name])) for name, head in heads.items()
    }
