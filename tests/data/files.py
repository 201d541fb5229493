"""Data files for tests, in every format that is read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest

from scope_jax.config import RowsSection
from scope_jax.data.schemas import Kind
from scope_jax.data.sources import Source

Rows = Sequence[dict[str, Any]]


def jsonl(path: Path, *rows: object) -> Path:
    """Writes a file with one line per row; text is written verbatim."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def every_format(folder: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The same rows as a file of each format and as a hub data set, by format."""
    plain = jsonl(folder / "rows.jsonl", *rows)
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (folder / "marked.jsonl").write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    datasets.Dataset.from_list(list(rows)).to_parquet(str(folder / "rows.parquet"))
    hub(monkeypatch, {("someone/rows", None, "train"): rows})
    names = {"jsonl": "rows.jsonl", "gzip": "rows.jsonl.gz", "mark": "marked.jsonl", "parquet": "rows.parquet"}
    return {name: str(folder / file) for name, file in names.items()} | {"hub": "someone/rows"}


def hub(monkeypatch: pytest.MonkeyPatch, sets: dict[tuple[str, str | None, str], Rows]) -> None:
    """A hub that has only these (name, configuration, split) data sets."""

    def load_dataset(name: str, config: str | None, *, split: str, trust_remote_code: bool) -> datasets.Dataset:
        assert not trust_remote_code
        if (name, config, split) not in sets:
            raise ValueError(f"no {split!r} of {config!r} in {name}")
        return datasets.Dataset.from_list(list(sets[name, config, split]))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def source(path: object, kind: Kind, **card: Any) -> Source:
    return Source(str(path), kind, RowsSection(**card))
