"""The [clusters] table: builds clusters of related documents from corpora, the data of SPELL (SPELL App. C.1)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import MOST, CardPath, Count, LocalPath, Section, Seed
from scope_jax.config.tables import EncoderSection, SourceSection

Family = Annotated[str, Field(pattern=r"^[\w.-]+$")]


class ClusterSource(SourceSection):
    path: CardPath
    """Documents: JSONL or Parquet file, or a hub name; `columns.quality` is a column with a quality score."""
    families: tuple[Family, ...] = Field(default=("qa", "choice"), strict=False, min_length=1)
    """Task families of the clusters of this source, assigned in turn (SPELL C.1); sources with different families share
    no cluster."""


class HeldOutSource(SourceSection):
    path: CardPath
    """File or hub name."""
    kind: Literal["documents", "questions"]
    """`documents`: near-duplicates of them are dropped (SPELL C.1); `questions`: documents with a phrase of a question
    or an answer are."""


class ClustersSection(Section):
    folder: LocalPath | None = None
    """Output folder for `clusters.jsonl` and its report."""
    sources: tuple[ClusterSource, ...] = Field(default=(), strict=False)
    """Sources of documents, read in this order."""
    held_out: tuple[HeldOutSource, ...] = Field(default=(), strict=False)
    """Data that no document may repeat, in addition to `evaluate.sets` and `clusters.benchmarks`."""
    benchmarks: tuple[str, ...] = Field(default=(), strict=False)
    """Names of exams (docs/evaluation.md#the-exams) whose rows are held out as those of `evaluate.sets` are: questions,
    answers and contexts."""
    seed: Seed = 0
    """Seed of centres and choices; separate from the run's `seed`, so that runs with different seeds share a folder."""
    # filters
    min_characters: Count = 100
    """Fewest characters of a text without its title (SPELL C.1)."""
    max_characters: Count = 32768
    """Most characters of a text without its title (SPELL C.1)."""
    min_quality: float = Field(default=1.0, ge=-1e6, le=1e6)
    """Lowest score that is kept, for sources with `columns.quality` (SPELL C.1)."""
    prose: bool = False
    """Keep only documents that pass Gopher's quality rules, for sources without a score."""
    similarity: float = Field(default=0.8, ge=0.1, le=0.95)
    """Jaccard similarity at or above which documents are near-duplicates (SPELL C.1)."""
    permutations: int = Field(default=128, ge=16, le=4096)
    """MinHash values per document (SPELL C.1)."""
    shingle: int = Field(default=5, ge=1, le=100)
    """Words per shingle; not stated in the paper."""
    phrase: int = Field(default=13, ge=1, le=100)
    """Length in words of a phrase that a held-out question and a document must not share (GPT-3, App. C)."""
    shortest_phrase: Count = 8
    """Shorter questions or answers, in words, are not looked for (GPT-3, App. C)."""
    # embeddings
    encoder: EncoderSection = EncoderSection()
    """The encoder of documents; the paper uses Qwen3-Embedding-8B."""
    dim: int = Field(default=2048, ge=16, le=2**20)
    """Width of the hashed lexical embedding."""
    # clusters
    documents: Count = 20
    """Mean number of documents per cluster (SPELL C.1)."""
    min_documents: Count = 5
    """Fewest documents of a cluster: as many as a questioner reads at a time (SPELL §5.1)."""
    max_documents: Count = 40
    """Most documents of a cluster; not stated in the paper."""
    max_tokens: Count | None = None
    """Most tokens of a cluster's documents together, in tokens of the model (SPELL C.1: 16K); leave room for the prompt
    and the question within `spell.responder.max_prompt_tokens`."""
    branching: int = Field(default=64, ge=2, le=MOST)
    """Most parts of one split; not stated in the paper."""
    per_family: Count | None = 2150
    """Clusters of each family, drawn at random (SPELL C.1)."""

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
