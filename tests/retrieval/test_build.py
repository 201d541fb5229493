"""Index folders: built without interruption or after kills, opened, damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.data.corpus import Corpus, Document
from scope_jax.retrieval.build import IndexFolderError, build_index, open_index
from scope_jax.retrieval.embed import HashedLexical, PrefixedEncoder
from scope_jax.retrieval.exact import ExactIndex
from scope_jax.retrieval.scann import ScannConfig, ScannIndex

ROOT = Path(__file__).parents[2]
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
DOCUMENTS = [Document(f"d{i}", f"River {n}", f"The river {n} is {m} miles long.") for i, (n, m) in enumerate(
    (n, m) for n in NUMBERS for m in NUMBERS
)]  # fmt: skip
SCANN = ScannConfig(num_leaves=4, leaves_to_search=2, dimensions_per_block=2, reorder=20, brute_force_below=10)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_documents(DOCUMENTS)


@pytest.fixture(scope="module")
def embedder(corpus: Corpus) -> HashedLexical:
    return HashedLexical.fit(corpus, 64)


@pytest.fixture(scope="module")
def finished(corpus: Corpus, embedder: HashedLexical, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both kinds; tests that damage it take a copy."""
    folder = tmp_path_factory.mktemp("index") / "folder"
    build_index(corpus, embedder, folder, kind="scann", scann=SCANN, chunk=32)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def build(corpus: Corpus, embedder: Any, folder: Path, **changes: Any) -> None:
    build_index(corpus, embedder, folder, **({"kind": "exact", "scann": None, "chunk": 32} | changes))


def contents_of(folder: Path) -> dict[str, bytes]:
    """The files that matter for searching; `datasets` writes a random fingerprint next to its Arrow files."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in ("state.json", "dataset_info.json")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_opened_is_what_was_built(corpus: Corpus, embedder: HashedLexical, finished: Path):
    passages_NE = embedder.passages([d.contents for d in DOCUMENTS])
    queries_QE = embedder.queries(["how long is river seven", "three miles"])
    index, opened, encoder = open_index(finished, kind="exact")
    assert isinstance(index, ExactIndex) and opened.fingerprint == corpus.fingerprint
    assert encoder.identity == embedder.identity
    scores_Qk, rows_Qk = index.search(queries_QE, 5)
    np.testing.assert_allclose(scores_Qk, np.sort(queries_QE @ passages_NE.T, axis=1)[:, ::-1][:, :5], atol=1e-6)
    assert {opened[int(row)].title for row in rows_Qk[0]} == {"River seven"}
    approximate, _, _ = open_index(finished)
    assert isinstance(approximate, ScannIndex) and approximate.config == SCANN
    assert approximate.search(queries_QE, 3)[1].shape == (2, 3)


def test_embeddings_are_chunked_zarr(finished: Path):
    meta = json.loads((finished / "embeddings.zarr" / "zarr.json").read_text())
    assert meta["shape"] == [100, 64] and meta["chunk_grid"]["configuration"]["chunk_shape"] == [32, 64]
    assert len([p for p in (finished / "embeddings.zarr").rglob("*") if p.is_file()]) == 1 + 4


class Kill(Exception):
    pass


class Counting:
    """An embedder that stops the build after some calls, and counts the passages it embedded."""

    def __init__(self, inner: HashedLexical, limit: int | None) -> None:
        self.inner, self.limit, self.calls, self.embedded = inner, limit, 0, 0
        self.identity = inner.identity

    def passages(self, contents):
        self.calls += 1
        if self.limit is not None and self.calls > self.limit:
            raise Kill
        self.embedded += len(contents)
        return self.inner.passages(contents)

    def queries(self, texts):
        return self.inner.queries(texts)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_stopped_build_resumes(corpus: Corpus, embedder: HashedLexical, tmp_path: Path, limit: int):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    build(corpus, Counting(embedder, None), whole)
    with pytest.raises(Kill):
        build(corpus, Counting(embedder, limit), stopped)
    with pytest.raises(IndexFolderError, match=r"partly built|has no index"):
        open_index(stopped, embedder=embedder)
    rest = Counting(embedder, None)
    steps: list[tuple[int, int]] = []
    build(corpus, rest, stopped, progress=lambda done, total: steps.append((done, total)))
    assert rest.embedded == (101 if limit == 0 else 100 - 32 * (limit - 1))  # one to find the width
    assert steps[-1] == (100, 100)
    assert contents_of(stopped) == contents_of(whole)
    again = Counting(embedder, None)
    build(corpus, again, stopped)
    assert again.embedded == 0


def test_a_killed_process_leaves_nothing_that_opens(corpus: Corpus, embedder: HashedLexical, tmp_path: Path):
    program = """
import os, signal, sys
from pathlib import Path
from scope_jax.retrieval.build import build_index
from scope_jax.data.corpus import Corpus
from scope_jax.retrieval.embed import HashedLexical
corpus = Corpus.load(Path(sys.argv[1]))
kill = lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done >= 64 else None
build_index(corpus, HashedLexical.fit(corpus, 64), Path(sys.argv[2]), kind="exact", scann=None, chunk=32, progress=kill)
"""
    corpus.save(tmp_path / "corpus")
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "corpus", folder], env=env, check=False)
    assert done.returncode == -9
    with pytest.raises(IndexFolderError, match=r"partly built \(64 of 100 passages\)"):
        open_index(folder)
    build(corpus, embedder, folder)
    build(corpus, embedder, whole)
    assert contents_of(folder) == contents_of(whole)


def test_two_builds_of_a_folder_wait_for_each_other(corpus: Corpus, embedder: HashedLexical, tmp_path: Path):
    both = [Counting(embedder, None), Counting(embedder, None)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: build(corpus, one, tmp_path / "new" / "index"), both))
    assert sorted(one.embedded for one in both) == [0, 101]  # the first passage twice: its width
    assert open_index(tmp_path / "new" / "index", embedder=embedder)[0].size == 100


def test_another_corpus_or_encoder_is_refused(corpus: Corpus, embedder: HashedLexical, copied: Path):
    before = contents_of(copied)
    other = Corpus.from_documents(DOCUMENTS[:50])
    with pytest.raises(IndexFolderError, match="built from another corpus"):
        build(other, embedder, copied)
    with pytest.raises(IndexFolderError, match="built from another encoder"):
        build(corpus, HashedLexical.fit(corpus, 128), copied)
    assert contents_of(copied) == before
    build(other, embedder, copied, rebuild=True)
    index, opened, _ = open_index(copied)
    assert index.size == len(opened) == 50 and not (copied / "scann").exists()


def test_new_scann_settings_keep_the_embeddings(corpus: Corpus, embedder: HashedLexical, copied: Path):
    counting = Counting(embedder, None)
    settings = ScannConfig(num_leaves=2, leaves_to_search=2, dimensions_per_block=2, reorder=20, brute_force_below=1000)
    build(corpus, counting, copied, kind="scann", scann=settings)
    index, _, _ = open_index(copied)
    assert isinstance(index, ScannIndex) and index.config == settings and counting.embedded == 0


def test_a_foreign_folder_is_left_alone(corpus: Corpus, embedder: HashedLexical, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(IndexFolderError, match="has other files and no index"):
        build(corpus, embedder, tmp_path, rebuild=True)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_of_somebodys_corpus_is_left_alone(corpus: Corpus, embedder: HashedLexical, tmp_path: Path):
    """data/corpus/passages.jsonl beside the index that is to be in data: a name of ours, but not our folder."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "passages.jsonl").write_text("the only copy")
    for rebuild in (False, True):
        with pytest.raises(IndexFolderError, match="has other files and no index"):
            build(corpus, embedder, tmp_path, rebuild=rebuild)
    assert (tmp_path / "corpus" / "passages.jsonl").read_text() == "the only copy"


def test_a_rebuild_that_was_stopped_while_it_deleted_goes_on(
    corpus: Corpus, embedder: HashedLexical, copied: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = contents_of(copied)

    def stop(path: Path) -> None:
        raise Kill

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", stop)
        with pytest.raises(Kill):
            build(corpus, embedder, copied, rebuild=True)
    with pytest.raises(IndexFolderError, match="has no index"):
        open_index(copied)
    build(corpus, embedder, copied)
    assert contents_of(copied) == {name: whole[name] for name in whole if not name.startswith("scann/")} | {
        "manifest.json": (copied / "manifest.json").read_bytes()
    }


def test_an_encoder_passed_to_the_build_must_be_passed_again(corpus: Corpus, tmp_path: Path):
    def encode(texts):
        return np.asarray([[len(t), t.count("e"), 1.0] for t in texts], np.float32)

    encoder = PrefixedEncoder(encode, "letters-1", "query: ", "passage: ")
    build(corpus, encoder, tmp_path / "index")
    with pytest.raises(IndexFolderError, match="encoder letters-1; pass that encoder"):
        open_index(tmp_path / "index")
    with pytest.raises(IndexFolderError, match="letters-1, not with letters-2"):
        open_index(tmp_path / "index", embedder=PrefixedEncoder(encode, "letters-2", "", ""))
    index, _, opened = open_index(tmp_path / "index", embedder=encoder)
    assert opened is encoder and index.search(encoder.queries(["The river"]), 2)[0].shape == (1, 2)


def test_encoders_with_invalid_output_are_rejected(corpus: Corpus, embedder: HashedLexical, tmp_path: Path):
    class Broken(Counting):
        def passages(self, contents):
            vectors = super().passages(contents)
            vectors[:, 0] = np.where([c.startswith("River two") for c in contents], np.nan, 0)
            return vectors

    with pytest.raises(ValueError, match="non-finite vector for passage d10;"):
        build(corpus, Broken(embedder, None), tmp_path / "a")
    with pytest.raises(ValueError, match="needs its settings"):
        build(corpus, embedder, tmp_path / "b", kind="scann")
    assert not (tmp_path / "b").exists()


def test_what_cannot_be_opened(corpus: Corpus, embedder: HashedLexical, copied: Path, tmp_path: Path):
    with pytest.raises(IndexFolderError, match=r"The index folder .* does not exist"):
        open_index(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(IndexFolderError, match="has no index"):
        open_index(tmp_path / "empty")
    build(corpus, embedder, tmp_path / "exact")
    with pytest.raises(IndexFolderError, match="has no ScaNN part"):
        open_index(tmp_path / "exact", kind="scann")
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(IndexFolderError, match="has format 99"):
        open_index(copied)


@pytest.mark.parametrize("name", ["manifest.json", "embedder.npz", "embeddings.zarr/zarr.json", "corpus/state.json"])
def test_a_truncated_file_gives_one_clear_error(copied: Path, name: str):
    (copied / name).write_bytes((copied / name).read_bytes()[:20])
    with pytest.raises(IndexFolderError, match=r"is damaged: .*; delete the folder and build it again") as caught:
        open_index(copied, kind="exact")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["embedder.npz", "embeddings.zarr", "corpus", "scann"])
def test_a_missing_part_gives_one_clear_error(copied: Path, name: str):
    shutil.rmtree(copied / name) if (copied / name).is_dir() else (copied / name).unlink()
    with pytest.raises(IndexFolderError, match="is damaged"):
        open_index(copied, kind="scann" if name == "scann" else "exact")


def test_a_missing_or_altered_chunk_is_detected(copied: Path):
    chunk = sorted(p for p in (copied / "embeddings.zarr" / "c").rglob("*") if p.is_file())[1]
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(bytes(data))
    with pytest.raises(IndexFolderError, match="an embedding chunk cannot be read"):
        open_index(copied, kind="exact")
    chunk.unlink()
    with pytest.raises(IndexFolderError, match="an embedding chunk is missing"):
        open_index(copied, kind="exact")


@pytest.mark.parametrize(
    "change", [{"embedded": "9"}, {"passages": -1}, {"width": 1.5}, {"chunk": 0}, {"version": True}]
)
def test_a_manifest_of_other_types_is_one_sentence(copied: Path, change: dict[str, object]) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(IndexFolderError, match=r"is damaged: manifest\.json cannot be read"):
        open_index(copied)
    (copied / "manifest.json").write_text("[" * 9000)
    with pytest.raises(IndexFolderError, match=r"is damaged: manifest\.json cannot be read"):
        open_index(copied)
