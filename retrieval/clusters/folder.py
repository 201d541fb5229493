"""The output folder: its contents, its inputs, and its progress.

    clusters.jsonl     the result, present only when complete
    report.json        rows read, dropped (with reasons) and kept; cluster sizes
    manifest.json      settings, inputs with their hashes, progress
    work/              intermediate data; removed at the end
        documents.jsonl   kept documents                  offsets.u64      byte offset of each of them
        signatures.u32    their MinHash values            vectors.f32      their embeddings
        embedder.npz      weights of the lexical encoder

Files in work/ are append-only, and valid up to the length in the manifest; the next write truncates anything beyond
it that a killed process left.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from scope_jax.data.corpus import Document
from scope_jax.data.rows import DataError, hub_table, is_file
from scope_jax.errors import UserError
from scope_jax.files import is_partial, replaced

VERSION = 1
CLUSTERS, REPORT, MANIFEST, WORK, LOCK = "clusters.jsonl", "report.json", "manifest.json", "work", ".lock"
DOCUMENTS, OFFSETS, SIGNATURES, VECTORS, EMBEDDER = (
    "documents.jsonl", "offsets.u64", "signatures.u32", "vectors.f32", "embedder.npz",
)  # fmt: skip
BLOCK = 1 << 20  # bytes hashed at a time

Tell = Callable[[str, int, int], None]  # (name of the step, pieces done, pieces in all)


class ClustersFolderError(UserError):
    """A folder that cannot be used for the requested clusters or does not hold them; one sentence says why."""


@dataclass(frozen=True)
class Written:
    """clusters.jsonl once it is complete."""

    bytes: NonNegativeInt
    hash: str  # BLAKE2b


@dataclass
class State:
    """manifest.json."""

    version: NonNegativeInt
    settings: dict[str, Any]  # everything that affects the result, as plain JSON
    inputs: dict[str, dict[str, Any]]  # by name: hash and rows; for files, size and times too
    read: NonNegativeInt = 0  # rows read, over all sources
    counts: list[dict[str, int]] = field(default_factory=list)  # for each source: rows kept, and dropped by reason
    examples: dict[str, list[str]] = field(default_factory=dict)  # by reason
    kept: NonNegativeInt = 0  # documents kept
    document_bytes: NonNegativeInt = 0
    selected: bool = False
    width: NonNegativeInt = 0  # of the vectors
    embedded: NonNegativeInt = 0
    result: Written | None = None


class Folder:
    """A folder that one process writes. Raises ClustersFolderError if it must not or cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path, self.work = path, path / WORK

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder and locks it against other processes."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("ab") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ClustersFolderError(
                    f"Another process is using {self.path}; wait for it or choose another folder."
                ) from None
            yield

    # -------------------------------------------------------------------------------------------------------- state
    def check(self) -> None:
        """Raises ClustersFolderError if the path is not a folder or holds other files than clusters."""
        if self.path.exists() and not self.path.is_dir():
            raise ClustersFolderError(f"{self.path} is a file; give a folder for the clusters.")
        if not self.path.is_dir() or (self.path / MANIFEST).exists():
            return
        ours = {LOCK, WORK} if (self.path / LOCK).exists() else set()  # a build locks it first
        entries = [entry for entry in self.path.iterdir() if entry.name not in ours]
        if foreign := sorted(entry.name for entry in entries if not (ours and is_partial(entry))):
            raise ClustersFolderError(
                f"The folder {self.path} has other files ({foreign[0]}) and no clusters; choose an empty or new one."
            )

    def saved(self) -> State | None:
        """The saved progress; None if there is none."""
        file = self.path / MANIFEST
        if not file.exists():
            return None
        try:
            state = TypeAdapter(State).validate_json(file.read_bytes(), strict=True)
        except (OSError, ValidationError):
            raise self.damaged(f"{MANIFEST} cannot be read") from None
        if state.version != VERSION:
            raise ClustersFolderError(
                f"The clusters in {self.path} have format {state.version}, not {VERSION}; rebuild them (--rebuild)."
            )
        result = self.path / CLUSTERS
        if state.result and not (result.is_file() and result.stat().st_size == state.result.bytes):
            raise self.damaged(f"{CLUSTERS} is missing or was changed")
        return state

    def save(self, state: State) -> None:
        self.write(MANIFEST, json.dumps(asdict(state), indent=1, ensure_ascii=False))

    def write(self, name: str, text: str) -> None:
        """Writes a file atomically."""
        with replaced(self.path / name) as part:
            part.write_text(text + "\n", encoding="utf-8")

    def clear(self) -> None:
        """Removes all our files, manifest first, so that a killed process leaves nothing that looks complete."""
        for name in (MANIFEST, REPORT, CLUSTERS):
            (self.path / name).unlink(missing_ok=True)
        self.clear_work()

    def clear_work(self) -> None:
        if self.work.is_dir():
            shutil.rmtree(self.work)

    def damaged(self, what: str) -> ClustersFolderError:
        return ClustersFolderError(f"The clusters in {self.path} are damaged: {what}; rebuild them (--rebuild).")

    # ------------------------------------------------------------------------------------------------- growing files
    def append(self, name: str, committed: int, data: bytes) -> None:
        """Writes `data` after the first `committed` bytes of a file in work/, truncating whatever followed them."""
        self.work.mkdir(exist_ok=True)
        with (self.work / name).open("ab") as file:
            if file.tell() < committed:
                raise self.damaged(f"{WORK}/{name} has {file.tell()} bytes where there were {committed}")
            file.truncate(committed)
            file.write(data)

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """An array in work/, memory-mapped. Raises ClustersFolderError if the file is too short."""
        file, size = self.work / name, int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not size:
            return np.zeros(shape, dtype)
        if not file.is_file() or file.stat().st_size < size:
            raise self.damaged(f"{WORK}/{name} is missing or too short")
        return np.memmap(file, dtype, "r", shape=shape)


class KeptDocuments:
    """The documents in work/ by number, read from disk on access."""

    def __init__(self, folder: Folder, state: State) -> None:
        self._folder, self._count = folder, state.kept
        self._offsets = folder.array(OFFSETS, "<u8", (state.kept,))
        self._text = folder.array(DOCUMENTS, "u1", (state.document_bytes,))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Document:
        last = number + 1 == self._count
        line = self._text[self._offsets[number] : None if last else self._offsets[number + 1]]
        try:
            return Document(**json.loads(bytes(line)))
        except (ValueError, TypeError, RecursionError):
            raise self._folder.damaged(f"{WORK}/{DOCUMENTS} cannot be read at document {number + 1}") from None

    def batches(self, size: int) -> Iterator[list[Document]]:
        """All of them in order, `size` at a time."""
        for start in range(0, self._count, size):
            yield [self[number] for number in range(start, min(start + size, self._count))]


# ------------------------------------------------------------------------------------------------------------- inputs
def input_of(source: str, split: str | None, hub_config: str | None, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Identifies the state of a source: a file by the hash of its bytes, a hub data set by its fingerprint; with the
    number of rows (blank lines included).

    known: an earlier result; a file of the same size and times is not read again.
    """
    if not is_file(source):
        table = hub_table(source, split or "train", hub_config)
        return {"hash": table._fingerprint, "rows": len(table)}
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"The data file {source} does not exist; check the path.")
    if not path.is_file():
        raise DataError(f"{source} is not a file; give one JSONL or Parquet file, or the name of a hub data set.")
    found = path.stat()
    seen = {"bytes": found.st_size, "modified": [found.st_mtime_ns, found.st_ctime_ns]}
    if known is not None and all(known.get(key) == value for key, value in seen.items()):
        return dict(known)
    return {**seen, "hash": _hash(path), "rows": _rows(path)}


def _hash(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _rows(path: Path) -> int:
    """Rows of a Parquet file, lines of any other file; 0 if it is invalid (reading it later raises the error)."""
    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as table:
                return table.metadata.num_rows
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            lines, block = 0, b"\n"
            while following := file.read(BLOCK):
                block = following
                lines += block.count(b"\n")
            return lines + (not block.endswith(b"\n"))
    except (OSError, EOFError, ValueError, zlib.error, pa.ArrowException):
        return 0
