"""From text to vectors: the encoder interface, and a lexical encoder that needs no weights and no download.

An `Embedder` maps passages and queries to vectors whose inner product is the score. `PrefixedEncoder` makes an embedder
of any function text → vector (E5 and similar models tell the two apart by a prefix); `HashedLexical` is a complete one.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float

from scope_jax.data.corpus import READ_ROWS, Document
from scope_jax.errors import UserError
from scope_jax.files import replaced

Encoder = Callable[[Sequence[str]], np.ndarray]  # texts -> float32 [N, E]
Progress = Callable[[int, int], None]  # (passages done, passages in all)


@runtime_checkable
class Passages(Protocol):
    """What an encoder is fitted on: a corpus, or anything else with documents by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Document: ...

    def batches(self, size: int, /) -> Iterator[list[Document]]: ...


@runtime_checkable
class Embedder(Protocol):
    """Maps passages and queries to vectors, of length one unless the model is made otherwise; their inner product is
    the score.

    `identity` changes whenever the vectors would: an index built with one identity cannot be searched with another.
    """

    @property
    def identity(self) -> str: ...

    def passages(self, contents: Sequence[str]) -> Float[np.ndarray, "N E"]:
        """Vectors of passages given as title, newline, text."""
        ...

    def queries(self, texts: Sequence[str]) -> Float[np.ndarray, "Q E"]:
        """Vectors of queries; all zeros for a query that cannot match anything."""
        ...


@dataclass(frozen=True)
class PrefixedEncoder:
    """Any encoder plus the prefixes it expects before queries and passages ("query: ", "passage: " for E5).

    `identity` names the model and its version. encode_queries: the same model in a form suited to a few short texts;
    None: `encode`. unit: vectors are L2-normalised here, whether or not the encoder did so; False for models whose
    score is the inner product of vectors of any length.
    """

    encode: Encoder
    identity: str
    query_prefix: str
    passage_prefix: str
    encode_queries: Encoder | None = None
    unit: bool = True

    def passages(self, contents: Sequence[str]) -> Float[np.ndarray, "N E"]:
        return self._vectors(self.encode, [self.passage_prefix + c for c in contents])

    def queries(self, texts: Sequence[str]) -> Float[np.ndarray, "Q E"]:
        return self._vectors(self.encode_queries or self.encode, [self.query_prefix + t for t in texts])

    def _vectors(self, encode: Encoder, texts: list[str]) -> np.ndarray:
        vectors_NE = np.asarray(encode(texts), np.float32)
        if vectors_NE.ndim != 2 or len(vectors_NE) != len(texts):
            raise UserError(
                f"The encoder {self.identity} returned shape {vectors_NE.shape} for {len(texts)} texts; "
                "it must return one row per text."
            )
        return normalised(vectors_NE) if self.unit else vectors_NE


def normalised(vectors_NE: Float[np.ndarray, "N E"]) -> Float[np.ndarray, "N E"]:
    """Each vector divided by its length; zeros stay zeros."""
    norms_N1 = np.linalg.norm(vectors_NE, axis=1, keepdims=True)
    return vectors_NE / np.where(norms_N1 > 0, norms_N1, 1)


# ----------------------------------------------------------------------------------------------- the lexical encoder
# BM25's usual constants; the other values were chosen by measurement (the table of `HashedLexical`).
K1, B = 1.2, 0.75
TITLE_COUNT = 2  # a word of the title counts as often as two of the text
GRAM, GRAM_WEIGHT = 3, 0.15  # letters of an n-gram, and weight of the n-gram score relative to the word score
PASSAGE_SHARE = 0.25  # exponent of the idf in passage vectors; query vectors get 1 minus it
BUCKETS = 4  # coordinates per feature, so that one collision affects only a quarter of it
NORM_SAMPLE = 8192  # passages sampled to find the longest vector

_WORD = re.compile(r"\w+")


class HashedLexical:
    """BM25 over words and letter trigrams, hashed into `dim` coordinates: a lexical substitute for a dense encoder.

    For query q and passage d, where f runs over the words of q (s: over the trigrams of its words, weight w = 0.15):

        score(q, d) = Σ_f idf(f)·tf_q(f)·sat(f, d) + w Σ_s idf(s)·tf_q(s)·sat(s, d)
        sat(f, d) = tf·(k1 + 1) / (tf + k1·(1 − b + b·len(d)/mean len)),  idf(f) = ln(1 + (N − n_f + ½)/(n_f + ½))

    (Robertson and Zaragoza 2009). Every feature has four signed coordinates, chosen by its hash (a count sketch), so
    the inner product of the two vectors is this sum plus collision noise of zero mean. BM25 needs passage vectors of
    different lengths, but an index expects unit vectors: the last coordinate pads each passage to length one and is
    zero in every query, so all scores are scaled alike.

    The weights (document frequencies, mean lengths, longest vector) are fitted on a corpus and saved with its index.
    A text's vector does not depend on the other texts of a batch.

    Evidence recall@3 / @5 on 31,379 passages of English Wikipedia (exact index; 350, 350 and 348 questions;
    benchmarks/retrieval.py), and the size of the vectors:

        dim                nq            hotpotqa      squad         MB
        512                .623 / .694   .533 / .628   .721 / .759    64
        1024               .654 / .774   .587 / .688   .842 / .871   129
        2048               .694 / .800   .595 / .709   .871 / .914   257
        4096               .706 / .809   .606 / .735   .905 / .925   514
        BM25, no sketch    .723 / .811   .629 / .745   .905 / .937     –

    At 2048, recall@5 falls to .746, .669 and .836 with one coordinate per feature instead of four, and to .766, .708
    and .859 if passages are L2-normalised instead of padded. TF-IDF reduced to 256 dimensions by an SVD has .21 on nq.
    Two busy cores take 8.6 s to fit, 8.4 s to embed and write, and .1 ms for a query.
    """

    def __init__(
        self, dim: int, features_F: np.ndarray, idf_F: np.ndarray, mean_lengths: tuple[float, float], top_norm: float
    ) -> None:
        self.dim = dim
        self._features_F = features_F  # uint64 hashes, ascending
        self._idf_F = idf_F
        self._mean_lengths = mean_lengths  # of words, of trigrams
        self._top_norm = top_norm
        digest = hashlib.blake2b(digest_size=16)
        for array in (features_F, idf_F, np.asarray([*mean_lengths, top_norm, *_CONSTANTS], np.float64)):
            digest.update(np.ascontiguousarray(array).tobytes())
        self.identity = f"hashed-lexical-{dim}-{digest.hexdigest()}"

    @staticmethod
    def fit(corpus: Passages, dim: int, progress: Progress | None = None) -> HashedLexical:
        """Fits the weights on a corpus in two passes, the second over at most 8,192 evenly spaced passages."""
        if dim < 16:
            raise UserError(f"A hashed embedding of {dim} dimensions is too small; use 1024 to 4096.")
        features_F, counts_F, mean_lengths = _document_frequencies(corpus, progress)
        idf_F = np.log1p((len(corpus) - counts_F + 0.5) / (counts_F + 0.5)).astype(np.float32)
        free = HashedLexical(dim, features_F, idf_F, mean_lengths, 1.0)
        top = 0.0
        stride = -(-len(corpus) // NORM_SAMPLE)
        rows = range(0, len(corpus), stride)
        for start in range(0, len(rows), READ_ROWS):
            contents = [corpus[row].contents for row in rows[start : start + READ_ROWS]]
            top = max(top, float(np.linalg.norm(free._raw_passages(contents), axis=1).max()))
        return HashedLexical(dim, features_F, idf_F, mean_lengths, top or 1.0)

    # ---------------------------------------------------------------------------------------------------- vectors
    def passages(self, contents: Sequence[str]) -> Float[np.ndarray, "N E"]:
        """Unit vectors; a passage vector longer than the longest one seen in fitting is scaled down to length one."""
        raw_NE = self._raw_passages(contents) / np.float32(self._top_norm)
        norms_N = np.linalg.norm(raw_NE, axis=1)
        raw_NE /= np.maximum(norms_N, 1)[:, None]
        raw_NE[:, -1] = np.sqrt(np.maximum(1 - norms_N**2, 0))
        return raw_NE

    def queries(self, texts: Sequence[str]) -> Float[np.ndarray, "Q E"]:
        """Unit vectors; zeros if no word and no trigram of the query occurs in the corpus."""
        words, grams = _count(texts, title_count=1)
        parts = []
        for counts, weight in ((words, 1.0), (grams, GRAM_WEIGHT)):
            idf_F = self._idf(counts.features_F, unseen=0.0)
            power_F = np.where(idf_F > 0, idf_F, 1) ** (1 - PASSAGE_SHARE) * (idf_F > 0)
            parts.append(_scale(counts.table_NF, power_F * np.float32(weight**0.5)) @ self._sketch(counts.features_F))
        return normalised(np.asarray((parts[0] + parts[1]).toarray(), np.float32))

    def _raw_passages(self, contents: Sequence[str]) -> np.ndarray:
        words, grams = _count(contents, TITLE_COUNT)
        rare = float(np.log1p(2 * len(self._features_F) + 1))  # idf of a feature that was not seen in fitting
        parts = []
        for counts, mean_length, weight in zip((words, grams), self._mean_lengths, (1.0, GRAM_WEIGHT), strict=True):
            idf_F = self._idf(counts.features_F, unseen=rare)
            scaled = _scale(_saturate(counts.table_NF, mean_length), idf_F**PASSAGE_SHARE * np.float32(weight**0.5))
            parts.append(scaled @ self._sketch(counts.features_F))
        return np.asarray((parts[0] + parts[1]).toarray(), np.float32)

    def _idf(self, features_F: np.ndarray, unseen: float) -> np.ndarray:
        if not len(self._features_F):
            return np.full(len(features_F), unseen, np.float32)
        place_F = np.minimum(np.searchsorted(self._features_F, features_F), len(self._features_F) - 1)
        return np.where(self._features_F[place_F] == features_F, self._idf_F[place_F], unseen).astype(np.float32)

    def _sketch(self, features_F: np.ndarray) -> sp.csr_matrix:
        """[F, E]: four entries of ±½ (so that a feature has length one) at coordinates given by the feature's hash."""
        draws_FM = _mix(features_F[:, None] + np.arange(1, BUCKETS + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
        columns_FM = ((draws_FM >> np.uint64(1)) % np.uint64(self.dim - 1)).astype(np.int32)
        signs_FM = np.where(draws_FM & np.uint64(1), 1, -1).astype(np.float32) / np.float32(BUCKETS**0.5)
        ends = np.arange(0, columns_FM.size + 1, BUCKETS)
        return sp.csr_matrix((signs_FM.ravel(), columns_FM.ravel(), ends), shape=(len(features_F), self.dim))

    # ----------------------------------------------------------------------------------------------------- saving
    def save(self, file: Path) -> None:
        """Writes the fitted weights as one .npz file, atomically."""
        with replaced(file) as part, open(part, "wb") as out:
            np.savez(
                out,
                dim=self.dim,
                features=self._features_F,
                idf=self._idf_F,
                scales=np.asarray([*self._mean_lengths, self._top_norm], np.float64),
                constants=_CONSTANTS,
            )

    @staticmethod
    def load(file: Path) -> HashedLexical:
        """The encoder that `save` wrote; raises ValueError if the file is missing, damaged or of another version."""
        try:
            with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as saved:
                constants, words, grams, top = saved["constants"], *saved["scales"]
                loaded = int(saved["dim"]), saved["features"], saved["idf"]
        except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
            raise UserError(f"The encoder weights in {file} are missing or damaged; build the index again.") from error
        if not np.array_equal(constants, _CONSTANTS):
            raise UserError(f"The encoder weights in {file} were fitted by another version; rebuild the index.")
        return HashedLexical(*loaded, (float(words), float(grams)), float(top))


_CONSTANTS = np.asarray([K1, B, TITLE_COUNT, GRAM, GRAM_WEIGHT, PASSAGE_SHARE, BUCKETS], np.float64)
_GOLDEN = 0x9E3779B97F4A7C15


# ------------------------------------------------------------------------------------------------------ text to counts
@dataclass(frozen=True)
class _EmbedCounts:
    """How often each feature occurs in each text; columns are in ascending order of the features' hashes.

    That order does not depend on the other texts in the batch, so neither does the order in which a row is summed.
    """

    features_F: np.ndarray  # uint64
    table_NF: sp.csr_matrix  # float32


def _count(contents: Sequence[str], title_count: int) -> tuple[_EmbedCounts, _EmbedCounts]:
    """Counts of words and of letter trigrams; words of the first line count `title_count` times."""
    vocabulary: dict[str, int] = {}
    columns: list[int] = []
    ends = [0]
    for text in contents:
        title, newline, _ = text.partition("\n")
        for word in _words(title) * (title_count - 1 if newline else 0) + _words(text):
            columns.append(vocabulary.setdefault(word, len(vocabulary)))
        ends.append(len(columns))
    shape = (len(contents), len(vocabulary))
    table = sp.csr_matrix((np.ones(len(columns), np.float32), columns, ends), shape=shape)
    table.sum_duplicates()
    return _ordered(table, [f"w{word}" for word in vocabulary]), _count_grams(table, vocabulary)


def _count_grams(words_NF: sp.csr_matrix, vocabulary: dict[str, int]) -> _EmbedCounts:
    grams: dict[str, int] = {}
    columns: list[int] = []
    ends = [0]
    for word in vocabulary:
        if len(word) > GRAM:
            marked = f"<{word}>"
            columns += {grams.setdefault(marked[i : i + GRAM], len(grams)) for i in range(len(marked) - GRAM + 1)}
        ends.append(len(columns))
    shape = (len(vocabulary), len(grams))
    spelled = sp.csr_matrix((np.ones(len(columns), np.float32), columns, ends), shape=shape)
    return _ordered(sp.csr_matrix(words_NF @ spelled), [f"g{gram}" for gram in grams])


def _ordered(table_NF: sp.csr_matrix, names: list[str]) -> _EmbedCounts:
    hashes_F = np.fromiter(
        (
            int.from_bytes(hashlib.blake2b(n.encode("utf-8", "replace"), digest_size=8).digest(), "little")
            for n in names
        ),
        np.uint64,
        len(names),
    )
    order_F = np.argsort(hashes_F, kind="stable")
    table = sp.csr_matrix(table_NF[:, order_F])
    table.sort_indices()
    return _EmbedCounts(hashes_F[order_F], table)


def _words(text: str) -> list[str]:
    """Lower-case words without accents and plural endings."""
    letters = unicodedata.normalize("NFKD", text.lower())
    return [_singular(word) for word in _WORD.findall("".join(c for c in letters if not unicodedata.combining(c)))]


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


# ------------------------------------------------------------------------------------------------------------ numbers
def _document_frequencies(
    corpus: Passages, progress: Progress | None
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """(hashes of all features, number of passages with each, (mean words, mean trigrams) of a passage)."""
    features_F, counts_F = np.empty(0, np.uint64), np.empty(0, np.int64)
    totals = np.zeros(2)
    done = 0
    for batch in corpus.batches(READ_ROWS):
        for kind, counts in enumerate(_count([d.contents for d in batch], TITLE_COUNT)):
            totals[kind] += counts.table_NF.sum()
            seen_F = np.bincount(counts.table_NF.indices, minlength=len(counts.features_F))
            features_F, place_F = np.unique(np.concatenate([features_F, counts.features_F]), return_inverse=True)
            counts_F = np.bincount(place_F, np.concatenate([counts_F, seen_F]), len(features_F)).astype(np.int64)
        done += len(batch)
        if progress is not None:
            progress(done, len(corpus))
    words, grams = totals / len(corpus)
    return features_F, counts_F, (float(words) or 1.0, float(grams) or 1.0)


def _saturate(table_NF: sp.csr_matrix, mean_length: float) -> sp.csr_matrix:
    lengths_N = np.asarray(table_NF.sum(axis=1)).ravel()
    damp_N = K1 * (1 - B + B * lengths_N / mean_length)
    damp = np.repeat(damp_N, np.diff(table_NF.indptr)).astype(np.float32)
    return _with_data(table_NF, table_NF.data * np.float32(K1 + 1) / (table_NF.data + damp))


def _scale(table_NF: sp.csr_matrix, weights_F: np.ndarray) -> sp.csr_matrix:
    return _with_data(table_NF, table_NF.data * weights_F.astype(np.float32)[table_NF.indices])


def _with_data(table: sp.csr_matrix, data: np.ndarray) -> sp.csr_matrix:
    return sp.csr_matrix((data, table.indices, table.indptr), shape=table.shape)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: similar inputs give unrelated bits (Steele, Lea and Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
