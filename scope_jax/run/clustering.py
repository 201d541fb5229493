"""Builds the document clusters of a card: passes its sources, evaluation sets and encoder to `retrieval.clusters`.

`retrieval.clusters` handles texts and vectors; this module knows the columns of questions and the embedding model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from models import encoder
from retrieval.clusters.build import prepare
from retrieval.clusters.kmeans import Sizes
from retrieval.clusters.settings import Corpus, Filters, Neural, Preparation, Questions, Source
from retrieval.rows import Row, optional, required
from scope_jax.config import Config, EncoderSection
from scope_jax.data.schemas import ALIASES, ANSWERS, TASK
from scope_jax.errors import UserError, writing
from scope_jax.run.indexing import EMBED_CHUNK, Part, neural

CHUNK = EMBED_CHUNK  # rows read, or documents embedded, between two progress reports


def prepare_clusters(cfg: Config, mesh: Mesh | None, part: Part, rebuild: bool = False) -> dict[str, Any]:
    """The report of the card's clusters, which are first built, or completed, if necessary.

    Raises UserError if the card has no folder or no sources.
    """
    card = cfg.clusters
    if card.folder is None or not card.sources:
        key = "folder" if card.folder is None else "sources"
        raise UserError(f"the card has no clusters.{key}; add it, or pass --set clusters.{key}=… (docs/clusters.md).")
    with writing(Path(card.folder)):
        return prepare(_preparation(cfg, mesh), Path(card.folder), chunk=CHUNK, tell=part, rebuild=rebuild)


def _preparation(cfg: Config, mesh: Mesh | None) -> Preparation:
    card = cfg.clusters
    questions = [*(s for s in card.held_out if s.kind == "questions"), *cfg.evaluate.sets]
    return Preparation(
        corpora=tuple(Corpus(s.path, {**s.columns}, s.split, s.hub_config, s.families) for s in card.sources),
        held_out_documents=tuple(
            Source(s.path, {**s.columns}, s.split, s.hub_config) for s in card.held_out if s.kind == "documents"
        ),
        held_out_questions=tuple(
            Questions(s.path, {**s.columns}, s.split, s.hub_config, exam_texts) for s in questions
        ),
        filters=Filters(
            min_characters=card.min_characters,
            max_characters=card.max_characters,
            min_quality=card.min_quality,
            prose=card.prose,
            similarity=card.similarity,
            permutations=card.permutations,
            shingle=card.shingle,
            phrase=card.phrase,
            shortest_phrase=card.shortest_phrase,
        ),
        encoder=card.dim if card.encoder.checkpoint is None else _neural(card.encoder, mesh),
        sizes=Sizes(card.documents, card.min_documents, card.max_documents, card.branching),
        per_family=card.per_family,
        seed=card.seed,
    )


def _neural(card: EncoderSection, mesh: Mesh | None) -> Neural:
    """The card's embedding model. Its identity does not need the weights, which are loaded when the first document is
    embedded; a folder without an embedding model is rejected immediately."""
    assert card.checkpoint is not None
    encoder.load_config(card.checkpoint)
    parts = json.dumps([encoder.fingerprint(card.checkpoint), card.passage_prefix, card.max_tokens])

    def load():
        embedder = neural(card, mesh)
        assert embedder is not None
        return embedder.passages

    return Neural(hashlib.blake2b(parts.encode(), digest_size=16).hexdigest(), load)


def exam_texts(row: Row, where: str, columns: Mapping[str, str]) -> list[str]:
    """The question of an exam row (each message of a conversation), and its answers if it has any."""
    _, question = required(row, where, "question", TASK, columns)
    _, answers = optional(row, where, "answers", ANSWERS, columns)
    _, aliases = optional(row, where, "aliases", ALIASES, columns)
    return _texts([question, answers, aliases])


def _texts(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for item in value for text in _texts(item)]
        case {"content": content}:
            return _texts(content)
        case _:
            return []
