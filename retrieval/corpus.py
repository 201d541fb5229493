"""Passages to search in, read through `datasets`: memory-mapped Arrow, so that a corpus need not fit in memory.

A passage has an id, a title and a text. Files in the style of Search-R1 hold one field `contents` instead, whose first
line is the title (in double quotes in the wiki-18 dump) and whose rest is the text.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
import pyarrow as pa
from datasets.exceptions import DatasetGenerationError, DatasetsError

LINE_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
READ_ROWS = 4096  # passages read at a time where the whole corpus is walked


class CorpusError(ValueError):
    """A corpus cannot be read; one sentence says where and what to do."""


@dataclass(frozen=True)
class Document:
    """One passage."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title, newline, text: what encoders are given."""
        return f"{self.title}\n{self.text}"


def split_contents(contents: str) -> tuple[str, str]:
    """(title, text) of a Search-R1 `contents` field; a title in double quotes loses them."""
    title, _, text = contents.partition("\n")
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
        """A corpus in memory; CorpusError when there is no document."""
        rows = [{"id": d.id, "title": d.title, "text": d.text} for d in documents]
        if not rows:
            raise CorpusError("The corpus is empty: give at least one passage.")
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
        """The corpus that `save` wrote; CorpusError when the folder is missing or damaged."""
        try:
            table = datasets.load_from_disk(str(folder))
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise CorpusError(f"The saved corpus in {folder} cannot be read ({_short(error)}).") from error
        if not isinstance(table, datasets.Dataset):
            raise CorpusError(f"The saved corpus in {folder} is not one table of passages.")
        return Corpus(table)


def load_corpus(source: str | Path) -> Corpus:
    """The corpus of a JSONL file (also .gz), a Parquet file, or the `train` split of a dataset on the hub.

    Fields: `title` and `text`, or `contents`; `id` is the row number where absent; others are ignored. Raises
    FileNotFoundError for a file that is not there and CorpusError for one that is broken (with its line) or empty.
    """
    name = str(source)
    path = Path(source)
    if name.endswith((*LINE_ENDINGS, ".parquet")) or path.exists():
        if not path.exists():
            raise FileNotFoundError(f"The corpus file {name} does not exist; check the path.")
        if not path.is_file():
            raise CorpusError(f"The corpus {name} is not a file; give one JSONL or Parquet file, or a hub name.")
        table = _load_parquet(path) if name.endswith(".parquet") else _load_lines(path)
    else:
        table = _load_hub(name)
    if len(table) == 0:
        raise CorpusError(f"The corpus {name} is empty: give a file with at least one passage.")
    return Corpus(table)


# ------------------------------------------------------------------------------------------------------------- JSONL
def _load_lines(path: Path) -> datasets.Dataset:
    """Every line is checked while `datasets` writes its Arrow copy; an unchanged file is not read twice."""
    stat = path.stat()
    if stat.st_size == 0:
        raise CorpusError(f"The corpus {path} is empty: give a file with at least one passage.")
    columns = {name: datasets.Value("string") for name in ("id", "title", "text")}
    try:
        table = datasets.Dataset.from_generator(
            _passages_of_lines,
            features=datasets.Features(columns),
            # size and time are part of the cache key, so that an edited file is read anew
            gen_kwargs={"path": str(path.resolve()), "size": stat.st_size, "changed": stat.st_mtime_ns},
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, CorpusError):
            raise error.__cause__ from None
        raise CorpusError(f"The corpus {path} cannot be read ({_short(error.__cause__ or error)}).") from error
    except ValueError as error:  # what `datasets` says of a generator that yields nothing
        raise CorpusError(f"The corpus {path} is empty: give a file with at least one passage.") from error
    assert isinstance(table, datasets.Dataset)
    return table


def _passages_of_lines(path: str, size: int, changed: int) -> Iterator[dict[str, str]]:
    """The passages of a JSONL file; `size` and `changed` only tell one state of the file from another."""
    del size, changed
    row = 0
    with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as lines:
        for number, line in enumerate(_lines_of(lines, path), start=1):
            if line.strip():
                yield _passage_of_line(line, f"{path}, line {number}", row)
                row += 1


def _lines_of(lines: Iterable[bytes], path: str) -> Iterator[bytes]:
    try:
        yield from lines
    except (OSError, EOFError) as error:
        raise CorpusError(f"The corpus {path} is not a whole gzip file ({_short(error)}); fetch it again.") from error


def _passage_of_line(line: bytes, where: str, row: int) -> dict[str, str]:
    try:
        fields = json.loads(line)
    except ValueError as error:  # also UnicodeDecodeError
        raise CorpusError(f"{where}: not JSON ({_short(error)}); put one JSON object on each line.") from error
    if not isinstance(fields, dict):
        raise CorpusError(f"{where}: a JSON {type(fields).__name__}; put one JSON object on each line.")
    wanted = ("contents",) if "contents" in fields else ("title", "text")
    for name in wanted:
        if not isinstance(fields.get(name), str):
            problem = "is not a string" if name in fields else "is missing"
            raise CorpusError(f"{where}: `{name}` {problem}; a passage needs `title` and `text`, or `contents`.")
    title, text = split_contents(fields["contents"]) if "contents" in fields else (fields["title"], fields["text"])
    if not _is_text(title + text):
        raise CorpusError(f"{where}: holds half of a surrogate pair, which is no text; repair or remove the line.")
    return {"id": str(fields.get("id", row)), "title": title, "text": text}


def _is_text(string: str) -> bool:
    try:
        string.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# ----------------------------------------------------------------------------------------------------- Parquet, hub
def _load_parquet(path: Path) -> datasets.Dataset:
    try:
        table = datasets.load_dataset("parquet", data_files=str(path), split="train")
    except (DatasetsError, OSError, ValueError, StopIteration, pa.ArrowException) as error:
        raise CorpusError(f"The corpus {path} cannot be read as Parquet ({_short(error)}).") from error
    return _checked(table, str(path))


def _load_hub(name: str) -> datasets.Dataset:
    try:
        table = datasets.load_dataset(name, split="train")
    except (DatasetsError, OSError, ValueError) as error:
        raise CorpusError(
            f"The corpus {name} is no file here and cannot be had from the hub ({_short(error)}); check the name."
        ) from error
    return _checked(table, name)


def _checked(table: object, name: str) -> datasets.Dataset:
    """The columns that matter, after a look at their names and types."""
    if not isinstance(table, datasets.Dataset):
        raise CorpusError(f"The corpus {name} is not one table of passages.")
    wanted: Sequence[str] = ("contents",) if "contents" in table.column_names else ("title", "text")
    for column in wanted:
        if column not in table.column_names:
            raise CorpusError(
                f"The corpus {name} has no column `{column}`; it needs `title` and `text`, or `contents`."
            )
        if table.features[column].dtype not in ("string", "large_string"):
            raise CorpusError(f"The column `{column}` of the corpus {name} does not hold strings.")
        if table.data.column(column).null_count:
            raise CorpusError(f"The column `{column}` of the corpus {name} has empty cells; remove those rows.")
    return table.select_columns([c for c in ("id", *wanted) if c in table.column_names])


def _short(error: BaseException) -> str:
    """The first line of an error's text, as part of our own sentence."""
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else type(error).__name__
