"""Indices over an embedding model: built from a card, interrupted and resumed, rejected, sharded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.config import Config, RetrievalSection
from scope_jax.data.corpus import Corpus, Document
from scope_jax.games import load_card
from scope_jax.models.encoders import encoder
from scope_jax.models.encoders.texts import TextEncoder, program_length
from scope_jax.models.files.weights import WeightsError
from scope_jax.retrieval.build import IndexFolderError, build_index, open_index
from scope_jax.retrieval.embed import HashedLexical, PrefixedEncoder
from scope_jax.run import indexing
from tests.eight import on_eight_devices
from tests.retrieval.tiny_encoders import WORDS, write_bert, write_modules

NAMES = [f"{one} {two}" for one in WORDS[7:14] for two in WORDS[7:14]]
DOCUMENTS = [Document(f"d{i}", name, f"The {name} lies near the sea.") for i, name in enumerate(NAMES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def texts(folder: Path) -> TextEncoder:
    return TextEncoder.load(folder, max_tokens=32, rows=8)


@pytest.fixture
def card(tmp_path: Path, folder: Path) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": d.id, "title": d.title, "text": d.text}) + "\n" for d in DOCUMENTS))
    path = tmp_path / "card.toml"
    path.write_text(
        f'system = "ssp"\n[model]\ncheckpoint = "none"\n[data]\nanswers = "none"\n[train]\nsteps = 1\n'
        f'[ssp]\ngrader = "exact-match"\n[retrieval]\ncorpus = "{corpus}"\nindex = "{tmp_path / "index"}"\n'
        f'[retrieval.encoder]\ncheckpoint = "{folder}"\nmax_tokens = 32\nbatch = 16\n'
    )
    return path


def index(card: Path, *sets: str) -> Any:
    arguments = ["index", str(card), "--json", *(part for value in sets for part in ("--set", value))]
    return CliRunner().invoke(app, arguments)


def table_of(cfg: Config) -> RetrievalSection:
    assert cfg.retrieval is not None
    return cfg.retrieval


def test_index_and_search_from_a_card(card: Path):
    done = index(card)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["passages"] == len(DOCUMENTS)
    assert f"passages embedded {len(DOCUMENTS)}/{len(DOCUMENTS)}" in done.stderr
    cfg = load_card(card)
    retriever = indexing.open_or_build_index(table_of(cfg), card.parent, mesh=None)
    # A passage without its prefix is its own nearest neighbour when queries get the passages' prefix.
    same = load_card(card, ['retrieval.encoder.query_prefix="passage: "', f"retrieval.index={card.parent / 'same'}"])
    mirror = indexing.open_or_build_index(table_of(same), card.parent, mesh=None)
    for document in DOCUMENTS[::10]:
        hits = mirror([document.contents], 3)[0]
        assert hits[0].document == document and hits[0].score == pytest.approx(1, abs=1e-5)
        plain = retriever([document.contents], 3)[0]
        assert plain[0].score < 1 - 1e-4  # the query's own prefix really changes its vector
    assert "query: " in indexing.PREFIXES["bert"] and "Query:" in indexing.PREFIXES["qwen3"][0]


def test_a_result_does_not_depend_on_the_batch(card: Path):
    assert index(card).exit_code == 0
    retriever = indexing.open_or_build_index(table_of(load_card(card)), card.parent, mesh=None)
    queries = [" ".join(WORDS[i : i + 1 + i % 6]) for i in range(8, 24)]
    alone = [retriever([query], 3)[0] for query in queries]
    for size in (3, 11, 16):
        batches = [retriever(queries[first : first + size], 3) for first in range(0, len(queries), size)]
        assert [hits for batch in batches for hits in batch] == alone  # bits of scores included
    assert len({hits[0].score for hits in alone}) > 5


def test_settings_that_need_another_index_are_refused(card: Path, tmp_path: Path):
    assert index(card).exit_code == 0
    assert index(card, "retrieval.encoder.batch=32", "retrieval.encoder.compute_dtype=bfloat16").exit_code == 0
    other = write_bert(tmp_path / "other", seed=1)
    for change in (f"checkpoint={other}", "max_tokens=31", "query_prefix=q", "passage_prefix=p"):
        refused = index(card, f"retrieval.encoder.{change}")
        assert refused.exit_code == 2 and "built from another encoder" in refused.stderr
    lexical = card.read_text().split("[retrieval.encoder]")[0]
    card.write_text(lexical)
    refused = index(card)
    assert refused.exit_code == 2 and "built from another encoder" in refused.stderr


class Stop(Exception):
    pass


def test_a_stopped_build_ends_with_the_same_bits(texts: TextEncoder, tmp_path: Path):
    corpus = Corpus.from_documents(DOCUMENTS)
    embedder = PrefixedEncoder(texts, "tiny", "query: ", "passage: ")

    def build(folder: Path, limit: int) -> None:
        def progress(done: int, total: int) -> None:
            if done >= limit:
                raise Stop

        build_index(corpus, embedder, folder, kind="exact", scann=None, chunk=10, progress=progress)

    build(tmp_path / "whole", len(DOCUMENTS) + 1)
    for limit in (10, 30):
        with pytest.raises(Stop):
            build(tmp_path / "stopped", limit)
    with pytest.raises(IndexFolderError, match="partly built"):
        open_index(tmp_path / "stopped", embedder=embedder)
    build(tmp_path / "stopped", len(DOCUMENTS) + 1)
    files = [path for path in (tmp_path / "whole" / "embeddings.zarr").rglob("*") if path.is_file()]
    assert len(files) > 4
    for path in files:
        assert (tmp_path / "stopped" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()


def test_fitted_weights_are_read_back(card: Path, monkeypatch: pytest.MonkeyPatch):
    card.write_text(card.read_text().split("[retrieval.encoder]")[0])
    fits: list[int] = []
    fit: Any = HashedLexical.fit
    monkeypatch.setattr(HashedLexical, "fit", staticmethod(lambda *args: fits.append(1) or fit(*args)))
    first = index(card, "retrieval.dim=64")
    assert first.exit_code == 0 and f"passages counted {len(DOCUMENTS)}/" in first.stderr
    assert index(card, "retrieval.dim=64").exit_code == 0 and len(fits) == 1
    assert "another encoder" in index(card, "retrieval.dim=128").stderr and len(fits) == 2
    weights = card.parent / "index" / "embedder.npz"
    weights.write_bytes(weights.read_bytes()[:100])
    damaged = index(card, "retrieval.dim=64")
    assert damaged.exit_code == 2 and "damaged" in damaged.stderr


def test_fingerprints(folder: Path, tmp_path: Path):
    same, other = write_bert(tmp_path / "same"), write_bert(tmp_path / "other", seed=1)
    assert encoder.fingerprint(same) == encoder.fingerprint(folder) != encoder.fingerprint(other)
    seen = {encoder.fingerprint(same)}
    write_modules(same, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    seen.add(encoder.fingerprint(same))
    (same / "vocab.txt").write_text((same / "vocab.txt").read_text() + "more\n")
    seen.add(encoder.fingerprint(same))
    assert len(seen) == 3


def test_pooling_follows_the_folders_config(folder: Path, texts: TextEncoder, tmp_path: Path):
    copy = write_bert(tmp_path / "copy")
    assert (encoder.load_config(copy).pooling, encoder.load_config(copy).normalize) == ("mean", True)
    for flags, mode in (
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["lasttoken"], "pooling_mode_cls_token": True}, "last"),
        ({"pooling_mode_cls_token": False}, "mean"),  # as in sentence-transformers
    ):
        write_modules(copy, flags, normalize=False)
        cfg = encoder.load_config(copy)
        assert (cfg.model, cfg.pooling, cfg.normalize) == (texts.cfg.model, mode, False)
    write_modules(copy, {"pooling_mode": "lasttoken"}, normalize=False)
    longer = TextEncoder.load(copy, max_tokens=32, rows=8)(["the river"])
    assert np.linalg.norm(longer) > 1.1  # neither mean nor length one


def test_encoders_that_do_not_fit_give_one_clear_error(folder: Path, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        encoder.load_config(tmp_path / "none")
    with pytest.raises(ValueError, match="64 positions"):
        TextEncoder.load(folder, max_tokens=65, rows=8)
    with pytest.raises(ValueError, match="no room"):
        TextEncoder.load(folder, max_tokens=2, rows=8)
    small = write_bert(tmp_path / "small", vocab_size=20)
    with pytest.raises(ValueError, match="it has only 20 embeddings"):
        TextEncoder.load(small, max_tokens=32, rows=8)(["xyz"])
    for changes, words in (
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"architectures": ["MPNetModel"]}, "MPNetModel"),
    ):
        odd = write_bert(tmp_path / "odd")
        (odd / "config.json").write_text(json.dumps(json.loads((odd / "config.json").read_text()) | changes))
        with pytest.raises(WeightsError, match=words):
            encoder.load_config(odd)


def test_program_lengths():
    lengths = sorted({program_length(n, 512) for n in range(1, 513)})
    assert lengths == [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512]
    assert all(program_length(n, 300) >= n for n in range(1, 301)) and program_length(290, 300) == 300


def test_eight_devices(folder: Path, texts: TextEncoder, tmp_path: Path):
    """Rows over 8 fake devices = one device; index and search over them too (in a process of their own)."""
    contents = [d.contents for d in DOCUMENTS]
    (tmp_path / "texts.json").write_text(json.dumps(contents))
    facts = on_eight_devices("tests.retrieval.eight_devices", str(folder), str(tmp_path))
    assert facts["copies"] == 8 and facts["rows"] == 8
    single = texts(contents)
    assert np.abs(np.load(tmp_path / "vectors.npy") - single).max() <= 1e-6
    assert facts["nearest"] == (single @ single.T).argmax(1).tolist()
