"""The rows of the real model's tasks, divided into train.jsonl, development.jsonl and exam.jsonl.

    python -m benchmarks.real_model.rows reading DATA FOLDER --model MODEL
    python -m benchmarks.real_model.rows search DATA FOLDER

reading: questions whose answer stands in a passage, as rows of `rlvr` (prompt, answers) and of `sft` (completion);
`--model` names the tokenizer by which long prompts are left out. search: questions with answers, whose training part
gives SSP its answers and demonstrations; only NQ and HotpotQA are examined.

DATA has corpus/passages.jsonl and qa/*.jsonl, whose rows name their passages (`evidence_ids`). A row's part is decided
by the SHA-256 of the smallest id among the rows of its question, so that equal questions are in one part. Prints the
rows of each set and part, and a checksum of the exam's ids.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_jax.data.published import reading_prompt
from scope_jax.grading.rewards import normalise
from scope_jax.models.tokenizers.tokenizer import Tokenizer

LONGEST = 384  # tokens of a reading prompt
NOTHING_TO_FIND = {
    "yes",
    "no",
}  # answers of comparisons in HotpotQA and 2Wiki: no passage holds them, none is asked for


@dataclass(frozen=True)
class Task:
    """Which rows a task has, and how they are divided."""

    sets: tuple[str, ...]
    """Names of the files in qa/."""
    bounds: Mapping[str, float]
    """A question is in the first part whose bound its share is below."""
    examined: tuple[str, ...]
    """Questions that are in none of these sets are trained on, whatever their share."""
    fields: tuple[str, ...]
    """What is written of a row."""


READ = ("nq", "squad_xquad_en", "popqa", "hotpotqa", "hotpotqa_train")
SEARCHED = (*READ, "2wikimultihopqa", "musique", "musique_train")
TASKS = {
    # no `question`, which an exam would ask by itself
    "reading": Task(
        READ, {"exam": 0.32, "development": 0.38, "train": 1.0}, READ, ("id", "set", "prompt", "completion", "answers")
    ),
    "search": Task(
        SEARCHED,
        {"exam": 0.5, "development": 0.56, "train": 1.0},
        ("nq", "hotpotqa", "hotpotqa_train"),
        ("id", "set", "question", "answers"),
    ),
}

Row = Mapping[str, Any]


def main() -> None:
    """Writes the files and prints what is in them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    task = TASKS[arguments.task]
    rows = rows_of(arguments.data, task.sets)
    if arguments.task == "reading":
        rows = reading_rows(rows, arguments.data, Tokenizer.load(arguments.model))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    parts = divided(rows, task)
    for part, those in parts.items():
        lines = [json.dumps({key: row[key] for key in task.fields}, ensure_ascii=False) + "\n" for row in those]
        (arguments.folder / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
    print(summary(parts, task.sets))


def rows_of(data: Path, sets: Sequence[str]) -> list[Row]:
    """The rows of the sets, each with its set's name."""
    return [{**row, "set": name} for name in sets for row in read(data / "qa" / f"{name}.jsonl")]


def reading_rows(rows: Iterable[Row], data: Path, tokenizer: Tokenizer) -> list[Row]:
    """The rows whose answer stands in a passage that the set itself names as evidence, with prompt and completion."""
    passages = {row["id"]: row for row in read(data / "corpus" / "passages.jsonl")}
    kept = []
    for row in rows:
        answer, shown = evidence(row, passages)
        if answer is not None:
            prompt = reading_prompt(shown, row["question"])
            if len(tokenizer.encode_chat([{"role": "user", "content": prompt}])) <= LONGEST:
                kept.append({**row, "prompt": prompt, "completion": answer})
    return kept


def read(path: Path) -> list[Row]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def evidence(row: Row, passages: Mapping[str, Row]) -> tuple[str | None, str]:
    """(the first answer that stands in a passage, the passages as text); None if no answer does. Of HotpotQA all
    passages are shown, of the others the one that has the answer."""
    if row.get("evidence_kind") != "gold":
        return None, ""
    given = [passages[key] for key in row["evidence_ids"] if key in passages]
    for answer in row["answers"]:
        holding = [passage for passage in given if holds(passage["text"], answer)]
        if holding:
            shown = given if "hotpot" in row["source"] else holding[:1]
            return answer, "\n\n".join(f"{passage['title']}\n{passage['text']}" for passage in shown)
    return None, ""


def holds(text: str, answer: str) -> bool:
    """Whether the words of an answer follow each other in a text."""
    words = normalise(answer)
    return bool(words) and f" {words} " in f" {normalise(text)} "


def divided(rows: Iterable[Row], task: Task) -> dict[str, list[Row]]:
    """The rows by part, in the order of their hashes."""
    by_question: dict[str, list[Row]] = {}
    for row in rows:
        by_question.setdefault(normalise(row["question"]), []).append(row)
    parts: dict[str, list[Row]] = {part: [] for part in task.bounds}
    for those in sorted(by_question.values(), key=share):
        examined = any(row["set"] in task.examined for row in those)
        part = next(part for part, bound in task.bounds.items() if share(those) < bound) if examined else "train"
        parts[part] += those if part != "train" else [row for row in those if not NOTHING_TO_FIND & {*row["answers"]}]
    return parts


def share(rows: Sequence[Row]) -> float:
    """Between 0 and 1, of the rows of one question."""
    first = min(row["id"] for row in rows)
    return int.from_bytes(hashlib.sha256(first.encode()).digest()[:8], "big") / 2**64


def summary(parts: Mapping[str, Sequence[Row]], sets: Sequence[str]) -> str:
    """Rows by set and part, and a checksum of the exam's ids."""
    lines = []
    for part, rows in parts.items():
        counts = Counter(row["set"] for row in rows)
        lines.append(f"{part}: {len(rows)} rows; " + ", ".join(f"{counts[name]} {name}" for name in sets))
    ids = "\n".join(sorted(row["id"] for row in parts["exam"]))
    return "\n".join([*lines, f"exam ids: sha256 {hashlib.sha256(ids.encode()).hexdigest()}"])


if __name__ == "__main__":
    main()
