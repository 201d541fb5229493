"""Builds the document clusters of a card: passes its sources, evaluation sets and encoder to `retrieval.clusters`.

`retrieval.clusters` handles texts and vectors; this module knows the columns of questions and the embedding model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from scope_jax.config import Config, EncoderSection
from scope_jax.config.suites import load_suite
from scope_jax.data.rows import Row, optional, required
from scope_jax.data.schemas import ALIASES, ANSWERS, CONTEXT, TASK
from scope_jax.errors import UserError, writing
from scope_jax.models.encoders import encoder
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.retrieval.clusters.build import prepare
from scope_jax.retrieval.clusters.kmeans import Sizes
from scope_jax.retrieval.clusters.settings import (
    ClusterCorpus,
    CorpusSource,
    Filters,
    Neural,
    Preparation,
    Questions,
    TokenCounter,
)
from scope_jax.run.indexing import EMBED_CHUNK, Part, announce, neural, reading

_PASSAGE = re.compile(r"^Passage \d+:$", re.MULTILINE)
CHUNK = EMBED_CHUNK  # rows read, or documents embedded, between two progress reports


def prepare_clusters(
    cfg: Config,
    mesh: Mesh | None,
    part: Part,
    rebuild: bool = False,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """The report of the card's clusters, which are first built, or completed, if necessary.

    say(text) is told what was assumed about the encoder. Raises UserError if the card has no folder or no sources.
    """
    card = cfg.clusters
    if card.folder is None or not card.sources:
        key = "folder" if card.folder is None else "sources"
        raise UserError(f"the card has no clusters.{key}; add it, or pass --set clusters.{key}=… (docs/data.md).")
    announce(card.encoder, say)
    with writing(Path(card.folder)):
        return prepare(_preparation(cfg, mesh), Path(card.folder), chunk=CHUNK, tell=part, rebuild=rebuild)


def _preparation(cfg: Config, mesh: Mesh | None) -> Preparation:
    card = cfg.clusters
    benchmarks = [load_suite(name) for name in card.benchmarks]
    questions = [*(s for s in card.held_out if s.kind == "questions"), *cfg.evaluate.sets, *benchmarks]
    by_path = {(s.path, s.split, s.hub_config): s for s in questions}  # a set of the card may be one of the benchmarks
    return Preparation(
        corpora=tuple(ClusterCorpus(s.path, {**s.columns}, s.split, s.hub_config, s.families) for s in card.sources),
        held_out_documents=tuple(
            CorpusSource(s.path, {**s.columns}, s.split, s.hub_config) for s in card.held_out if s.kind == "documents"
        ),
        held_out_questions=tuple(
            Questions(s.path, {**s.columns}, s.split, s.hub_config, exam_texts, exam_documents)
            for s in by_path.values()
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
        sizes=Sizes(card.documents, card.min_documents, card.max_documents, card.branching, card.max_tokens),
        per_family=card.per_family,
        seed=card.seed,
        tokens=None if card.max_tokens is None else _tokens(cfg.model.tokenizer or cfg.model.checkpoint),
    )


def _tokens(folder: str) -> TokenCounter:
    """Counts tokens as the model does. Raises UserError for a folder without a tokenizer."""
    tokenizer = Tokenizer.load(folder)
    return TokenCounter(folder, lambda text: len(tokenizer.encode(text)))


def _neural(card: EncoderSection, mesh: Mesh | None) -> Neural:
    """The card's embedding model. Its identity does not need the weights, which are loaded when the first document is
    embedded; a folder without an embedding model is rejected immediately."""
    assert card.checkpoint is not None
    how = reading(card, encoder.load_config(card.checkpoint))
    parts = json.dumps([encoder.fingerprint(card.checkpoint), how.passage, how.max_tokens])

    def load():
        embedder = neural(card, mesh)
        assert embedder is not None
        return replace(embedder, unit=True).passages

    return Neural(hashlib.blake2b(parts.encode(), digest_size=16).hexdigest(), load)


def exam_texts(row: Row, where: str, columns: Mapping[str, str]) -> list[str]:
    """The question of an exam row (each message of a conversation), and its answers if it has any."""
    _, question = required(row, where, "question", TASK, columns)
    _, answers = optional(row, where, "answers", ANSWERS, columns)
    _, aliases = optional(row, where, "aliases", ALIASES, columns)
    return _texts([question, answers, aliases])


def exam_documents(row: Row, where: str, columns: Mapping[str, str]) -> list[str]:
    """The texts of the documents in the context of an exam row, [] without a context; LongBench writes several into one
    text, under the headings "Passage 1:" and so on."""
    _, context = optional(row, where, "context", CONTEXT, columns)
    parts = context if isinstance(context, list) else [context]
    found = [part.get("text") or part.get("contents") if isinstance(part, dict) else part for part in parts]
    texts = [text for part in found if isinstance(part, str) for text in _PASSAGE.split(part)]
    return [text.strip() for text in texts if text.strip()]


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
