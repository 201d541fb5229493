"""Reading: questions whose answer stands in a passage, as rows of `rlvr` (prompt, answers) and of `sft` (completion).

    python -m benchmarks.real_model.rows DATA FOLDER --model MODEL

DATA has corpus/passages.jsonl and qa/*.jsonl, whose rows name their passages (`evidence_ids`). FOLDER gets
train.jsonl, development.jsonl and exam.jsonl. A row's part is decided by the SHA-256 of the smallest id among the rows
of its question, so that equal questions are in one part; `--model` names the tokenizer by which long prompts are left
out. Prints the rows of each set and part, and a checksum of the exam's ids.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.data.published import reading_prompt
from scope_jax.grading.rewards import normalise
from scope_jax.models.tokenizers.tokenizer import Tokenizer

SETS = ("nq", "squad_xquad_en", "popqa", "hotpotqa", "hotpotqa_train")
WRITTEN = ("id", "set", "prompt", "completion", "answers")  # no `question`, which an exam would ask by itself
LONGEST = 384  # tokens of a prompt
PARTS = {"exam": 0.32, "development": 0.38, "train": 1.0}  # a row is in the first part whose bound its share is below

Row = Mapping[str, Any]


def main() -> None:
    """Writes the files and prints what is in them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    rows = reading_rows(arguments.data, Tokenizer.load(arguments.model))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    parts = divided(rows)
    for part, those in parts.items():
        lines = [json.dumps({key: row[key] for key in WRITTEN}, ensure_ascii=False) + "\n" for row in those]
        (arguments.folder / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
    print(summary(parts))


def reading_rows(data: Path, tokenizer: Tokenizer) -> list[Row]:
    """The rows of all sets whose answer stands in a passage that the set itself names as evidence."""
    passages = {row["id"]: row for row in read(data / "corpus" / "passages.jsonl")}
    rows = []
    for name in SETS:
        for row in read(data / "qa" / f"{name}.jsonl"):
            answer, shown = evidence(row, passages)
            if answer is not None:
                prompt = reading_prompt(shown, row["question"])
                if len(tokenizer.encode_chat([{"role": "user", "content": prompt}])) <= LONGEST:
                    known = {"id": row["id"], "set": name, "question": row["question"]}
                    rows.append({**known, "prompt": prompt, "completion": answer, "answers": row["answers"]})
    return rows


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


def divided(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by part, in the order of their hashes."""
    by_question: dict[str, list[Row]] = {}
    for row in rows:
        by_question.setdefault(normalise(row["question"]), []).append(row)
    parts: dict[str, list[Row]] = {part: [] for part in PARTS}
    for those in sorted(by_question.values(), key=share):
        part = next(part for part, bound in PARTS.items() if share(those) < bound)
        parts[part] += those
    return parts


def share(rows: Sequence[Row]) -> float:
    """Between 0 and 1, of the rows of one question."""
    first = min(row["id"] for row in rows)
    return int.from_bytes(hashlib.sha256(first.encode()).digest()[:8], "big") / 2**64


def summary(parts: Mapping[str, Sequence[Row]]) -> str:
    """Rows by set and part, and a checksum of the exam's ids."""
    lines = []
    for part, rows in parts.items():
        counts = Counter(row["set"] for row in rows)
        lines.append(f"{part}: {len(rows)} rows; " + ", ".join(f"{counts[name]} {name}" for name in SETS))
    ids = "\n".join(sorted(row["id"] for row in parts["exam"]))
    return "\n".join([*lines, f"exam ids: sha256 {hashlib.sha256(ids.encode()).hexdigest()}"])


if __name__ == "__main__":
    main()
