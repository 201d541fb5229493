"""Hierarchical k-means: centres, bounded sizes, nothing lost, the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.retrieval.clusters.kmeans import Sizes, centres, clusters


def found(vectors_NE: np.ndarray, sizes: Sizes, seed: int = 0) -> list[list[int]]:
    rows = np.arange(len(vectors_NE))
    return [members.tolist() for members in clusters(vectors_NE, rows, sizes, (seed,), lambda done, total: None)]


def blobs(groups: int, each: int, width: int = 8, seed: int = 0) -> np.ndarray:
    """`each` vectors near each of `groups` well-separated centres; group g has the rows g, g + groups, …"""
    rng = np.random.default_rng(seed)
    centres = 10 * rng.standard_normal((groups, width))
    return (np.tile(centres, (each, 1)) + 0.01 * rng.standard_normal((groups * each, width))).astype(np.float32)


def test_centres_of_two_pairs() -> None:
    vectors_NE = np.asarray([[0, 0], [0, 2], [9, 0], [9, 4]], np.float32)
    centres_ZE = centres(vectors_NE, 2, np.random.default_rng(0))
    assert sorted(centres_ZE.tolist()) == [[0, 1], [9, 2]]


def test_as_many_centres_as_vectors_and_equal_vectors() -> None:
    vectors_NE = np.eye(3, dtype=np.float32)
    assert sorted(centres(vectors_NE, 3, np.random.default_rng(1)).tolist()) == sorted(vectors_NE.tolist())
    assert np.isfinite(centres(np.ones((5, 2), np.float32), 3, np.random.default_rng(0))).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_well_separated_groups_are_found(seed: int) -> None:
    """Groups that one split leaves together are separated by the next."""
    members = found(blobs(groups=12, each=10), Sizes(mean=10, least=5, most=12, branching=4), seed)
    assert sorted(members) == [list(range(group, 120, 12)) for group in range(12)]


def test_equal_vectors_are_cut_in_the_order_of_rows() -> None:
    members = found(np.ones((20, 3), np.float32), Sizes(mean=4, least=2, most=6, branching=8))
    assert members == [list(range(first, first + 5)) for first in (0, 5, 10, 15)]


def keeps_sizes_and_loses_nothing(least: int, more: int, branching: int, kind: int, count: int) -> None:
    sizes = Sizes(mean=least + more // 2, least=least, most=2 * least + more, branching=branching)
    rng = np.random.default_rng(count)
    vectors_NE = rng.standard_normal((count, 3)).astype(np.float32)
    if kind == 1:  # one far away
        vectors_NE[0] = 1000
    if kind == 2:  # many equal vectors
        vectors_NE[count // 4 :] = 1
    if kind == 3:
        vectors_NE[:] = 0
    members = found(vectors_NE, sizes)
    assert sorted(row for cluster in members for row in cluster) == list(range(count))
    assert all(cluster == sorted(cluster) and least <= len(cluster) <= sizes.most for cluster in members)


def keeps_a_bound_on_tokens_and_leaves_out_only_what_does_not_fit(
    least: int, branching: int, most: int, count: int
) -> None:
    rng = np.random.default_rng(count)
    vectors_NE = rng.standard_normal((count, 3)).astype(np.float32)
    tokens_N = rng.integers(1, 60, count)
    sizes = Sizes(mean=2 * least, least=least, most=4 * least, branching=branching, tokens=most)
    told: list[tuple[int, int]] = []
    members = clusters(vectors_NE, np.arange(count), sizes, (0,), lambda *one: told.append(one), tokens_N)
    assert told[-1] == (count, count)
    rows = [int(row) for cluster in members for row in cluster]
    assert len(set(rows)) == len(rows)
    assert all(least <= len(cluster) <= sizes.most and tokens_N[cluster].sum() <= most for cluster in members)
    loose = clusters(vectors_NE, np.arange(count), sizes, (0,), lambda *one: None, np.zeros(count, int))
    assert sorted(int(row) for cluster in loose for row in cluster) == list(range(count))
    if tokens_N.max() * (2 * least - 1) <= most:  # any cluster that cannot be split fits
        assert sorted(rows) == list(range(count))


SIZES = given(st.integers(1, 5), st.integers(0, 8), st.integers(2, 6), st.integers(0, 3), st.integers(5, 90))
BOUNDS = given(st.integers(1, 5), st.integers(2, 6), st.integers(10, 400), st.integers(5, 90))
FEW, MANY = (settings(max_examples=count, deadline=None) for count in (10, 60))
test_sizes_are_kept_and_nothing_is_lost = FEW(SIZES(keeps_sizes_and_loses_nothing))
test_sizes_are_kept_in_many_cases = pytest.mark.slow(MANY(SIZES(keeps_sizes_and_loses_nothing)))
test_a_bound_on_tokens_is_kept = FEW(BOUNDS(keeps_a_bound_on_tokens_and_leaves_out_only_what_does_not_fit))
test_a_bound_on_tokens_is_kept_in_many_cases = pytest.mark.slow(
    MANY(BOUNDS(keeps_a_bound_on_tokens_and_leaves_out_only_what_does_not_fit))
)


def test_only_the_rows_that_take_part() -> None:
    vectors_NE = blobs(groups=2, each=20)
    rows = np.arange(0, 40, 2)[::-1]  # all of one group
    told: list[tuple[int, int]] = []
    members = clusters(vectors_NE, rows, Sizes(5, 2, 8, 4), (3,), lambda *told_: told.append(told_))
    assert sorted(np.concatenate(members).tolist()) == list(range(0, 40, 2))
    assert told[-1] == (20, 20) and [done for done, _ in told] == np.cumsum([len(m) for m in members]).tolist()
    with pytest.raises(ValueError, match="too few for a cluster of at least 2"):
        clusters(vectors_NE, rows[:1], Sizes(5, 2, 8, 4), (3,), lambda done, total: None)


def test_the_same_seed_gives_the_same_clusters_from_disk_too(tmp_path) -> None:
    vectors_NE = np.random.default_rng(5).standard_normal((700, 16)).astype("<f4")
    vectors_NE.tofile(tmp_path / "vectors")
    sizes = Sizes(10, 4, 16, 8)
    mapped_NE = np.memmap(tmp_path / "vectors", "<f4", "r", shape=(700, 16))
    assert found(vectors_NE, sizes) == found(mapped_NE, sizes) != found(vectors_NE, sizes, seed=1)


@pytest.mark.parametrize("wrong", [(5, 6, 20, 4), (30, 5, 20, 4), (5, 5, 9, 4), (5, 0, 9, 4), (5, 2, 9, 1)])
def test_sizes_that_cannot_be_kept(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="is invalid"):
        Sizes(*wrong)
