"""The exact index: every score is computed, on one device or over the devices of a mesh.

It is the reference for the approximate index, and fast enough on its own for millions of passages on an accelerator.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from scope_jax.retrieval.index import BLOCKS, COUNTS, checked_k

CHUNK = 16384  # vectors scored at a time; limits the score matrix to 64 × 16,384 floats
SPARE = 8  # candidates beyond k that are rescored


@runtime_checkable
class Rows(Protocol):
    """An array [N, E] that is read in slices: a numpy array, or embeddings on disk."""

    @property
    def shape(self) -> Any: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


class ExactIndex:
    """Exact top-k by inner product in float32.

    Candidates come from a chunked matmul with a running top-k. Each is then rescored by a fixed summation per query and
    passage and ordered by (score, row), so results, ties included, depend neither on the other queries of a batch nor
    on the summation order of the matmul.

    With a mesh the rows are sharded over `axes`, each device finds its own top-k, and these lists are gathered and
    merged. The mesh must consist of this process's devices (in a multi-host run every process searches on its own).
    """

    def __init__(self, embeddings: Rows, *, mesh: Mesh | None, axes: tuple[str, ...]) -> None:
        self.size, self.width = (int(n) for n in embeddings.shape)
        shards = 1 if mesh is None else int(np.prod([mesh.shape[axis] for axis in axes]))
        chunk = min(CHUNK, -(-self.size // shards))
        local = -(-self.size // (shards * chunk)) * chunk  # rows per device, a multiple of the chunk
        total = local * shards

        def read(where: Any) -> np.ndarray:
            start, stop = where[0].start or 0, total if where[0].stop is None else where[0].stop
            part_NE = np.zeros((stop - start, self.width), np.float32)
            for first in range(start, min(stop, self.size), CHUNK):
                last = min(first + CHUNK, stop, self.size)
                part_NE[first - start : last - start] = np.asarray(embeddings[first:last], np.float32)
            return part_NE

        if mesh is None:
            self._rows_NE = jnp.asarray(read((slice(0, total),)))
        else:
            sharding = NamedSharding(mesh, PartitionSpec(axes))
            self._rows_NE = jax.make_array_from_callback((total, self.width), sharding, read)
        self._top = _top_program(mesh, axes if mesh is not None else (), chunk, self.size)

    def search(
        self, queries_QE: Float[np.ndarray, "Q E"], k: int
    ) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
        """(scores_Qk float32, rows_Qk int64), best first, ties by row; k is at most the number of vectors."""
        k = checked_k(queries_QE, k, self.size, self.width)
        most = min(next((count for count in COUNTS if count >= k), 1 << (k - 1).bit_length()), self.size)
        scores = [np.empty((0, k), np.float32)]
        rows = [np.empty((0, k), np.int64)]
        for start in range(0, len(queries_QE), BLOCKS[-1]):
            block_QE = np.asarray(queries_QE[start : start + BLOCKS[-1]], np.float32)
            count = len(block_QE)
            size = next(b for b in BLOCKS if b >= count)
            block_QE = np.concatenate([block_QE, np.zeros((size - count, self.width), np.float32)])
            scores_Qk, rows_Qk = self._top(self._rows_NE, block_QE, most)
            scores.append(np.asarray(scores_Qk)[:count, :k])
            rows.append(np.asarray(rows_Qk)[:count, :k].astype(np.int64))
        return np.concatenate(scores), np.concatenate(rows)


@functools.cache
def _top_program(mesh: Mesh | None, axes: tuple[str, ...], chunk: int, size: int) -> Any:
    def local(rows_NE: jax.Array, queries_QE: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
        shard = lax.axis_index(axes) if axes else jnp.int32(0)
        neg_Qc, rows_Qc = _shard_top(rows_NE, queries_QE, k, chunk, shard * len(rows_NE), size)
        if axes:
            neg_Qc = lax.all_gather(neg_Qc, axes, axis=1, tiled=True)
            rows_Qc = lax.all_gather(rows_Qc, axes, axis=1, tiled=True)
        neg_Qc, rows_Qc = lax.sort((neg_Qc, rows_Qc), dimension=1, num_keys=2)
        return -neg_Qc[:, :k], rows_Qc[:, :k]

    def top(rows_NE: jax.Array, queries_QE: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
        if mesh is None:
            return local(rows_NE, queries_QE, k)
        whole = PartitionSpec()
        mapped = jax.shard_map(
            functools.partial(local, k=k),
            mesh=mesh,
            in_specs=(PartitionSpec(axes), whole),
            out_specs=(whole, whole),
            check_vma=False,  # gathered lists are equal on all devices, which the checker cannot infer
        )
        return mapped(rows_NE, queries_QE)

    return jax.jit(top, static_argnames="k")


def _shard_top(
    rows_NE: Float[jax.Array, "N E"],
    queries_QE: Float[jax.Array, "Q E"],
    k: int,
    chunk: int,
    first: jax.Array,
    size: int,
) -> tuple[Float[jax.Array, "Q c"], Int[jax.Array, "Q c"]]:
    """(−score, row) of the best c = min(k + 8, N) rows of one device, whose first row is row `first` of `size`."""
    count = min(k + SPARE, len(rows_NE))
    chunks_CNE = rows_NE.reshape(-1, chunk, rows_NE.shape[1])

    def scan(best: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]):
        chunk_NE, start = inputs
        scores_QN = jnp.einsum("qe,ne->qn", queries_QE, chunk_NE, precision=lax.Precision.HIGHEST)
        local_N = start + jnp.arange(chunk, dtype=jnp.int32)
        scores_QN = jnp.where(first + local_N < size, scores_QN, -jnp.inf)
        both_Q = jnp.concatenate([best[0], scores_QN], axis=1)
        ids_Q = jnp.concatenate([best[1], jnp.broadcast_to(local_N, scores_QN.shape)], axis=1)
        top_Qc, place_Qc = lax.top_k(both_Q, count)  # ties go to the earlier entry, so to the lower row
        return (top_Qc, jnp.take_along_axis(ids_Q, place_Qc, axis=1)), None

    queries = len(queries_QE)
    empty = jnp.full((queries, count), -jnp.inf, jnp.float32), jnp.zeros((queries, count), jnp.int32)
    starts_C = jnp.arange(len(chunks_CNE), dtype=jnp.int32) * chunk
    (best_Qc, ids_Qc), _ = lax.scan(scan, empty, (chunks_CNE, starts_C))

    def again(query: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        query_E, ids_c, best_c = query
        scores_c = jnp.sum(rows_NE[ids_c] * query_E, axis=1)
        return jnp.where(best_c > -jnp.inf, -scores_c, jnp.inf), first + ids_c  # padding is no row

    return lax.map(again, (queries_QE, ids_Qc, best_Qc))
