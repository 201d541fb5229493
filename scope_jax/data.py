"""Rows of answers and questions, and which of them a step sees: a function of (seed, step), no hidden cursor."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np

Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Where the rows of a run come from: `fields` are alternatives of which every row has one."""

    path: str
    fields: tuple[str, ...]
    limit: int | None = None


class DataError(ValueError):
    """A data file that cannot be used: one sentence with file, line and remedy."""


def key_data(*parts: int | str) -> np.ndarray:
    """uint32[2] threefry key data for one request, from everything that names it.

    A hash rather than a chain of `fold_in`s: any two different tuples get unrelated keys, and no device is involved.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype="<u4").copy()


def rng(*parts: int | str) -> np.random.Generator:
    """A host generator named by `parts`, for choices that a game makes outside the model."""
    return np.random.default_rng(key_data(*parts).astype(np.uint64).tolist())


def load(source: str, required: Sequence[str], limit: int | None = None) -> list[Row]:
    """The first `limit` rows of a JSONL (also .gz) or Parquet file, or of the `train` split of a hub data set.

    Every row has one of the `required` fields. Raises FileNotFoundError for a missing file and DataError for a broken
    or empty one.
    """
    path = Path(source)
    rows: list[Any]
    if source.endswith((".jsonl", ".json", ".jsonl.gz")):
        if not path.is_file():
            raise FileNotFoundError(f"The data file {source} does not exist; check the path.")
        rows = list(_lines(path))
    elif source.endswith(".parquet"):
        if not path.is_file():
            raise FileNotFoundError(f"The data file {source} does not exist; check the path.")
        rows = list(datasets.Dataset.from_parquet(source))
    else:
        try:
            rows = list(datasets.load_dataset(source, split="train"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{source} is neither a JSONL or Parquet file nor a hub data set to be had: {error}."
            ) from None
    for number, row in enumerate(rows, 1):
        if not any(field in row for field in required):
            wanted = " or ".join(f"`{field}`" for field in required)
            raise DataError(f"Row {number} of {source} has no field {wanted}; every row needs it.")
    if not rows:
        raise DataError(f"The data file {source} is empty; give one with at least one row.")
    return rows if limit is None else rows[:limit]


def _lines(path: Path) -> Iterable[Row]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"Line {number} of {path} is not JSON ({error.msg}); mend or remove it.") from None
            if not isinstance(row, dict):
                raise DataError(f"Line {number} of {path} is not a JSON object; mend or remove it.")
            yield row


def items(rows: Sequence[Row], first: int, size: int, seed: int) -> list[Row]:
    """Rows `first` to `first + size` of an endless stream: one fresh permutation of all rows after the other."""
    chosen = []
    order, epoch_of_order = np.empty(0, np.int64), -1
    for position in range(first, first + size):
        epoch, place = divmod(position, len(rows))
        if epoch != epoch_of_order:
            order, epoch_of_order = rng("items", seed, epoch).permutation(len(rows)), epoch
        chosen.append(rows[order[place]])
    return chosen


def gold_answers(row: Row) -> list[str]:
    """Every accepted answer string of a row: `answers`, or `answer` and its `aliases`."""
    return list(row["answers"]) if "answers" in row else [row["answer"], *row.get("aliases", [])]
