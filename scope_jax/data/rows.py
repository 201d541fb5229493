"""Rows of a data file or of a hub data set, in order, each with its location.

Supported are JSON Lines in UTF-8 (.jsonl or .json, either also with .gz), Parquet files, and one split of a hub data
set. The caller decides what a row must contain: `optional` and `required` find a value by the names its column may
have, `text_of` checks that it is text. Every error is one sentence with file, line or row, and what to do.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_jax.errors import UserError

if TYPE_CHECKING:  # what lists or checks a card reads no data, and these import for a second
    import datasets
    import pyarrow as pa

Row = dict[str, Any]
LINE_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
BATCH = 1024  # rows decoded at a time
LONGEST_LINE = 64 << 20  # bytes; a line is in memory as a whole
LARGEST_LIST = 4 << 30  # bytes of a file with one JSON list, uncompressed; it is in memory as a whole
BLOCK = 1 << 16  # bytes in which a list is looked for
UTF8_MARK, UTF16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


class DataError(UserError):
    """Data that cannot be used: one sentence with file, line or row, and what to do."""


def is_file(source: str) -> bool:
    """True if a source has a file's extension or exists as a file; otherwise it names a hub data set."""
    return source.endswith((*LINE_ENDINGS, ".parquet")) or Path(source).exists()


def read(source: str, split: str | None = None, hub_config: str | None = None) -> Iterator[tuple[str, Row]]:
    """(place, row) of every row, in order; a place is "FILE, line 3" or "FILE, row 3".

    split, hub_config: of a hub data set; by default its `train` split and its only configuration.
    Raises FileNotFoundError for a missing file, DataError for data that cannot be read or has no rows.
    """
    if is_file(source):
        path = Path(source)
        if split or hub_config:
            raise DataError(f"{source} is a file, which has no splits or configurations; remove split and hub_config.")
        if not path.exists():
            raise FileNotFoundError(f"The data file {source} does not exist; check the path.")
        if not path.is_file():
            raise DataError(f"{source} is not a file; give one JSONL or Parquet file, or the name of a hub data set.")
        rows = _of_parquet(path) if source.endswith(".parquet") else _of_lines(path)
    else:
        rows = _of_hub(source, split or "train", hub_config)
    empty = True
    for place_and_row in rows:
        empty = False
        yield place_and_row
    if empty:
        raise DataError(f"{source} is empty; give a file or split with at least one row.")


def attempts(
    source: str, split: str | None = None, hub_config: str | None = None
) -> Iterator[tuple[str, Row | DataError, Any]]:
    """(place, row or what is wrong with it, the row or line as it is) of every row, also of those that are no rows.

    As `read`, but a line that is not a JSON object does not end the iteration. A file that begins with a bracket is one
    JSON list, which is read whole. Raises FileNotFoundError, and DataError for a source that cannot be read at all.
    """
    path = Path(source)
    if not is_file(source) or source.endswith(".parquet") or not path.is_file():
        for where, row in read(source, split, hub_config):
            yield where, row, row
        return
    if _is_list(path):
        yield from _of_list(path)
        return
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            row: Row | DataError
            try:
                row = _object(line, where)
            except DataError as error:
                row = error
            yield where, row, line.decode("utf-8", "replace").rstrip("\r\n") if isinstance(row, DataError) else row


def _is_list(path: Path) -> bool:
    with _opened(path) as file:
        return file.read(BLOCK).removeprefix(UTF8_MARK).lstrip().startswith(b"[")


def _of_list(path: Path) -> Iterator[tuple[str, Row | DataError, Any]]:
    with _opened(path) as file:
        text = file.read(LARGEST_LIST + 1)
    if len(text) > LARGEST_LIST:
        raise DataError(
            f"{path} is one JSON list of more than {LARGEST_LIST >> 30} GiB, which is read whole; write one JSON "
            "object on each line."
        )
    try:
        rows = STRICT_JSON.decode(text.removeprefix(UTF8_MARK).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not a JSON list ({short(error)}); save it again.") from None
    for number, row in enumerate(rows, start=1):
        where = f"{path}, row {number}"
        known = isinstance(row, dict)
        yield where, row if known else DataError(f"{where}: {kind_of(row)}, not an object; remove it."), row


# ---------------------------------------------------------------------------------------------------------- JSON lines
def _of_lines(path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _object(line, where)


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, without a byte order mark. Raises DataError for one that is longer than LONGEST_LINE."""
    with _opened(path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if number == 1 and line.startswith(UTF16_MARKS):
                raise DataError(f"{path} is not UTF-8 but UTF-16 or UTF-32; save it as UTF-8.")
            if len(line) > LONGEST_LINE:
                raise DataError(
                    f"{path}, line {number}: is longer than {LONGEST_LINE >> 20} MiB; put one JSON object on each "
                    "line, and split or remove this one."
                )
            yield line.removeprefix(UTF8_MARK) if number == 1 else line


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    """A file's bytes, uncompressed. Raises DataError, also while it is read, if that is not possible."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is not a complete gzip file ({short(error)}); download or compress it again."
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check its permissions and its disk.") from None


class _Refused(ValueError):
    """Something that Python's json module accepts and JSON does not allow; the message ends a sentence."""


def _pairs(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        twice = repeated(name for name, _ in pairs)
        raise _Refused(f"holds the key {twice!r} twice; keep one")
    return row


def repeated(names: Iterable[str]) -> str | None:
    """The first name that comes a second time; None if all differ."""
    known: set[str] = set()
    return next((name for name in names if name in known or known.add(name)), None)


def _constant(name: str) -> float:
    raise _Refused(f"holds {name}, which is not JSON; write a number or null")


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _Refused(f"holds the number {digits[:20]}, which is too large; write a smaller one")
    return number


DEEPEST = 500  # levels of lists and objects: Python versions differ in how many they read


class _Strict(json.JSONDecoder):
    def decode(self, s: str, *where: Any) -> Any:
        value = super().decode(s, *where)
        if s.count("[") + s.count("{") > DEEPEST and _deeper(value, DEEPEST):
            raise RecursionError("nested too deeply")
        return value


def _deeper(value: Any, levels: int) -> bool:
    """Whether a value has more levels of lists and objects."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for one in layer
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not layer:
            return False
    return True


# raises ValueError for duplicate keys, NaN, and numbers too large for a float, RecursionError for too many levels
STRICT_JSON = _Strict(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)


def _object(line: bytes, where: str) -> Row:
    try:
        row = STRICT_JSON.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} is 0x{line[error.start]:02x}"
        raise DataError(f"{where}: is not UTF-8 ({byte}); save the file as UTF-8.") from None
    except _Refused as error:
        raise DataError(f"{where}: {error}.") from None
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        raise DataError(
            f"{where}: not JSON ({what} at character {error.colno}); put one JSON object on each line."
        ) from None
    except RecursionError:
        raise DataError(f"{where}: is nested too deeply; fix or remove the line.") from None
    except ValueError:  # Python's limit for the digits of an integer
        raise DataError(f"{where}: holds a number with too many digits; fix or remove the line.") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: {kind_of(row)}, not an object; put one JSON object on each line.")
    return row


# ------------------------------------------------------------------------------------------------------- Parquet, hub
def _of_parquet(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                raise DataError(f"{path} has two columns with the same name; rename one of them.")
            first = 1
            for batch in file.iter_batches(BATCH):
                yield from _of_batch(batch, path, first)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({short(error)}); download or write it again.") from None


def _of_batch(batch: pa.RecordBatch, path: Path, first: int) -> Iterator[tuple[str, Row]]:
    try:
        rows = _rows(batch)
    except UnicodeDecodeError:
        rows = None
    for place in range(batch.num_rows):
        where = f"{path}, row {first + place}"
        try:
            yield where, without_gaps(rows[place] if rows is not None else _rows(batch.slice(place, 1))[0])
        except UnicodeDecodeError:
            raise DataError(f"{where}: holds text that is not UTF-8; fix or remove the row.") from None


def _rows(batch: pa.RecordBatch) -> list[Row]:
    """The rows of a batch; maps are objects."""
    return batch.to_pylist(maps_as_pydicts="strict")


def _of_hub(name: str, split: str, hub_config: str | None) -> Iterator[tuple[str, Row]]:
    table = hub_table(name, split, hub_config)
    number = 0
    for columns in table.iter(batch_size=BATCH):
        assert isinstance(columns, dict)  # lists of values by name
        for values in zip(*columns.values(), strict=True):
            number += 1
            yield f"{name} ({split}), row {number}", without_gaps(dict(zip(columns, values, strict=True)))


def without_gaps(row: Row) -> Row:
    """A row of a table without the nulls inside its objects, where tables have every field that some object has."""
    return {name: _without_nulls(value) for name, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def hub_table(name: str, split: str, hub_config: str | None) -> datasets.Dataset:
    """One split of a data set on the hub, memory-mapped; raises DataError if it cannot be loaded, as when it is a
    script, which is never run."""
    import datasets

    try:
        table = datasets.load_dataset(name, hub_config, split=split, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - of readers of many formats, each with errors of its own
        wanted = f"the split {split!r}" + (f" of its configuration {hub_config!r}" if hub_config else "")
        raise DataError(
            f"{name} is not a local file, and {wanted} cannot be loaded from the hub ({short(error)}); check the name, "
            "or give a JSON Lines or Parquet file."
        ) from None
    if not isinstance(table, datasets.Dataset):
        raise DataError(f"{name}: {split!r} selects several splits; select one.")
    return table


# ------------------------------------------------------------------------------------------------------ values of rows
def check_columns(source: str, columns: Mapping[str, str], fields: Collection[str]) -> None:
    """Raises DataError if `columns` names a field that rows of this source do not have."""
    if unread := sorted(columns.keys() - set(fields)):
        raise DataError(
            f"columns.{unread[0]} does not apply to {source}, whose rows have the fields {listed(fields)}; "
            "remove it from the card."
        )


def optional(row: Row, where: str, name: str, known: Sequence[str], columns: Mapping[str, str]) -> tuple[str, Any]:
    """(column, value) of a field of a row; the value is None if the row has none.

    The column is the one that `columns` names for the field, with dots for nested objects; every row must have it.
    Without such a name it is the first of the `known` names whose value is neither null nor [].
    """
    if name in columns:
        column = columns[name]
        found, value = _at(row, column)
        if not found:
            raise DataError(f"{where}: has no column `{column}` for the {name}; its columns are {listed(row)}.")
        return column, None if value == [] else value
    for column in known:
        if row.get(column) not in (None, []):
            return column, row[column]
    return known[0], None


def _at(row: Mapping[str, Any], column: str) -> tuple[bool, Any]:
    if column in row:
        return True, row[column]
    first, dot, rest = column.partition(".")
    below = row.get(first)
    return _at(below, rest) if dot and isinstance(below, Mapping) else (False, None)


def required(row: Row, where: str, name: str, known: Sequence[str], columns: Mapping[str, str]) -> tuple[str, Any]:
    """Like `optional`, for a field that every row needs. Raises DataError if a row has none."""
    column, value = optional(row, where, name, known, columns)
    if value is None:
        names = " or ".join(f"`{each}`" for each in ((column,) if name in columns else known))
        raise DataError(
            f"{where}: has no {name} in {names}; its columns are {listed(row)}, "
            "and `columns` in the card can name another."
        )
    return column, value


def text_of(value: Any, where: str, column: str) -> str:
    """The value, if it is text and not blank; raises DataError otherwise."""
    if not isinstance(value, str):
        raise DataError(f"{where}: `{column}` holds {kind_of(value)}, not text; write a string.")
    if not value.strip():
        raise DataError(f"{where}: `{column}` is empty; fill it or remove the row.")
    if not is_text(value):
        raise DataError(
            f"{where}: `{column}` holds half of a surrogate pair, which is not text; fix or remove the row."
        )
    return value


def is_text(string: str) -> bool:
    """False for a string that UTF-8 cannot encode: one with a lone surrogate."""
    try:
        string.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def kind_of(value: Any) -> str:
    """The type of a JSON value, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def listed(names: Iterable[str]) -> str:
    """The first ten names, for a message."""
    first = [name[:40].encode(errors="replace").decode() for name in names]
    return ", ".join(f"`{name}`" for name in first[:10]) + (", …" if len(first) > 10 else "") or "none"


def short(error: BaseException) -> str:
    """The first line of an error's text, for use within our own sentence."""
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else type(error).__name__
