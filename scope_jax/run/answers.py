"""The file with the measures of every question of evaluation sets during training: <run>/exams.jsonl.gz.

    {"step": 20, "set": "held_out", "question": 3, "of": "5f1d08c2", "measures": {"accuracy": 0.5, "searches": 1.5}}

One line per question of an evaluation; a measure is averaged over the question's answers. `question` is the index, from
0, in the set and `of` a checksum of its text, so that two runs can be compared question by question. See `records` for
the file format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.play.rewards import mean
from scope_jax.run.records import COUNT, MEASURES, TEXT, append_step, read_steps

__all__ = ["NAME", "append", "by_question", "last", "read"]

NAME = "exams.jsonl.gz"
FIELDS = {"set": TEXT, "question": COUNT, "of": TEXT, "measures": MEASURES}
Questions = dict[tuple[int, str], dict[str, float]]  # measures by (index, checksum)


def append(path: Path, step: int, exams: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Adds the records of an evaluation, by name of the set; returns when they are on disk."""
    lines = [
        {"step": step, "set": name, "question": place, "of": about, "measures": measures}
        for name, records in exams.items()
        for (place, about), measures in by_question(records).items()
    ]
    append_step(path, lines)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines in order; see `records.read_steps`."""
    return read_steps(path, FIELDS)


def by_question(records: Iterable[Mapping[str, Any]]) -> Questions:
    """The measures of every question, each averaged over the answers that have it.

    records: "question", "sample" (0 begins a question) and "measures" of every answer, in order.
    """
    questions: list[list[Mapping[str, Any]]] = []
    for record in records:
        if not record.get("sample"):
            questions.append([])
        questions[-1].append(record)
    return {(place, _about(answers[0])): _means(answers) for place, answers in enumerate(questions)}


def _about(answer: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(str(answer.get('question', '')).encode()):08x}"


def _means(answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = dict.fromkeys(name for answer in answers for name in answer["measures"])
    return {name: mean([a["measures"][name] for a in answers if name in a["measures"]]) for name in names}


def last(path: Path) -> dict[str, Questions]:
    """The measures of every question in the last evaluation, by name of the set; {} if there is no file."""
    step, by_set = -1, {}
    for line in read(path):
        if line["step"] > step:
            step, by_set = line["step"], {}
        by_set.setdefault(line["set"], {})[line["question"], line["of"]] = line["measures"]
    return by_set
