"""Near-duplicates by MinHash and locality-sensitive hashing, through datasketch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from datasketch import MinHash, MinHashLSH
from jaxtyping import UInt32

from scope_jax.retrieval.clusters.words import words

SCHEME = "affine32"  # of datasketch 2; fixed here, because saved signatures are read back
SEED = 1


def shingles(text: str, length: int) -> list[bytes]:
    """Every distinct run of `length` words; a shorter text is a single shingle."""
    found = words(text)
    runs = range(max(1, len(found) - length + 1))
    return sorted({" ".join(found[start : start + length]).encode("utf-8", "surrogatepass") for start in runs})


class NearDuplicates:
    """A set of texts, in which near-duplicates of a new text are looked up: texts whose shingles have a Jaccard
    similarity s of at least `threshold`, estimated by `permutations` MinHash values (standard error
    √(s(1 − s)/permutations)).

    Candidates come from the LSH bands that datasketch chooses for the threshold, so a pair just above it may be missed
    (it finds two in five pairs at .8, nine in ten at .9); each candidate's estimate is then compared. Takes about
    3.6 KB of memory per text with 128 permutations.
    """

    def __init__(self, threshold: float, permutations: int, shingle: int) -> None:
        self.threshold, self.shingle = threshold, shingle
        self._lsh = MinHashLSH(threshold=threshold, num_perm=permutations)
        self._blank = MinHash(num_perm=permutations, seed=SEED, scheme=SCHEME)
        self._added: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._added)

    def signatures(self, texts: Iterable[str]) -> UInt32[np.ndarray, "N W"]:
        """MinHash values of texts."""
        rows = MinHash.generator(
            (shingles(text, self.shingle) for text in texts), num_perm=len(self._blank), seed=SEED, scheme=SCHEME
        )
        return np.asarray([row.hashvalues for row in rows], np.uint32).reshape(-1, len(self._blank))

    def nearest(self, signature_W: UInt32[np.ndarray, "W"]) -> tuple[int, float] | None:
        """(number, estimated similarity) of the most similar text, the first if several; None below the threshold."""
        numbers: list[Any] = self._lsh.query(self._minhash(signature_W))
        near = [(float(np.mean(self._added[number] == signature_W)), -number) for number in numbers]
        similarity, number = max(near, default=(0.0, 0))
        return (-number, similarity) if near and similarity >= self.threshold else None

    def add(self, signature_W: UInt32[np.ndarray, "W"]) -> int:
        """Adds the text with this signature to the set and returns its number."""
        self._lsh.insert(len(self._added), self._minhash(signature_W), check_duplication=False)
        self._added.append(signature_W)
        return len(self._added) - 1

    def _minhash(self, signature_W: np.ndarray) -> MinHash:
        return MinHash(hashvalues=signature_W, permutations=self._blank.permutations, seed=SEED, scheme=SCHEME)
