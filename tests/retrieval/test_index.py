"""Exact index against numpy, sharded against whole, ScaNN against exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scope_jax.retrieval import exact
from scope_jax.retrieval.exact import ExactIndex
from scope_jax.retrieval.scann import ScannConfig, ScannIndex
from tests.eight import on_eight_devices

ROOT = Path(__file__).parents[2]


def unit(shape: tuple[int, int], seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def argsorted(embeddings_NE: np.ndarray, queries_QE: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-(queries_QE.astype(np.float64) @ embeddings_NE.T.astype(np.float64)), axis=1, kind="stable")[
        :, :k
    ]


@pytest.mark.parametrize("chunk", [16384, 64])  # one chunk; several, the last one partly empty
def test_exact_equals_argsort(monkeypatch: pytest.MonkeyPatch, chunk: int):
    monkeypatch.setattr(exact, "CHUNK", chunk)
    embeddings_NE, queries_QE = unit((300, 16), 0), unit((60, 16), 1)
    scores_Qk, rows_Qk = ExactIndex(embeddings_NE, mesh=None, axes=()).search(queries_QE, 7)
    assert np.array_equal(rows_Qk, argsorted(embeddings_NE, queries_QE, 7))
    np.testing.assert_allclose(scores_Qk, np.take_along_axis(queries_QE @ embeddings_NE.T, rows_Qk, 1), atol=1e-6)
    assert scores_Qk.dtype == np.float32 and rows_Qk.dtype == np.int64


@pytest.mark.parametrize("chunk", [16384, 16])
def test_ties_go_by_row(monkeypatch: pytest.MonkeyPatch, chunk: int):
    monkeypatch.setattr(exact, "CHUNK", chunk)
    embeddings_NE = np.tile(unit((5, 8), 2), (20, 1))  # every vector twenty times
    queries_QE = embeddings_NE[[0, 3]]
    _, rows_Qk = ExactIndex(embeddings_NE, mesh=None, axes=()).search(queries_QE, 6)
    assert rows_Qk.tolist() == [[0, 5, 10, 15, 20, 25], [3, 8, 13, 18, 23, 28]]


def test_a_query_does_not_depend_on_the_others():
    index = ExactIndex(unit((200, 64), 3), mesh=None, axes=())
    queries_QE = unit((100, 64), 4)
    scores_Qk, rows_Qk = index.search(queries_QE, 5)
    for at in (0, 9, 63, 64, 99):
        scores_1k, rows_1k = index.search(queries_QE[at : at + 1], 5)
        assert np.array_equal(scores_1k[0], scores_Qk[at]) and np.array_equal(rows_1k[0], rows_Qk[at])


def test_small_indices_and_bad_queries():
    index = ExactIndex(unit((3, 4), 5), mesh=None, axes=())
    scores_Qk, rows_Qk = index.search(unit((2, 4), 6), 10)
    assert scores_Qk.shape == (2, 3) and sorted(rows_Qk[0].tolist()) == [0, 1, 2]
    assert index.search(np.empty((0, 4), np.float32), 2)[1].shape == (0, 2)
    with pytest.raises(ValueError, match="must be at least 1"):
        index.search(unit((1, 4), 7), 0)
    with pytest.raises(ValueError, match="width 5 do not match the index of width 4"):
        index.search(unit((1, 5), 7), 1)


def test_sharded_equals_unsharded():
    assert on_eight_devices("tests.retrieval.eight_index") == "equal"


# ------------------------------------------------------------------------------------------------------------- ScaNN
def config(**changes: int) -> ScannConfig:
    plain = {"num_leaves": 40, "leaves_to_search": 10, "dimensions_per_block": 2, "reorder": 40, "brute_force_below": 0}
    return ScannConfig(**(plain | changes))


@pytest.fixture(scope="module")
def clustered() -> tuple[np.ndarray, np.ndarray]:
    """4,000 unit vectors round 40 centres, and 100 queries near the centres."""
    rng = np.random.default_rng(0)
    centres = unit((40, 32), 1)
    x = centres[rng.integers(0, 40, 4000)] + 0.15 * rng.standard_normal((4000, 32)).astype(np.float32)
    q = centres[rng.integers(0, 40, 100)] + 0.15 * rng.standard_normal((100, 32)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), q / np.linalg.norm(q, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def built(clustered: tuple[np.ndarray, np.ndarray]) -> ScannIndex:
    return ScannIndex.build(clustered[0], config())


def test_scann_finds_nearly_all(clustered: tuple[np.ndarray, np.ndarray], built: ScannIndex):
    x_NE, q_QE = clustered
    scores_Qk, rows_Qk = built.search(q_QE, 10)
    want_Qk = argsorted(x_NE, q_QE, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows_Qk, want_Qk, strict=True)])
    assert recall > 0.95
    np.testing.assert_allclose(scores_Qk, np.einsum("qe,qke->qk", q_QE, x_NE[rows_Qk]), atol=1e-5)
    assert (np.diff(scores_Qk, axis=1) <= 0).all()


def test_scann_saved_moved_loaded(
    clustered: tuple[np.ndarray, np.ndarray], built: ScannIndex, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    built.save(tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "second")
    again = ScannIndex.load(tmp_path / "second")
    assert (again.size, again.width, again.config) == (4000, 32, config())
    for mine, theirs in zip(again.search(clustered[1], 5), built.search(clustered[1], 5), strict=True):
        assert np.array_equal(mine, theirs)
    alone = [again.search(clustered[1][i : i + 1], 5)[1][0] for i in range(100)]
    assert np.array_equal(np.stack(alone), built.search(clustered[1], 5)[1])


def test_scann_without_a_tree_is_exact(clustered: tuple[np.ndarray, np.ndarray]):
    x_NE, q_QE = clustered[0][:50], clustered[1]
    index = ScannIndex.build(x_NE, config(brute_force_below=51))
    assert np.array_equal(index.search(q_QE, 4)[1], argsorted(x_NE, q_QE, 4))
    assert index.search(q_QE, 80)[1].shape == (100, 50)
    assert index.search(q_QE[:0], 4)[0].shape == (0, 4)


def test_scann_pads_incomplete_results(clustered: tuple[np.ndarray, np.ndarray]):
    index = ScannIndex.build(clustered[0][:400], config(leaves_to_search=1, reorder=5))
    scores_Qk, rows_Qk = index.search(clustered[1], 300)
    missing = rows_Qk == -1
    assert missing.any() and np.isneginf(scores_Qk[missing]).all() and np.isfinite(scores_Qk[~missing]).all()
    assert (np.diff(missing.astype(int), axis=1) >= 0).all()  # at the end of each row


def test_scann_settings_that_cannot_be():
    with pytest.raises(ValueError, match="cannot search 50 of 40 leaves"):
        config(leaves_to_search=50)
    with pytest.raises(ValueError, match="reorder is 0"):
        config(reorder=0)
    with pytest.raises(ValueError, match="cannot split 30 passages into 40 leaves"):
        ScannIndex.build(unit((30, 8), 0), config())


def test_scann_damaged_folder(built: ScannIndex, tmp_path: Path):
    with pytest.raises(ValueError, match="missing or damaged"):
        ScannIndex.load(tmp_path / "none")
    built.save(tmp_path / "index")
    for name in ("index.json", "scann_assets.pbtxt", "scann_config.pb"):
        folder = tmp_path / f"without-{name}"
        built.save(folder)
        (folder / name).unlink()
        with pytest.raises(ValueError, match="missing or damaged"):
            ScannIndex.load(folder)


def test_scann_import_leaves_tensorflow_alone(built: ScannIndex):
    program = (
        "import sys; marker = type(sys)('tensorflow'); sys.modules['tensorflow'] = marker\n"
        "from scope_jax.retrieval.scann import _scann; _scann()\n"
        "assert sys.modules['tensorflow'] is marker; print('kept')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.size == 4000 and "tensorflow" not in sys.modules
    assert done.stdout.strip() == "kept", done.stderr[-500:]
