"""Index folders: built in resumable steps, opened only when complete.

    manifest.json      what the index was built from, and its progress
    corpus/            the passages, as Arrow
    embedder.npz       weights of the lexical encoder (other encoders are passed in when opening)
    embeddings.zarr/   float32 [N, E], chunked by passages, through tensorstore
    scann/             ScaNN's tree and codes, if requested

Everything is written under a temporary name, or recorded in the manifest only once it is complete. A folder without a
manifest is an index that was begun or deleted only if it has the mark manifest.json.part; any other is left alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorstore as ts
from jax.sharding import Mesh
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from scope_jax.data.corpus import Corpus
from scope_jax.errors import UserError
from scope_jax.files import is_partial
from scope_jax.retrieval.embed import Embedder, HashedLexical, Progress
from scope_jax.retrieval.exact import ExactIndex
from scope_jax.retrieval.index import Index
from scope_jax.retrieval.scann import ScannConfig, ScannIndex

VERSION = 1
MANIFEST, CORPUS, EMBEDDER, EMBEDDINGS, SCANN = "manifest.json", "corpus", "embedder.npz", "embeddings.zarr", "scann"


class IndexFolderError(UserError):
    """An index folder is missing, incomplete, damaged or built from another corpus; one sentence says which."""


@dataclass(frozen=True)
class Manifest:
    """Contents of an index folder. `embedded`: how many passages are embedded, from the first row on; `scann`: settings
    of the finished ScaNN index, None if there is none."""

    version: NonNegativeInt
    corpus: str  # fingerprint
    embedder: str  # identity
    lexical: bool  # the encoder's weights are in the folder
    passages: NonNegativeInt
    width: NonNegativeInt
    chunk: PositiveInt
    embedded: NonNegativeInt
    scann: dict[str, int] | None


def build_index(
    corpus: Corpus,
    embedder: Embedder,
    folder: Path,
    *,
    kind: Literal["exact", "scann"],
    scann: ScannConfig | None,
    chunk: int,
    rebuild: bool = False,
    progress: Progress | None = None,
) -> None:
    """Builds the index in `folder`, or resumes an interrupted build; does nothing if the index is complete.

    chunk: passages embedded, written and recorded at a time. Raises IndexFolderError for a folder built from another
    corpus or encoder, unless `rebuild` allows deleting it. A new kind or new ScaNN settings reuse the embeddings.
    While another process builds the same folder, it waits.
    """
    if kind == "scann" and scann is None:
        raise ValueError("A ScaNN index needs its settings; pass a ScannConfig.")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1.")
    with _alone(folder):
        manifest = _resumable(corpus, embedder, folder, rebuild)
        if manifest is None:
            manifest = _begin(corpus, embedder, folder, chunk)
        manifest = _embed(corpus, embedder, folder, manifest, progress)
        if kind == "scann" and scann is not None and (manifest.scann != asdict(scann) or not (folder / SCANN).is_dir()):
            _build_scann(folder, manifest, scann)


def open_index(
    folder: Path,
    *,
    kind: Literal["exact", "scann"] | None = None,
    embedder: Embedder | None = None,
    mesh: Mesh | None = None,
    axes: tuple[str, ...] = (),
) -> tuple[Index, Corpus, Embedder]:
    """(index, corpus, embedder) of a finished folder. Raises IndexFolderError.

    kind: None for ScaNN if the folder has it, exact otherwise (every folder can be searched exactly). embedder: the
    encoder passed to build_index, None if the lexical one was used. An exact index is sharded over `axes` of `mesh`.
    """
    manifest = _read_manifest(folder)
    kind = kind or ("exact" if manifest.scann is None else "scann")
    if manifest.embedded < manifest.passages:
        raise IndexFolderError(
            f"The index in {folder} is only partly built ({manifest.embedded} of {manifest.passages} passages); "
            "run the same build again to finish it."
        )
    if kind == "scann" and manifest.scann is None:
        raise IndexFolderError(
            f"The index in {folder} has no ScaNN part; build it with kind 'scann', or open it as exact."
        )
    try:
        corpus = Corpus.load(folder / CORPUS)
        embedder = _embedder_of(folder, manifest, embedder)
        index = _index_of(folder, manifest, kind, mesh, axes)
    except IndexFolderError:
        raise
    except ValueError as error:
        raise _damaged(folder, str(error)) from error
    if len(corpus) != manifest.passages or index.size != manifest.passages:
        raise _damaged(
            folder, f"{len(corpus)} passages and {index.size} vectors where there should be {manifest.passages}"
        )
    return index, corpus, embedder


def saved_lexical(folder: Path, corpus: Corpus, dim: int) -> HashedLexical | None:
    """The lexical encoder in an index folder if it was fitted on this corpus with this width; None otherwise, or if
    folder, manifest or weights are missing or damaged (building and opening report that).
    """
    try:
        manifest = _read_manifest(folder)
        if not manifest.lexical or manifest.corpus != corpus.fingerprint:
            return None
        embedder = HashedLexical.load(folder / EMBEDDER)
    except ValueError:
        return None
    return embedder if (embedder.dim, embedder.identity) == (dim, manifest.embedder) else None


# ----------------------------------------------------------------------------------------------------------- building
@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the lock file beside the folder, which stays there: deleting it would let two processes have one each."""
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(Path(f"{folder.resolve()}.lock").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a read-only folder, whose index may be complete, or a file system without locks
            pass
        yield


def _resumable(corpus: Corpus, embedder: Embedder, folder: Path, rebuild: bool) -> Manifest | None:
    """The manifest to resume from; None for a new build in an empty folder."""
    if rebuild and (folder / MANIFEST).exists():
        _clear(folder)
        return None
    if (manifest := manifest_of(folder, corpus)) is None:
        if folder.exists():
            _clear(folder)  # killed before its manifest was written: nothing there is valid
        return None
    if manifest.embedder != embedder.identity:
        raise _of_another("encoder", folder)
    return manifest


def manifest_of(folder: Path, corpus: Corpus) -> Manifest | None:
    """The manifest of an index of this corpus that is there, or was begun; None if none was.

    Raises IndexFolderError if it is of another corpus, or if the folder has other files.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if not (folder / MANIFEST).exists():
        names = {entry.name.removesuffix(".part") for entry in folder.iterdir() if not is_partial(entry)}
        if not (names <= {MANIFEST, CORPUS, EMBEDDER, EMBEDDINGS, SCANN} and _mark(folder).exists()):
            raise IndexFolderError(f"The folder {folder} has other files and no index; choose an empty or new folder.")
        return None
    manifest = _read_manifest(folder)
    if manifest.corpus != corpus.fingerprint:
        raise _of_another("corpus", folder)
    return manifest


def _of_another(what: str, folder: Path) -> IndexFolderError:
    return IndexFolderError(
        f"The index in {folder} was built from another {what}; choose another folder, or rebuild it with "
        f"`scope-jax index CARD --rebuild --set retrieval.index={shlex.quote(str(folder))}`."
    )


def _clear(folder: Path) -> None:
    """Deletes the index, manifest first, so that a killed process leaves nothing that looks complete; its mark last."""
    if (folder / MANIFEST).exists():
        os.replace(folder / MANIFEST, _mark(folder))
    for name in (CORPUS, EMBEDDER, EMBEDDINGS, SCANN):
        for path in (folder / name, folder / f"{name}.part"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for path in filter(is_partial, list(folder.iterdir())):
        path.unlink(missing_ok=True)
    _mark(folder).unlink(missing_ok=True)


def _begin(corpus: Corpus, embedder: Embedder, folder: Path, chunk: int) -> Manifest:
    folder.mkdir(parents=True, exist_ok=True)
    _mark(folder).touch()
    corpus.save(folder / f"{CORPUS}.part")
    os.replace(folder / f"{CORPUS}.part", folder / CORPUS)
    lexical = isinstance(embedder, HashedLexical)
    if isinstance(embedder, HashedLexical):
        embedder.save(folder / EMBEDDER)
    first_NE = _vectors(corpus, embedder, 0, 1)
    manifest = Manifest(
        version=VERSION,
        corpus=corpus.fingerprint,
        embedder=embedder.identity,
        lexical=lexical,
        passages=len(corpus),
        width=first_NE.shape[1],
        chunk=chunk,
        embedded=0,
        scann=None,
    )
    _create(folder, manifest)
    _write_manifest(folder, manifest)
    return manifest


def _embed(corpus: Corpus, embedder: Embedder, folder: Path, manifest: Manifest, progress: Progress | None) -> Manifest:
    if manifest.embedded == manifest.passages:
        return manifest
    store = _open_store(folder)
    for start in range(manifest.embedded, manifest.passages, manifest.chunk):
        stop = min(start + manifest.chunk, manifest.passages)
        vectors_NE = _vectors(corpus, embedder, start, stop)
        if vectors_NE.shape[1] != manifest.width:
            raise UserError(
                f"The encoder {embedder.identity} changed its width from {manifest.width} to {vectors_NE.shape[1]}."
            )
        store[start:stop].write(vectors_NE).result()
        manifest = replace(manifest, embedded=stop)
        _write_manifest(folder, manifest)
        if progress is not None:
            progress(stop, manifest.passages)
    return manifest


def _vectors(corpus: Corpus, embedder: Embedder, start: int, stop: int) -> np.ndarray:
    documents = corpus.documents(start, stop)
    vectors_NE = np.asarray(embedder.passages([d.contents for d in documents]), np.float32)
    if vectors_NE.ndim != 2 or len(vectors_NE) != stop - start:
        raise UserError(
            f"The encoder {embedder.identity} returned shape {vectors_NE.shape} for {stop - start} passages; "
            "it must return one row per passage."
        )
    bad_N = ~np.isfinite(vectors_NE).all(axis=1)
    if bad_N.any():
        raise UserError(
            f"The encoder {embedder.identity} returned a non-finite vector for passage "
            f"{documents[int(bad_N.argmax())].id}; no such vector can be searched."
        )
    return vectors_NE


def _build_scann(folder: Path, manifest: Manifest, config: ScannConfig) -> None:
    _write_manifest(folder, replace(manifest, scann=None))  # the old one is invalid from here on
    part, final = folder / f"{SCANN}.part", folder / SCANN
    for path in (part, final):
        if path.exists():
            shutil.rmtree(path)
    ScannIndex.build(Embeddings(folder, manifest)[: manifest.passages], config).save(part)
    os.replace(part, final)
    _write_manifest(folder, replace(manifest, scann=asdict(config)))


# ------------------------------------------------------------------------------------------------------------ opening
def _embedder_of(folder: Path, manifest: Manifest, embedder: Embedder | None) -> Embedder:
    if embedder is None:
        if not manifest.lexical:
            raise IndexFolderError(
                f"The index in {folder} was built with the encoder {manifest.embedder}; pass that encoder."
            )
        embedder = HashedLexical.load(folder / EMBEDDER)
    if embedder.identity != manifest.embedder:
        raise IndexFolderError(
            f"The index in {folder} was built with the encoder {manifest.embedder}, not with {embedder.identity}; "
            "pass the same one, or rebuild the index."
        )
    return embedder


def _index_of(
    folder: Path, manifest: Manifest, kind: Literal["exact", "scann"], mesh: Mesh | None, axes: tuple[str, ...]
) -> Index:
    if kind == "exact":
        return ExactIndex(Embeddings(folder, manifest), mesh=mesh, axes=axes)
    index = ScannIndex.load(folder / SCANN)
    if index.width != manifest.width:
        raise _damaged(folder, f"the ScaNN part has width {index.width}, the embeddings {manifest.width}")
    return index


class Embeddings:
    """The vectors on disk, read in slices of rows; raises IndexFolderError if a chunk is missing or damaged."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._store = _open_store(folder)
        self.shape = (manifest.passages, manifest.width)
        if tuple(self._store.shape) != self.shape:
            raise _damaged(folder, f"the embeddings have shape {tuple(self._store.shape)}, not {self.shape}")

    def __getitem__(self, rows: slice) -> np.ndarray:
        try:
            part_NE = np.asarray(self._store[rows.start or 0 : rows.stop].read().result(), np.float32)
        except (ValueError, OSError) as error:
            raise _damaged(self._folder, "an embedding chunk cannot be read") from error
        if np.isnan(part_NE).any():  # the fill value of a missing chunk
            raise _damaged(self._folder, "an embedding chunk is missing")
        return part_NE


def _spec(folder: Path) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": str((folder / EMBEDDINGS).resolve())}}


def _create(folder: Path, manifest: Manifest) -> None:
    metadata = {
        "shape": [manifest.passages, manifest.width],
        "data_type": "float32",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [min(manifest.chunk, manifest.passages), manifest.width]},
        },
        "fill_value": "NaN",
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    }
    ts.open({**_spec(folder), "metadata": metadata}, create=True, delete_existing=True).result()


def _open_store(folder: Path) -> Any:
    try:
        return ts.open(_spec(folder), open=True).result()
    except (ValueError, OSError) as error:
        raise _damaged(folder, "the embeddings are missing or unreadable") from error


# ----------------------------------------------------------------------------------------------------------- manifest
def _read_manifest(folder: Path) -> Manifest:
    if not folder.is_dir():
        raise IndexFolderError(f"The index folder {folder} does not exist; build the index first.")
    if not (folder / MANIFEST).exists():
        raise IndexFolderError(f"The folder {folder} has no index ({MANIFEST} is missing); build the index first.")
    try:
        manifest = TypeAdapter(Manifest).validate_json((folder / MANIFEST).read_bytes(), strict=True)
    except (OSError, ValidationError) as error:
        raise _damaged(folder, f"{MANIFEST} cannot be read") from error
    if manifest.version != VERSION:
        raise IndexFolderError(f"The index in {folder} has format {manifest.version}, not {VERSION}; build it again.")
    return manifest


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    _mark(folder).write_text(json.dumps(asdict(manifest), indent=1))
    os.replace(_mark(folder), folder / MANIFEST)


def _mark(folder: Path) -> Path:
    """The manifest under its temporary name; while there is no manifest, it marks the folder as an index."""
    return folder / f"{MANIFEST}.part"


def _damaged(folder: Path, what: str) -> IndexFolderError:
    return IndexFolderError(
        f"The index in {folder} is damaged: {what.rstrip('.')}; delete the folder and build it again."
    )
