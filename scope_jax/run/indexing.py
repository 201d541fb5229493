"""Builds and opens the search index of a card, with its encoder.

`models` embeds texts, `retrieval` searches the vectors; this module connects the two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import datasets
import jax
from jax.sharding import Mesh

from scope_jax.config import EncoderSection, RetrievalSection
from scope_jax.errors import writing
from scope_jax.models import encoder
from scope_jax.models.texts import TextEncoder
from scope_jax.retrieval.build import build_index, open_index, saved_lexical
from scope_jax.retrieval.corpus import Corpus, load_corpus
from scope_jax.retrieval.embed import Embedder, HashedLexical, PrefixedEncoder
from scope_jax.retrieval.scann import ScannConfig
from scope_jax.retrieval.search import LocalRetriever
from scope_jax.run.dtypes import DTYPES
from scope_jax.run.processes import one_first
from scope_jax.sharding.mesh import ROWS, MeshConfig, make_mesh

EMBED_CHUNK = 4096  # passages embedded and written at a time
QUERY_ROWS = 8  # queries per embedding program; constant, so that a query's vector does not depend on the batch
# Prefixes of queries and passages, by kind of encoder (the model cards of E5 and of Qwen3-Embedding).
PREFIXES = {
    "bert": ("query: ", "passage: "),
    "qwen3": (
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
        "",
    ),
}
Part = Callable[[str, int, int], None]  # name of the work, pieces done, pieces in total


def index_mesh() -> Mesh | None:
    """A data-parallel mesh of this process's devices, for building an index; None if there is only one device."""
    devices = jax.local_devices()
    return make_mesh(MeshConfig(data=-1, fsdp=1, tensor=1), devices) if len(devices) > 1 else None


def open_or_build_index(
    card: RetrievalSection, run: Path, mesh: Mesh | None, part: Part | None = None, rebuild: bool = False
) -> LocalRetriever:
    """The retriever over the card's corpus, whose index is first built, or completed, if necessary.

    Of several processes, the first one builds it; each has its own copy in memory. part(name, done, total) reports
    progress. rebuild: delete an existing index first.
    """
    if card.corpus is None:
        raise ValueError("retrieval.corpus is not set, so there is nothing to index; set it to a corpus.")
    datasets.disable_progress_bars()  # `part` shows the progress
    folder = Path(card.index) if card.index else run / "index"
    tell = part or (lambda name, done, total: None)

    def built() -> Embedder:
        corpus = load_corpus(card.corpus or "", {**card.columns}, card.split, card.hub_config)
        embedder = neural(card.encoder, mesh) or _lexical(card, corpus, folder, tell)
        build = partial(build_index, corpus, embedder, folder, chunk=EMBED_CHUNK)
        with writing(folder):
            build(kind="exact", scann=None, progress=partial(tell, "passages embedded"), rebuild=rebuild)
            if card.kind == "scann":
                tell("ScaNN index", 0, 1)
                build(kind="scann", scann=ScannConfig(**card.scann.model_dump()))
                tell("ScaNN index", 1, 1)
        return embedder

    embedder = one_first(built)
    given = None if isinstance(embedder, HashedLexical) else embedder
    return LocalRetriever(*open_index(folder, kind=card.kind, embedder=given, mesh=mesh, axes=ROWS))


def _lexical(card: RetrievalSection, corpus: Corpus, folder: Path, tell: Part) -> HashedLexical:
    saved = saved_lexical(folder, corpus, card.dim)
    return saved or HashedLexical.fit(corpus, card.dim, partial(tell, "passages counted"))


def neural(card: EncoderSection, mesh: Mesh | None) -> Embedder | None:
    """The card's embedding model with its prefixes; None if the card has none.

    Its identity is a hash of model, prefixes and text length. The compute dtype is not included: like the hardware, it
    changes vectors only by rounding, and an index built on an accelerator may be searched on a CPU.
    """
    if card.checkpoint is None:
        return None
    dtype = card.compute_dtype
    if dtype == "auto":
        dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    texts = TextEncoder.load(
        card.checkpoint, max_tokens=card.max_tokens, rows=card.batch, mesh=mesh, compute_dtype=DTYPES[dtype]
    )
    query, passage = PREFIXES[texts.cfg.kind]
    query = query if card.query_prefix is None else card.query_prefix
    passage = passage if card.passage_prefix is None else card.passage_prefix
    parts = json.dumps([encoder.fingerprint(card.checkpoint), query, passage, card.max_tokens])
    identity = f"{texts.cfg.kind}-{hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()}"
    return PrefixedEncoder(texts, identity, query, passage, encode_queries=partial(texts, rows=QUERY_ROWS))
