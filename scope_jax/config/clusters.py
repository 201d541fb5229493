"""The [clusters] table: builds clusters of related documents from corpora, the data of SPELL (SPELL App. C.1)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import MOST, CardPath, Count, LocalPath, Section, Seed
from scope_jax.config.tables import EncoderSection, SourceSection

Family = Annotated[str, Field(pattern=r"^[\w.-]+$")]


class ClusterSource(SourceSection):
    path: CardPath  # documents: JSONL or Parquet file, or a hub name; columns.quality: column with a quality score
    # the tasks its clusters are meant for, assigned in turn; sources with different families share no cluster
    families: tuple[Family, ...] = Field(default=("qa", "choice"), strict=False, min_length=1)


class HeldOutSource(SourceSection):
    path: CardPath
    kind: Literal["documents", "questions"]  # removes near-duplicates; removes texts with these questions or answers


class ClustersSection(Section):
    folder: LocalPath | None = None  # output of `scope-jax index CARD --clusters`: clusters.jsonl and its report
    sources: tuple[ClusterSource, ...] = Field(default=(), strict=False)
    held_out: tuple[HeldOutSource, ...] = Field(default=(), strict=False)  # in addition to those of evaluate.sets
    benchmarks: tuple[str, ...] = Field(default=(), strict=False)  # exams of configs/exams that no document may repeat
    seed: Seed = 0  # for centres and the choice of clusters; independent of `seed`, so that runs share the folder
    # filters
    min_characters: Count = 100
    max_characters: Count = 32768
    min_quality: float = Field(default=1.0, ge=-1e6, le=1e6)  # for sources with columns.quality
    prose: bool = False  # Gopher's quality rules, for sources without a score
    similarity: float = Field(default=0.8, ge=0.1, le=0.95)  # Jaccard threshold for near-duplicates
    permutations: int = Field(default=128, ge=16, le=4096)  # MinHash values per document
    shingle: int = Field(default=5, ge=1, le=100)  # words
    phrase: int = Field(default=13, ge=1, le=100)  # words of a held-out question that no document may contain
    shortest_phrase: Count = 8  # words; shorter questions and answers are not checked
    # embeddings
    encoder: EncoderSection = EncoderSection()  # the paper: Qwen3-Embedding-8B; none = hashed lexical
    dim: int = Field(default=2048, ge=16, le=2**20)  # width of the hashed lexical embedding
    # clusters
    documents: Count = 20  # per cluster on average
    min_documents: Count = 5  # number a questioner reads at a time
    max_documents: Count = 40
    max_tokens: Count | None = None  # of a cluster's documents together, in tokens of the model; SPELL C.1: 16K
    branching: int = Field(default=64, ge=2, le=MOST)  # parts per split
    per_family: Count | None = 2150  # clusters of each family, drawn at random

    @model_validator(mode="after")
    def _sizes_can_be_kept(self) -> ClustersSection:
        if not self.min_documents <= self.documents <= self.max_documents:
            raise ValueError(f"documents is {self.documents}; it must be between min_documents and max_documents")
        if 2 * self.min_documents > self.max_documents:
            raise ValueError(
                f"max_documents is {self.max_documents}, which cannot be halved without going below min_documents; "
                f"use at least {2 * self.min_documents}"
            )
        if self.min_characters > self.max_characters:
            raise ValueError(f"min_characters must be at most max_characters, {self.max_characters}")
        if self.shortest_phrase > self.phrase:
            raise ValueError(f"shortest_phrase must be at most phrase, {self.phrase}")
        return self
