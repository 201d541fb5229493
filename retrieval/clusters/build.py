"""From corpora to clusters of related documents, in three steps; an interrupted build can be resumed.

    select    filters, near-duplicates, held-out data         select.py
    embed     computes a unit vector for each kept document   embed.py's encoders, or a model passed in
    cluster   hierarchical k-means, families, writing         kmeans.py

The first two record every chunk in the manifest; the third starts over, as it takes minutes for a million documents.
A killed and resumed build produces the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from scope_jax.data.rows import DataError
from scope_jax.errors import UserError
from scope_jax.files import replaced
from scope_jax.retrieval.clusters.folder import (
    BLOCK,
    CLUSTERS,
    EMBEDDER,
    REPORT,
    VECTORS,
    VERSION,
    ClustersFolderError,
    Folder,
    KeptDocuments,
    State,
    Tell,
    Written,
    input_of,
)
from scope_jax.retrieval.clusters.kmeans import clusters
from scope_jax.retrieval.clusters.select import REASONS, select
from scope_jax.retrieval.clusters.settings import ClusterCorpus, Neural, Preparation
from scope_jax.retrieval.embed import Encoder, HashedLexical

NOT_CHOSEN = "cluster_not_chosen"  # drop reason of documents in clusters beyond per_family
TOO_LONG = "cluster_too_long"  # of documents that clusters of at most `sizes.tokens` have no room for


def prepare(wanted: Preparation, path: Path, *, chunk: int, tell: Tell, rebuild: bool = False) -> dict[str, Any]:
    """Builds the clusters in `path`, or resumes their build, and returns the report; does nothing if they are complete.

    chunk: rows read, or documents embedded, between two updates of the manifest. tell(name, done, total) reports
    progress. rebuild: existing clusters are deleted first. Raises FileNotFoundError and DataError for sources that
    cannot be used or leave too few documents, and then leaves no files behind; ClustersFolderError for a folder that
    holds something else or was built with other settings.
    """
    folder = Folder(path)
    folder.check()
    inputs = _inputs(
        wanted, None if rebuild else folder.saved()
    )  # may take minutes, and fail before anything is written
    with folder.locked():
        state = None if rebuild else folder.saved()  # another process may have gone on in the meantime
        if state is not None:
            _compare(path, state, wanted, inputs)
        if state is None:
            folder.clear()
            zeros: dict[str, int] = dict.fromkeys(("kept", *REASONS), 0)
            state = State(VERSION, wanted.plain(), inputs, counts=[dict(zeros) for _ in wanted.corpora])
        if state.result is None:
            _finish(wanted, folder, state, chunk, tell)
        folder.clear_work()
    try:
        report = json.loads((path / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        report = None
    if not isinstance(report, dict):
        raise folder.damaged(f"{REPORT} cannot be read")
    return report


def _finish(wanted: Preparation, folder: Folder, state: State, chunk: int, tell: Tell) -> None:
    try:
        if not state.selected:
            select(wanted, folder, state, chunk, tell)
        _check_enough(wanted, state)
    except DataError:
        folder.clear()  # sources or filters must change first, which invalidates all of this
        raise
    vectors_NE = _embed(wanted, folder, state, chunk, tell)
    report = _cluster(wanted, folder, state, vectors_NE, tell)
    folder.write(REPORT, json.dumps(report, indent=1, ensure_ascii=False))
    folder.save(state)


# ----------------------------------------------------------------------------------------------------- what was there
def _inputs(wanted: Preparation, state: State | None) -> dict[str, dict[str, Any]]:
    known = state.inputs if state else {}
    sources = (*wanted.corpora, *wanted.held_out_documents, *wanted.held_out_questions)
    return {s.name: input_of(s.path, s.split, s.hub_config, known.get(s.name)) for s in sources}


def _compare(path: Path, state: State, wanted: Preparation, inputs: dict[str, dict[str, Any]]) -> None:
    settings = wanted.plain()
    for name in sorted(settings.keys() | state.settings.keys()):
        if settings.get(name) != state.settings.get(name):
            raise ClustersFolderError(
                f"The clusters in {path} were built with another value of {name} ({_shown(state.settings.get(name))}, "
                f"now {_shown(settings.get(name))}); choose another folder, or use --rebuild."
            )
    for name, found in inputs.items():
        if found["hash"] != state.inputs.get(name, {}).get("hash"):
            raise ClustersFolderError(
                f"{name} has changed since the clusters in {path} were built from it; choose another folder, or "
                "use --rebuild."
            )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + " …"


def _check_enough(wanted: Preparation, state: State) -> None:
    """Raises DataError if some corpora have too few documents for a cluster."""
    for families, _, count in _groups(wanted, state):
        if count >= wanted.sizes.least:
            continue
        sources = [place for place, corpus in enumerate(wanted.corpora) if corpus.families == families]
        dropped = {reason: sum(state.counts[place][reason] for place in sources) for reason in REASONS}
        reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.items() if number) or "none dropped"
        raise DataError(
            f"{', '.join(wanted.corpora[place].path for place in sources)}: {count} documents are left ({reasons}), "
            f"but a cluster needs {wanted.sizes.least}; add documents, relax the filters or lower "
            "clusters.min_documents."
        )


def _groups(wanted: Preparation, state: State) -> Iterator[tuple[tuple[str, ...], np.ndarray, int]]:
    """(families, document numbers, how many) of each group of corpora that are clustered together."""
    ends = np.cumsum([counts["kept"] for counts in state.counts])
    spans = {place: np.arange(end - state.counts[place]["kept"], end) for place, end in enumerate(ends)}
    for families in dict.fromkeys(corpus.families for corpus in wanted.corpora):
        rows = np.concatenate([spans[place] for place, c in enumerate(wanted.corpora) if c.families == families])
        yield families, rows, len(rows)


# ---------------------------------------------------------------------------------------------------------- embedding
def _embed(wanted: Preparation, folder: Folder, state: State, chunk: int, tell: Tell) -> np.ndarray:
    """The vectors of all documents, memory-mapped."""
    kept = KeptDocuments(folder, state)
    if state.embedded < state.kept:
        encode = _encoder(wanted, folder, kept, tell)
        while state.embedded < state.kept:
            numbers = range(state.embedded, min(state.embedded + chunk, state.kept))
            documents = [kept[number] for number in numbers]
            vectors_NE = np.asarray(encode([document.contents for document in documents]), "<f4")
            if not np.isfinite(vectors_NE).all():
                bad = documents[int((~np.isfinite(vectors_NE).all(axis=1)).argmax())]
                raise UserError(f"The encoder returned a non-finite vector for document {bad.id}; use another.")
            state.width = vectors_NE.shape[1]
            folder.append(VECTORS, vectors_NE.itemsize * state.width * state.embedded, vectors_NE.tobytes())
            state.embedded = numbers.stop
            folder.save(state)
            tell("documents embedded", state.embedded, state.kept)
    return folder.array(VECTORS, "<f4", (state.kept, state.width))


def _encoder(wanted: Preparation, folder: Folder, kept: KeptDocuments, tell: Tell) -> Encoder:
    if isinstance(wanted.encoder, Neural):
        return wanted.encoder.load()
    file = folder.work / EMBEDDER
    if not file.exists():
        HashedLexical.fit(kept, wanted.encoder, lambda done, total: tell("documents counted", done, total)).save(file)
    return HashedLexical.load(file).passages


# --------------------------------------------------------------------------------------------------------- clustering
def _cluster(wanted: Preparation, folder: Folder, state: State, vectors_NE: np.ndarray, tell: Tell) -> dict[str, Any]:
    """Writes clusters.jsonl, records it in `state` and returns the report."""
    chosen: list[tuple[str, np.ndarray]] = []
    not_chosen = too_long = 0
    tokens_N = _tokens(wanted, KeptDocuments(folder, state), tell)
    for number, (families, rows, count) in enumerate(_groups(wanted, state)):
        found = clusters(vectors_NE, rows, wanted.sizes, (wanted.seed, number),
                         lambda done, total: tell("documents clustered", done, total), tokens_N)  # fmt: skip
        taken = _some(found, wanted.per_family, len(families), (wanted.seed, number))
        too_long += count - sum(map(len, found))
        not_chosen += sum(map(len, found)) - sum(map(len, taken))
        chosen += [(families[place % len(families)], members) for place, members in enumerate(taken)]
    if not chosen:
        raise DataError(
            f"no {wanted.sizes.least} documents of a cluster have at most {wanted.sizes.tokens} tokens together; raise "
            "clusters.max_tokens, or lower clusters.max_characters or clusters.min_documents."
        )
    state.result = _write(folder, KeptDocuments(folder, state), chosen, tell)
    return _report(wanted, state, chosen, {TOO_LONG: too_long, NOT_CHOSEN: not_chosen})


def _tokens(wanted: Preparation, kept: KeptDocuments, tell: Tell) -> np.ndarray | None:
    """The tokens of each document with its title; None if nothing bounds them."""
    if wanted.tokens is None or wanted.sizes.tokens is None:
        return None
    counts = np.zeros(len(kept), np.int64)
    for number in range(len(kept)):
        counts[number] = wanted.tokens.count(kept[number].contents)
        if (number + 1) % 1000 == 0 or number + 1 == len(kept):
            tell("documents measured", number + 1, len(kept))
    return counts


def _some(found: list[np.ndarray], per_family: int | None, families: int, seed: tuple[int, ...]) -> list[np.ndarray]:
    """At most per_family clusters for each family, drawn at random in their original order."""
    if per_family is None or len(found) <= per_family * families:
        return found
    order = np.random.default_rng([*(1 + s for s in seed), 1]).permutation(len(found))
    return [found[place] for place in np.sort(order[: per_family * families])]


def _write(folder: Folder, kept: KeptDocuments, chosen: list[tuple[str, np.ndarray]], tell: Tell) -> Written:
    digest, size = hashlib.blake2b(digest_size=16), 0
    with replaced(folder.path / CLUSTERS) as part, part.open("wb", buffering=BLOCK) as file:
        for number, (family, members) in enumerate(chosen):
            documents = _apart([vars(kept[int(member)]) for member in members])
            row = {"id": f"c{number:06d}", "family": family, "documents": documents}
            line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
            file.write(line)
            digest.update(line)
            size += len(line)
            if (number + 1) % 1000 == 0 or number + 1 == len(chosen):
                tell("clusters written", number + 1, len(chosen))
    return Written(size, digest.hexdigest())


def _apart(documents: list[dict[str, str]]) -> list[dict[str, str]]:
    """The documents of one cluster with unique ids: later ones with the same id get a number appended."""
    taken: set[str] = set()
    for document in documents:
        name, number = document["id"], 1
        while document["id"] in taken:
            number += 1
            document["id"] = f"{name}-{number}"
        taken.add(document["id"])
    return documents


def _report(
    wanted: Preparation, state: State, chosen: list[tuple[str, np.ndarray]], left_out: dict[str, int]
) -> dict[str, Any]:
    sizes = [len(members) for _, members in chosen]
    dropped = {reason: sum(counts[reason] for counts in state.counts) for reason in REASONS} | left_out
    return {
        "read": state.read,
        "dropped": dropped,
        "kept": sum(sizes),
        "clusters": len(chosen),
        "families": {family: len(list(group)) for family, group in groupby(sorted(family for family, _ in chosen))},
        "documents_per_cluster": {"mean": sum(sizes) / len(sizes), "smallest": min(sizes), "largest": max(sizes)},
        "sources": [_of_source(corpus, counts) for corpus, counts in zip(wanted.corpora, state.counts, strict=True)],
        "examples": state.examples,
    }


def _of_source(corpus: ClusterCorpus, counts: dict[str, int]) -> dict[str, Any]:
    return {"path": corpus.path, "read": sum(counts.values()), **counts}
