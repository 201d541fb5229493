"""Converts published data into our rows, one row at a time: counts, checksums, and a file of the invalid rows."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scope_jax.data.corpus import passage
from scope_jax.data.published import RECIPES, Make, Recipe, joined
from scope_jax.data.rows import DataError, Row, attempts, is_file, short
from scope_jax.data.schemas import SCHEMAS
from scope_jax.errors import writing
from scope_jax.files import alone, partial_of, remove_stale, replaced
from scope_jax.text.strict_json import is_text

BLOCK = 1 << 20  # bytes hashed at a time


@dataclass
class Counts:
    """rows: written. other: rows of another part of the data set, or the same as earlier ones. refused: rows that could
    not be converted."""

    rows: int = 0
    other: int = 0
    refused: int = 0
    first: str = ""  # the reason for the first of them
    digest: Any = field(default_factory=hashlib.sha256)
    written: set[bytes] = field(default_factory=set)  # hashes of lines, of a recipe whose rows are written once


def convert(
    name: str, out: Path, files: Sequence[str], *, split: str | None, hub_config: str | None, baseline: str | None
) -> dict[str, Any]:
    """Writes the rows of a recipe to `out`, JSON Lines, compressed if it ends with .gz.

    files: local files, or one name on the hub; none: the recipe's own. Rows that cannot be converted go to
    `<out>.refused.jsonl` with place and reason. Returns, and writes to `<out>.manifest.json`: the counts, and the
    SHA-256 of the file, of its uncompressed lines and of every source file.

    Raises DataError for an unknown recipe, a source that cannot be read, and if no row can be converted; UserError
    while another process writes `out`.
    """
    if name not in RECIPES:
        raise DataError(f"there is no data set {name!r}; give one of {', '.join(sorted(RECIPES))}.")
    recipe = RECIPES[name]
    sources = _sources(name, recipe, files)
    split, hub_config = (split or recipe.split, hub_config or recipe.config) if not files else (split, hub_config)
    if recipe.baseline != (baseline is not None):
        raise DataError(
            f"{name} needs the answers of a baseline; give their file with --baseline."
            if recipe.baseline
            else f"{name} has no baseline; remove --baseline."
        )
    for source in (*sources, *([] if baseline is None else [baseline])):
        if out.exists() and is_file(source) and out.samefile(source):
            raise DataError(f"{out} is also a source, which would be overwritten; give another file to write.")
    make = recipe.make if baseline is None else joined(list(_whole(baseline)), recipe.make)
    counts, refused = Counts(), out.with_name(out.name + ".refused.jsonl")
    out.parent.mkdir(parents=True, exist_ok=True)
    with alone(out), writing(out):
        remove_stale(out.parent)
        partial, partly = partial_of(out), partial_of(refused)
        try:
            with _text(partial, out.suffix == ".gz") as file, partly.open("w", encoding="utf-8") as bad:
                for source in sources:
                    part = (None, None) if is_file(source) else (split, hub_config)
                    _stream(recipe, make, attempts(source, *part), file, bad, counts)
            return _finish(name, out, sources, counts, (partial, partly, refused))
        finally:
            partial.unlink(missing_ok=True)
            partly.unlink(missing_ok=True)


def _stream(
    recipe: Recipe,
    make: Make,
    rows: Iterable[tuple[str, Row | DataError, Any]],
    file: io.TextIOWrapper,
    bad: io.TextIOWrapper,
    counts: Counts,
) -> None:
    """Writes the rows that can be converted to `file`, the others with their reasons to `bad`, and counts both."""
    for where, row, raw in rows:
        try:
            if isinstance(row, DataError):
                raise row
            line = _line(recipe, make, row, where)
        except DataError as error:
            counts.refused += 1
            counts.first = counts.first or str(error)
            bad.write(json.dumps({"reason": str(error), "row": raw}, default=str) + "\n")
            continue
        if not line or _repeated(recipe, line, counts.written):
            counts.other += 1
            continue
        file.write(line)
        counts.digest.update(line.encode())
        counts.rows += 1


def _repeated(recipe: Recipe, line: str, written: set[bytes]) -> bool:
    """Whether the recipe writes equal rows once, and this one has been written; notes it otherwise."""
    if not recipe.once:
        return False
    key = hashlib.sha256(line.encode()).digest()[:16]
    known = key in written
    written.add(key)
    return known


def _finish(
    name: str, out: Path, sources: Sequence[str], counts: Counts, places: tuple[Path, Path, Path]
) -> dict[str, Any]:
    """Renames the files and writes the manifest."""
    partial, partly, refused = places
    if not counts.rows:
        raise DataError(f"no row of {sources[0]} could be converted as {name}: {counts.first or 'there is none.'}")
    refused.unlink(missing_ok=True)
    if counts.refused:
        os.replace(partly, refused)
    digest = _sha256(partial)
    os.replace(partial, out)
    manifest = {
        "data": name,
        "rows": counts.rows,
        "refused": counts.refused,
        "other": counts.other,
        "sha256": digest,
        "sha256_of_lines": counts.digest.hexdigest(),
        "sources": {source: _sha256(Path(source)) if is_file(source) else "hub" for source in sources},
    }
    with replaced(out.with_name(out.name + ".manifest.json")) as waiting:
        waiting.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return {"file": str(out), **manifest, "first_refused": counts.first}


def _sources(name: str, recipe: Recipe, files: Sequence[str]) -> Sequence[str]:
    if files:
        return files
    if recipe.hub is None:
        raise DataError(f"{name} has no name on the hub; give its file, {recipe.about}, with --source.")
    return [recipe.hub]


def _line(recipe: Recipe, make: Make, row: Row, where: str) -> str:
    """The converted row as a line, "" for a row of another part. Raises DataError unless it fits the schema."""
    try:
        made = make(row, where)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {short(error)}"
        raise DataError(f"{where}: is not in the format of {recipe.about} ({what}); fix or remove the row.") from error
    if not made:
        return ""
    if recipe.kind == "documents":
        passage(made, where, {}, 0)
    else:
        SCHEMAS[recipe.kind](made, where, {})
    line = json.dumps(made, ensure_ascii=False) + "\n"
    if not is_text(line):
        raise DataError(f"{where}: holds half of a surrogate pair, which is not text; fix or remove the row.")
    return line


def _whole(source: str) -> Iterator[tuple[str, Row]]:
    for where, row, _ in attempts(source, None, None):
        if isinstance(row, DataError):
            raise row
        yield where, row


@contextmanager
def _text(path: Path, packed: bool) -> Iterator[io.TextIOWrapper]:
    if not packed:
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    # without name and time, so that equal rows give equal files
    with (
        path.open("wb") as below,
        gzip.GzipFile(filename="", fileobj=below, mode="wb", mtime=0) as zipped,
        io.TextIOWrapper(zipped, encoding="utf-8") as file,
    ):
        yield file


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
