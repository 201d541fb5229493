"""The lexical encoder against a direct BM25, and the interface for other encoders."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scope_jax.data.corpus import Corpus, Document
from scope_jax.retrieval import embed
from scope_jax.retrieval.embed import HashedLexical, PrefixedEncoder

TEXTS = {
    "Danube": "The Danube is a river of Europe. It begins in the Black Forest and ends in the Black Sea.",
    "Amazon": "The Amazon is a river of South America and the largest by water.",
    "Peru": "Peru is a country of South America. Its capital is Lima; its money is the sol.",
    "Lima": "Lima is the capital of Peru.",
    "Ponies": "Ponies are small horses.",
    "Éire": "Éire is the Irish name of Ireland.",
}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_documents(Document(str(i), t, x) for i, (t, x) in enumerate(TEXTS.items()))


@pytest.fixture(scope="module")
def wide(corpus: Corpus) -> HashedLexical:
    return HashedLexical.fit(corpus, 1 << 16)  # so wide that features hardly collide


def bm25(corpus: Corpus, query: str) -> np.ndarray:
    """The formula of the docstring, written out."""

    def words(text: str) -> list[str]:
        return [embed._singular(w) for w in re.findall(r"\w+", text.lower().replace("é", "e"))]

    def grams(tokens: list[str]) -> list[str]:
        return [g for w in tokens if len(w) > 3 for g in {f"<{w}>"[i : i + 3] for i in range(len(w))}]

    documents = [words(d.title) + words(d.contents) for d in corpus.documents(0, len(corpus))]
    scores = np.zeros(len(corpus))
    for kind, weight in ((list, 1.0), (grams, embed.GRAM_WEIGHT)):
        counts = [Counter(kind(tokens)) for tokens in documents]
        mean = np.mean([c.total() for c in counts])
        for feature, times in Counter(kind(words(query))).items():
            holding = sum(feature in c for c in counts)
            if holding:
                idf = math.log(1 + (len(corpus) - holding + 0.5) / (holding + 0.5))
                for row, c in enumerate(counts):
                    tf = c[feature]
                    damp = embed.K1 * (1 - embed.B + embed.B * c.total() / mean)
                    scores[row] += weight * times * idf * tf * (embed.K1 + 1) / (tf + damp)
    return scores


@pytest.mark.parametrize(
    "query", ["capital of Peru", "which river ends in the black sea", "small pony", "South america"]
)
def test_scores_are_bm25_up_to_one_factor(corpus: Corpus, wide: HashedLexical, query: str):
    passages_NE = wide.passages([d.contents for d in corpus.documents(0, len(corpus))])
    got = (wide.queries([query]) @ passages_NE.T)[0]
    want = bm25(corpus, query)
    factor = (got @ want) / (want @ want)
    np.testing.assert_allclose(got, factor * want, atol=0.01 * got.max())


def test_vectors_have_length_one(corpus: Corpus, wide: HashedLexical):
    long = "Danube\n" + " ".join(f"word{i}" for i in range(500))  # longer than any passage of the fitting
    vectors = [wide.passages([d.contents for d in corpus.documents(0, 6)] + [long]), wide.queries(["Lima", "Peru sol"])]
    for vectors_NE in vectors:
        assert vectors_NE.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors_NE, axis=1), 1, atol=1e-6)


def test_a_vector_does_not_depend_on_its_batch(corpus: Corpus):
    encoder = HashedLexical.fit(corpus, 64)
    contents = [d.contents for d in corpus.documents(0, len(corpus))]
    together, alone = encoder.passages(contents), np.concatenate([encoder.passages([c]) for c in contents])
    assert np.array_equal(together, alone)
    queries = ["capital of Peru", "the largest river by water", "Éire"]
    assert np.array_equal(
        encoder.queries(queries), np.concatenate([encoder.queries([q]) for q in reversed(queries)])[::-1]
    )


def test_plurals_accents_and_misspellings_match(corpus: Corpus, wide: HashedLexical):
    titles = list(TEXTS)
    passages_NE = wide.passages([d.contents for d in corpus.documents(0, len(corpus))])
    best = (wide.queries(["pony", "eire", "Danubee"]) @ passages_NE.T).argmax(axis=1)
    assert [titles[row] for row in best] == ["Ponies", "Éire", "Danube"]


def test_nothing_to_match_is_zero(wide: HashedLexical):
    queries_QE = wide.queries(["", "?!", "xqzv", "Lima"])
    assert queries_QE.any(axis=1).tolist() == [False, False, False, True]


def test_saved_weights_are_the_same(corpus: Corpus, tmp_path: Path):
    encoder = HashedLexical.fit(corpus, 64)
    encoder.save(tmp_path / "e.npz")
    again = HashedLexical.load(tmp_path / "e.npz")
    assert again.identity == encoder.identity
    assert np.array_equal(again.queries(["river of Europe"]), encoder.queries(["river of Europe"]))
    assert np.array_equal(again.passages(["Rhine\nA new river"]), encoder.passages(["Rhine\nA new river"]))


def test_identity_tells_weights_apart(corpus: Corpus):
    other = Corpus.from_documents(corpus.documents(0, 5))
    identities = {HashedLexical.fit(c, dim).identity for c in (corpus, other) for dim in (64, 128)}
    assert len(identities) == 4
    assert HashedLexical.fit(corpus, 64).identity in identities


def test_damaged_weights(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "e.npz"
    HashedLexical.fit(corpus, 64).save(file)
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"no zip"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="missing or damaged"):
            HashedLexical.load(file)
    with pytest.raises(ValueError, match="missing or damaged"):
        HashedLexical.load(tmp_path / "none.npz")
    file.write_bytes(whole)
    monkeypatch.setattr(embed, "_CONSTANTS", embed._CONSTANTS + 1)
    with pytest.raises(ValueError, match="another version"):
        HashedLexical.load(file)


def test_too_few_coordinates(corpus: Corpus):
    with pytest.raises(ValueError, match="is too small"):
        HashedLexical.fit(corpus, 8)


def test_a_passed_encoder_gets_its_prefixes():
    seen: list[str] = []

    def encode(texts):
        seen.extend(texts)
        return np.asarray([[3.0, 4.0]] * len(texts), np.float64)

    encoder = PrefixedEncoder(encode, "toy-1", "query: ", "passage: ")
    np.testing.assert_allclose(encoder.queries(["a"]), [[0.6, 0.8]], rtol=1e-6)
    assert encoder.passages(["t\nb", "c"]).dtype == np.float32
    assert seen == ["query: a", "passage: t\nb", "passage: c"]
    crooked = PrefixedEncoder(lambda texts: np.zeros((1, 2), np.float32), "toy-2", "", "")
    with pytest.raises(ValueError, match="toy-2 returned shape"):
        crooked.queries(["a", "b"])
