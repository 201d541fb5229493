"""Settings of a clusters build. Defaults are in the card (scope_jax/config/clusters.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scope_jax.data.rows import Row
from scope_jax.retrieval.clusters.kmeans import Sizes
from scope_jax.retrieval.embed import Encoder


@dataclass(frozen=True)
class CorpusSource:
    """A file or hub data set, and how to read it; see `rows.read` and `rows.optional`."""

    path: str
    columns: Mapping[str, str]
    split: str | None
    hub_config: str | None

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.path, self.hub_config, self.split) if part)


@dataclass(frozen=True)
class ClusterCorpus(CorpusSource):
    """Documents to be clustered. Sources with the same families are clustered together, and their clusters are assigned
    to these families in turn."""

    families: tuple[str, ...]


@dataclass(frozen=True)
class Questions(CorpusSource):
    """Evaluation questions that no document may contain; texts(row, where, columns) returns questions and answers, and
    documents(row, where, columns) the texts that a question is about, of which no document may be a near-duplicate."""

    texts: Callable[[Row, str, Mapping[str, str]], list[str]]
    documents: Callable[[Row, str, Mapping[str, str]], list[str]]


@dataclass(frozen=True)
class Filters:
    """Which documents are kept; characters are those of the text without its title."""

    min_characters: int
    max_characters: int
    min_quality: float  # applies to sources that name a column for it
    prose: bool  # words.is_prose
    similarity: float  # Jaccard similarity from which two documents count as near-duplicates
    permutations: int
    shingle: int  # words
    phrase: int  # words
    shortest_phrase: int


@dataclass(frozen=True)
class Neural:
    """An embedding model. `identity` names it, its version and its settings; load() creates the encoder and is called
    only when it is needed."""

    identity: str
    load: Callable[[], Encoder]


@dataclass(frozen=True)
class TokenCounter:
    """Counts the tokens of texts; `identity` names the tokenizer."""

    identity: str
    count: Callable[[str], int]


@dataclass(frozen=True)
class Preparation:
    """All settings that determine the clusters."""

    corpora: tuple[ClusterCorpus, ...]
    held_out_documents: tuple[CorpusSource, ...]
    held_out_questions: tuple[Questions, ...]
    filters: Filters
    encoder: Neural | int  # int: width of the lexical encoder, fitted on the kept documents
    sizes: Sizes
    per_family: int | None  # clusters kept for each family; None: all
    seed: int
    tokens: TokenCounter | None = None  # for `sizes.tokens`

    def plain(self) -> dict[str, Any]:
        """All settings as flat plain JSON, under names that a message can use."""
        plain: dict[str, Any] = {**vars(self.filters), **vars(self.sizes)}
        plain |= {"per_family": self.per_family, "seed": self.seed}
        plain["tokenizer"] = self.tokens.identity if self.tokens else None
        plain["encoder"] = self.encoder.identity if isinstance(self.encoder, Neural) else f"lexical-{self.encoder}"
        for name in ("corpora", "held_out_documents", "held_out_questions"):
            plain[name] = [
                {"path": s.path, "columns": dict(s.columns), "split": s.split, "hub_config": s.hub_config}
                | ({"families": list(s.families)} if isinstance(s, ClusterCorpus) else {})
                for s in getattr(self, name)
            ]
        return plain
