"""The passages to search, read through `datasets`: memory-mapped Arrow, so that a corpus need not fit in memory.

A passage has an id, a title and a text. Files in Search-R1's format instead have one field `contents`: its first line
is the title (in double quotes in the wiki-18 dump), the rest is the text; one line alone is text.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from scope_jax.data.rows import (
    DataError,
    Row,
    check_columns,
    hub_table,
    is_file,
    optional,
    read,
    required,
    short,
    text_of,
)
from scope_jax.files import inside
from scope_jax.text.strict_json import kind_of

if TYPE_CHECKING:
    import datasets  # for a second, which only reading a corpus needs

STATE = "state.json"  # of a saved corpus: names its Arrow files
VERSION = 2  # of the schema; a new version invalidates all cached copies
NO_COLUMNS: Mapping[str, str] = MappingProxyType({})
READ_ROWS = 4096  # passages read at a time when iterating over the whole corpus


@dataclass(frozen=True)
class Document:
    """One passage."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title, newline, text: the input of encoders."""
        return f"{self.title}\n{self.text}"


def split_contents(contents: str) -> tuple[str, str]:
    """(title, text) of a Search-R1 `contents` field; double quotes around the title are removed.

    A passage of one line is text without a title, whether or not line breaks come before or after it.
    """
    title, _, text = contents.partition("\n")
    title = title.removesuffix("\r")
    if not title.strip() or not text.strip():
        return "", text if text.strip() else title
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text


class Corpus:
    """Passages by row number, 0 … len − 1, over an Arrow table with the columns title and text, or contents."""

    def __init__(self, table: datasets.Dataset) -> None:
        self._table = table
        self._has_id = "id" in table.column_names
        self._joined = "contents" in table.column_names

    @staticmethod
    def from_documents(documents: Iterable[Document]) -> Corpus:
        """A corpus in memory; raises DataError if there is no document."""
        rows = [{"id": d.id, "title": d.title, "text": d.text} for d in documents]
        if not rows:
            raise DataError("The corpus is empty: give at least one passage.")
        import datasets

        return Corpus(datasets.Dataset.from_list(rows))

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, row: int) -> Document:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a corpus of {len(self)} passages")
        return self._read(slice(row, row + 1))[0]

    def documents(self, start: int, stop: int) -> list[Document]:
        """The passages of rows start … stop − 1."""
        return self._read(slice(start, stop))

    def _read(self, rows: slice) -> list[Document]:
        columns = self._table[rows]
        first = range(*rows.indices(len(self)))
        ids = [str(i) for i in columns["id"]] if self._has_id else [str(row) for row in first]
        if self._joined:
            pairs = [split_contents(contents) for contents in columns["contents"]]
        else:
            pairs = list(zip(columns["title"], columns["text"], strict=True))
        return [Document(i, title, text) for i, (title, text) in zip(ids, pairs, strict=True)]

    def batches(self, size: int) -> Iterator[list[Document]]:
        """All passages in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.documents(start, min(start + size, len(self)))

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hex digits of a hash over every id, title and text, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for batch in self.batches(READ_ROWS):
            for document in batch:
                for part in (document.id, document.title, document.text):
                    data = part.encode("utf-8", "surrogatepass")
                    digest.update(len(data).to_bytes(8, "little"))
                    digest.update(data)
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Writes the table as Arrow files into a new folder."""
        self._table.save_to_disk(str(folder))

    @staticmethod
    def load(folder: Path) -> Corpus:
        """The corpus that `save` wrote; raises DataError if the folder is missing, damaged or names files elsewhere."""
        import datasets
        import pyarrow as pa

        try:
            state = json.loads((folder / STATE).read_text(encoding="utf-8"))
            for file in state["_data_files"]:
                inside(folder, file["filename"], folder / STATE)
            table = datasets.load_from_disk(str(folder))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
            raise DataError(f"The saved corpus in {folder} cannot be read ({short(error)}).") from error
        if not isinstance(table, datasets.Dataset):
            raise DataError(f"The saved corpus in {folder} is not one table of passages.")
        return Corpus(table)


DOCUMENT = {
    "id": ("id", "_id"),
    "title": ("title",),
    "text": ("contents", "text"),
}  # fields and their known column names


def load_corpus(
    source: str | Path,
    columns: Mapping[str, str] = NO_COLUMNS,
    split: str | None = None,
    hub_config: str | None = None,
) -> Corpus:
    """The corpus of a JSONL file (also .gz), a Parquet file, or one split of a data set on the hub.

    Fields: `text` and optionally `title`, or `contents`; `id` defaults to the row number; others are ignored. columns:
    other column names for them, see `rows.optional`. Raises FileNotFoundError for a missing file and DataError for one
    that is invalid (naming the line or row) or empty.

    Every row is checked while `datasets` writes its Arrow copy; unchanged data are not read twice.
    """
    import datasets
    from datasets.exceptions import DatasetGenerationError

    name = str(source)
    check_columns(name, columns, DOCUMENT)
    # these arguments form the cache key of the copy
    arguments = {
        "version": VERSION,
        "source": name,
        "state": _state_of(name, split, hub_config),
        "columns": dict(columns),
        "split": split,
        "hub_config": hub_config,
    }
    features = datasets.Features({column: datasets.Value("string") for column in ("id", "title", "text")})
    try:
        table = datasets.Dataset.from_generator(_passages, features=features, gen_kwargs=arguments)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, (DataError, FileNotFoundError)):
            raise error.__cause__ from None
        raise DataError(f"{name} cannot be saved as a corpus ({short(error.__cause__ or error)}).") from error
    assert isinstance(table, datasets.Dataset)
    return Corpus(table)


def _state_of(name: str, split: str | None, hub_config: str | None) -> str:
    """Identifies the state of the data: a file's size and times, or the fingerprint of the hub's table."""
    if not is_file(name):
        return hub_table(name, split or "train", hub_config)._fingerprint
    path = Path(name)
    if not path.is_file():
        return ""  # reading it will raise the right error
    found = path.stat()
    return f"{path.resolve()} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _passages(
    version: int,
    source: str,
    state: str,
    columns: dict[str, str],
    split: str | None,
    hub_config: str | None,
) -> Iterator[dict[str, str]]:
    """The passages of a source; `version` and `state` only enter the cache key of their copy."""
    del version, state
    for number, (where, row) in enumerate(read(source, split, hub_config)):
        yield passage(row, where, columns, number)


def passage(row: Row, where: str, columns: Mapping[str, str], number: int) -> dict[str, str]:
    """A row as {"id", "title", "text"}. Raises DataError."""
    column, key = optional(row, where, "id", DOCUMENT["id"], columns)
    if not isinstance(key, str | int | None) or isinstance(key, bool):
        raise DataError(f"{where}: `{column}` holds {kind_of(key)}; an id is a string or a whole number.")
    name, key = ("id", number) if key is None else (column, key)
    column, text = required(row, where, "text", DOCUMENT["text"], columns)
    text = text_of(text, where, column)
    if column == "contents" and "title" not in columns:
        title, text = split_contents(text)
    else:
        column, title = optional(row, where, "title", DOCUMENT["title"], columns)
        title = text_of(title, where, column) if title else ""
    return {"id": text_of(str(key), where, name), "title": title, "text": text}
