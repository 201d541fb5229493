"""A small synthetic corpus on several subjects, and settings for clustering it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scope_jax.retrieval.clusters.kmeans import Sizes
from scope_jax.retrieval.clusters.settings import ClusterCorpus, CorpusSource, Filters, Preparation, Questions

WORDS = {
    "rivers": "river valley delta spring lake bridge water flood ferry basin stream bank",
    "music": "song choir opera violin concert chord melody drum piano singer tune stage",
    "cooking": "soup oven flour butter onion recipe kitchen spoon salt pepper bread cake",
    "stars": "planet orbit comet galaxy telescope moon light sun eclipse dust crater ring",
}
SUBJECTS = {subject: words.split() for subject, words in WORDS.items()}
FILTERS = Filters(
    min_characters=100,
    max_characters=1000,
    min_quality=0.5,
    prose=False,
    similarity=0.8,
    permutations=64,
    shingle=3,
    phrase=8,
    shortest_phrase=5,
)
SIZES = Sizes(mean=6, least=3, most=12, branching=8)
QUESTION = "Which old bridge crosses the valley north of the lake?"


def sentence(subject: str, number: int) -> str:
    """36 words about a subject; no two texts are near-duplicates."""
    rng = np.random.default_rng([list(SUBJECTS).index(subject), number])
    return " ".join(f"the {word} {subject}-{number}" for word in rng.choice(SUBJECTS[subject], 9))


def documents(each: int, first: int = 0) -> list[dict[str, Any]]:
    """`each` documents of every subject, the subjects taking turns."""
    return [
        {"id": f"{subject}-{number}", "title": f"{subject} {number}", "text": sentence(subject, number)}
        for number in range(first, first + each)
        for subject in SUBJECTS
    ]


def write(path: Path, rows: list[Any]) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def question_of(row: Mapping[str, Any], where: str, columns: Mapping[str, str]) -> list[str]:
    return [row["question"]]


def contexts_of(row: Mapping[str, Any], where: str, columns: Mapping[str, str]) -> list[str]:
    return row.get("context", [])


def corpus(path: str, families: tuple[str, ...] = ("qa", "choice"), **columns: str) -> ClusterCorpus:
    return ClusterCorpus(path, columns, None, None, families)


def wanted(
    *corpora: ClusterCorpus, documents: str | None = None, questions: str | None = None, **changes: Any
) -> Preparation:
    asked: dict[str, Any] = {
        "corpora": corpora,
        "held_out_documents": (CorpusSource(documents, {}, None, None),) if documents else (),
        "held_out_questions": (Questions(questions, {}, None, None, question_of, contexts_of),) if questions else (),
        "filters": FILTERS,
        "encoder": 128,
        "sizes": SIZES,
        "per_family": None,
        "seed": 0,
    }
    return Preparation(**asked | changes)


def quiet(name: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "clusters.jsonl").read_text(encoding="utf-8").splitlines()]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


Tell = Callable[[str, int, int], None]
