"""The first step: selects the documents to keep, in one pass over the sources in order, a chunk at a time.

A row is dropped for the first of these reasons:

    low_quality            its score is below the threshold
    too_short, too_long    characters of the text
    not_prose              words.is_prose
    evaluation_question    contains a phrase of a held-out question or answer
    evaluation_document    near-duplicate of a held-out document
    duplicate              near-duplicate of an earlier document that was kept

After each chunk the documents, their offsets and MinHash values are on disk and recorded in the manifest. On resuming,
rows already processed are skipped, and the near-duplicate tables are rebuilt from the saved values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from scope_jax.data.corpus import DOCUMENT, passage
from scope_jax.data.rows import DataError, Row, check_columns, optional, read, required
from scope_jax.retrieval.clusters.duplicates import NearDuplicates
from scope_jax.retrieval.clusters.folder import DOCUMENTS, OFFSETS, SIGNATURES, Folder, KeptDocuments, State, Tell
from scope_jax.retrieval.clusters.settings import CorpusSource, Filters, Preparation
from scope_jax.retrieval.clusters.words import HeldOutPhrases, is_prose
from scope_jax.text.strict_json import kind_of

QUALITY = "quality"  # the column of a document's score
FIELDS = (*DOCUMENT, QUALITY)
REASONS = (
    "low_quality", "too_short", "too_long", "not_prose", "evaluation_question", "evaluation_document", "duplicate",
)  # fmt: skip
EXAMPLES = 5  # of each reason, for the report
Document = dict[str, str]  # id, title, text


@dataclass(frozen=True)
class Drop:
    """Why a row is dropped: one of REASONS, and a detail."""

    reason: str
    why: str


def select(wanted: Preparation, folder: Folder, state: State, chunk: int, tell: Tell) -> None:
    """Reads the sources from row `state.read` to the end. Raises DataError for an invalid row."""
    sieve = Sieve(wanted, folder, state)
    total = sum(state.inputs[source.name]["rows"] for source in wanted.corpora)
    rows = islice(_rows(wanted.corpora), state.read, None)
    while batch := list(islice(rows, chunk)):
        kept: list[Document] = []
        signatures = []
        for place, where, row in batch:
            verdict = sieve.judge(wanted.corpora[place], where, row, state.read)
            state.read += 1
            if isinstance(verdict, Drop):
                state.counts[place][verdict.reason] += 1
                if len(examples := state.examples.setdefault(verdict.reason, [])) < EXAMPLES:
                    examples.append(f"{where}: {verdict.why}")
            else:
                state.counts[place]["kept"] += 1
                kept.append(verdict[0])
                signatures.append(verdict[1])
        _store(folder, state, kept, signatures)
        tell("documents read", state.read, max(total, state.read))
    state.selected = True
    folder.save(state)


def _rows(sources: tuple[CorpusSource, ...]) -> Iterator[tuple[int, str, Row]]:
    def of(place: int, source: CorpusSource) -> Iterator[tuple[int, str, Row]]:
        check_columns(source.path, source.columns, FIELDS)
        for where, row in read(source.path, source.split, source.hub_config):
            yield place, where, row

    return chain.from_iterable(of(place, source) for place, source in enumerate(sources))


class Sieve:
    """Judges rows one after the other; later rows are compared with those it has kept."""

    def __init__(self, wanted: Preparation, folder: Folder, state: State) -> None:
        filters = wanted.filters
        self._filters = filters
        self._near = NearDuplicates(filters.similarity, filters.permutations, filters.shingle)
        self._phrases = HeldOutPhrases(filters.phrase, filters.shortest_phrase)
        self._names: list[str] = []  # of the texts in `_near`; held-out texts come first
        for source in wanted.held_out_questions:
            for where, row in read(source.path, source.split, source.hub_config):
                self._phrases.add(source.texts(row, where, source.columns))
                for signature_W in self._near.signatures(source.documents(row, where, source.columns)):
                    self._remember(where, signature_W)
        for source in wanted.held_out_documents:
            check_columns(source.path, source.columns, DOCUMENT)
            for where, row in read(source.path, source.split, source.hub_config):
                self._remember(where, self._near.signatures([_document(row, where, source, 0)["text"]])[0])
        self._held_out = len(self._names)
        kept = KeptDocuments(folder, state)
        signatures_NW = folder.array(SIGNATURES, "<u4", (state.kept, filters.permutations))
        for number, signature_W in enumerate(signatures_NW):
            self._remember(kept[number].id, np.array(signature_W))

    def _remember(self, name: str, signature_W: np.ndarray) -> None:
        self._near.add(signature_W)
        self._names.append(name)

    def judge(self, source: CorpusSource, where: str, row: Row, number: int) -> tuple[Document, np.ndarray] | Drop:
        """The document and its MinHash values, or why it is dropped."""
        drop = _by_score(source, where, row, self._filters) or _by_length(source, where, row, self._filters)
        if drop:
            return drop
        document = _document(row, where, source, number)
        if self._filters.prose and not is_prose(document["text"]):
            return Drop("not_prose", "breaks one of Gopher's rules")
        phrase = self._phrases.find(f"{document['title']}\n{document['text']}")
        if phrase is not None:
            return Drop("evaluation_question", f"holds “{phrase}”")
        signature_W = self._near.signatures([document["text"]])[0]
        found = self._near.nearest(signature_W)
        if found is None:
            self._remember(document["id"], signature_W)
            return document, signature_W
        place, similarity = found
        reason = "evaluation_document" if place < self._held_out else "duplicate"
        return Drop(reason, f"{similarity:.2f} like {self._names[place]}")


def _by_score(source: CorpusSource, where: str, row: Row, filters: Filters) -> Drop | None:
    if QUALITY not in source.columns:
        return None
    column, score = required(row, where, QUALITY, (), source.columns)
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise DataError(f"{where}: `{column}` holds {kind_of(score)}, not a number; write the document's score.")
    return None if score >= filters.min_quality else Drop("low_quality", f"a score of {score:.12g}")


def _by_length(source: CorpusSource, where: str, row: Row, filters: Filters) -> Drop | None:
    _, text = optional(row, where, "text", DOCUMENT["text"], source.columns)
    size = len(text.strip()) if isinstance(text, str) else filters.min_characters  # other types fail later
    if size < filters.min_characters:
        return Drop("too_short", f"{size} characters")
    return Drop("too_long", f"{size} characters") if size > filters.max_characters else None


def _document(row: Row, where: str, source: CorpusSource, number: int) -> Document:
    return passage(row, where, source.columns, number)


def _store(folder: Folder, state: State, kept: list[Document], signatures: list[np.ndarray]) -> None:
    lines = [(json.dumps(document, ensure_ascii=False) + "\n").encode() for document in kept]
    offsets = state.document_bytes + np.concatenate([[0], np.cumsum([len(line) for line in lines])[:-1]])
    if kept:
        width = signatures[0].nbytes
        folder.append(DOCUMENTS, state.document_bytes, b"".join(lines))
        folder.append(OFFSETS, state.kept * 8, offsets.astype("<u8").tobytes())
        folder.append(SIGNATURES, state.kept * width, np.stack(signatures).astype("<u4").tobytes())
    state.kept += len(kept)
    state.document_bytes += sum(map(len, lines))
    folder.save(state)
