"""The interface of every index: the nearest passages of a query, by inner product."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

BLOCKS = (8, 64)  # queries per program, so that two programs handle any number of queries
COUNTS = (8, 32, 128, 1024)  # passages per query of a program: k is rounded up (beyond: to a power of two) and cut


@runtime_checkable
class Index(Protocol):
    """Rows of a fixed set of vectors, searched by inner product.

    A query's result does not depend on the other queries of a batch; equal scores are ordered by row.
    """

    @property
    def size(self) -> int:
        """Number of vectors."""
        ...

    def search(
        self, queries_QE: Float[np.ndarray, "Q E"], k: int
    ) -> tuple[Float[np.ndarray, "Q k"], Int[np.ndarray, "Q k"]]:
        """(scores_Qk, rows_Qk), best first; k is at most the number of vectors.

        An approximate index that finds fewer pads with score −inf and row −1.
        """
        ...


def checked_k(queries_QE: np.ndarray, k: int, size: int, width: int) -> int:
    """The smaller of k and `size`; raises ValueError for k below 1 or queries of a different width than the index."""
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1.")
    if queries_QE.shape[1] != width:
        raise ValueError(
            f"Queries of width {queries_QE.shape[1]} do not match the index of width {width}; use the index's encoder."
        )
    return min(k, size)
