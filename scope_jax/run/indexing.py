"""The search of a card: its encoder, its index or server, and the tool that answers the searches of many episodes
together.

`models` embeds texts, `retrieval` searches the vectors; this module connects the two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
from jax.sharding import Mesh

from scope_jax.config import Config, EncoderSection, RetrievalSection, ServedModel
from scope_jax.data.corpus import Corpus, load_corpus
from scope_jax.errors import UserError, writing
from scope_jax.models.encoders import encoder
from scope_jax.models.encoders.encoder import EncoderConfig
from scope_jax.models.encoders.texts import TextEncoder
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.retrieval.build import build_index, open_index, saved_lexical
from scope_jax.retrieval.client import RemoteRetriever
from scope_jax.retrieval.embed import Embedder, HashedLexical, PrefixedEncoder
from scope_jax.retrieval.scann import ScannConfig
from scope_jax.retrieval.search import Hit, LocalRetriever, SearchTool
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.run.adapters import DTYPES
from scope_jax.run.processes import one_first
from scope_jax.sharding.mesh import ROWS, MeshConfig, make_mesh
from scope_jax.text import dialects, parsing

EMBED_CHUNK = 4096  # passages embedded and written at a time
QUERY_ROWS = 8  # queries per embedding program; constant, so that a query's vector does not depend on the batch
# Prefixes of queries and passages, by kind of encoder (the model cards of E5 and of Qwen3-Embedding), for folders that
# say nothing about them.
PREFIXES = {
    "bert": ("query: ", "passage: "),
    "qwen3": (
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
        "",
    ),
}
FAMILIES = {"bert": "E5", "qwen3": "Qwen3-Embedding"}
Part = Callable[[str, int, int], None]  # name of the work, pieces done, pieces in total


def index_mesh() -> Mesh | None:
    """A data-parallel mesh of this process's devices, for building an index; None if there is only one device."""
    devices = jax.local_devices()
    return make_mesh(MeshConfig(data=-1, fsdp=1, tensor=1), devices) if len(devices) > 1 else None


def open_or_build_index(
    card: RetrievalSection,
    run: Path,
    mesh: Mesh | None,
    part: Part | None = None,
    rebuild: bool = False,
    say: Callable[[str], None] | None = None,
    corpus: Corpus | None = None,
) -> LocalRetriever:
    """The retriever over the card's corpus, whose index is first built, or completed, if necessary. corpus: if it was
    read already.

    Of several processes, the first one builds it; each has its own copy in memory. part(name, done, total) reports
    progress; say(text) what was assumed about the encoder. rebuild: delete an existing index first.
    """
    if card.corpus is None:
        raise UserError("retrieval.corpus is not set, so there is nothing to index; set it to a corpus.")
    folder = Path(card.index) if card.index else run / "index"
    tell = part or (lambda name, done, total: None)

    def built() -> Embedder:
        passages = corpus or load_corpus(card.corpus or "", {**card.columns}, card.split, card.hub_config)
        embedder = neural(card.encoder, mesh) or _lexical(card, passages, folder, tell)
        announce(card.encoder, say)
        build = partial(build_index, passages, embedder, folder, chunk=EMBED_CHUNK)
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


@dataclass(frozen=True)
class EncoderSettings:
    """How an encoder reads texts: prefixes of queries and passages, and tokens of the longest text. notes: a sentence
    for each thing that card and folder say differently, or that neither says."""

    query: str
    passage: str
    max_tokens: int
    notes: tuple[str, ...]


def reading(card: EncoderSection, cfg: EncoderConfig) -> EncoderSettings:
    """What the card says comes first, then what the model's folder says, then the usual prefixes of the model's kind;
    but no text is longer than the folder allows."""
    said, family, folder = cfg.said, FAMILIES[cfg.kind], card.checkpoint
    notes: list[str] = []
    if not cfg.described:
        notes.append(
            f"{folder} has no modules.json, so pooling ({cfg.pooling}) and vectors of length one are {family}'s."
        )
    given = {"query": (card.query_prefix, said.query), "passage": (card.passage_prefix, said.passage)}
    prefixes: dict[str, str] = {}
    for (name, (own, folders)), usual in zip(given.items(), PREFIXES[cfg.kind], strict=True):
        prefixes[name] = next(prefix for prefix in (own, folders, usual) if prefix is not None)
        if own is not None and folders is not None and own != folders:
            notes.append(f"the card's {name}_prefix {own!r} is used, not {folders!r} of {folder}.")
    silent = [name for name, (own, _) in given.items() if own is None]
    if silent and said.query is None:
        shown = " and ".join(f"{prefixes[name]!r} for a {name}" for name in silent)
        names = " and ".join(f"{name}_prefix" for name in silent)
        notes.append(f"{folder} names no prompts, so {family}'s are used, {shown}; set {names} for another model.")
    elif "query" in silent and not said.query and "query" not in said.prompts:
        known = ", ".join(said.prompts)
        others = f"its prompts ({known}) are none of a query" if known else "it names no prompts"
        notes.append(f"{folder}: {others}, so queries get no prefix; set query_prefix if its model card names one.")
    longest = card.max_tokens if said.max_tokens is None else min(card.max_tokens, said.max_tokens)
    if longest < card.max_tokens:
        notes.append(f"texts are cut to {longest} tokens as {folder} says, not to the card's {card.max_tokens}.")
    return EncoderSettings(prefixes["query"], prefixes["passage"], longest, tuple(notes))


def announce(card: EncoderSection, say: Callable[[str], None] | None) -> None:
    """Says what was assumed about the card's embedding model, if it has one."""
    if card.checkpoint is not None and say is not None:
        for note in reading(card, encoder.load_config(card.checkpoint)).notes:
            say(f"encoder: {note}")


def described(card: EncoderSection) -> tuple[str, tuple[str, ...]]:
    """The card's embedding model and how it reads texts, in words, and the notes on it (Reading). Raises as
    encoder.load_config does."""
    assert card.checkpoint is not None
    cfg = encoder.load_config(card.checkpoint)
    how = reading(card, cfg)
    layers = f", {len(cfg.modules.dense)} dense" if cfg.modules.dense else ""
    score = "cosine" if cfg.unit else "inner product"
    found = (
        f"{cfg.kind}, pooling {cfg.pooling}{layers}, {cfg.width} numbers, {score}; queries begin with {how.query!r}, "
        f"passages with {how.passage!r}; up to {how.max_tokens} tokens"
    )
    return found, how.notes


def neural(card: EncoderSection, mesh: Mesh | None) -> PrefixedEncoder | None:
    """The card's embedding model with its prefixes; None if the card has none.

    Its identity is a hash of model, prefixes and text length. The compute dtype is not included: like the hardware, it
    changes vectors only by rounding, and an index built on an accelerator may be searched on a CPU.
    """
    if card.checkpoint is None:
        return None
    dtype = card.compute_dtype
    if dtype == "auto":
        dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    cfg = encoder.load_config(card.checkpoint)
    how = reading(card, cfg)
    texts = TextEncoder.load(
        card.checkpoint, max_tokens=how.max_tokens, rows=card.batch, mesh=mesh, compute_dtype=DTYPES[dtype]
    )
    facts = [encoder.fingerprint(card.checkpoint), how.query, how.passage, how.max_tokens]
    parts = json.dumps(facts if cfg.unit else [*facts, "inner product"])
    identity = f"{cfg.kind}-{hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()}"
    queries = partial(texts, rows=QUERY_ROWS)
    return PrefixedEncoder(texts, identity, how.query, how.passage, encode_queries=queries, unit=cfg.unit)


# ----------------------------------------------------------------------------------------------------------- the search
FIRST_DELAY = 0.5  # seconds before a search server is asked again
PROBE = "capital of Norway"  # a search that any server may answer, also with nothing
CACHED_QUERIES = 100_000
CUT = "...(truncated)"  # appended to a truncated search result

Lookup = BatchedTool[tuple[Hit, ...]]


def lookup_of(
    cfg: Config | ServedModel,
    run: Path,
    mesh: Mesh,
    part: Part | None,
    tell: Callable[[str], None] | None,
    *,
    compiled: bool = False,
    corpus: Corpus | None = None,
) -> Lookup | None:
    """The card's server or index; None if the game does not search. compiled: an index's programs are, already.
    corpus: if it was read already.

    A server is asked in a thread of its own. An index in this process, and the model that embeds queries, run programs
    on the devices that generate, so the decode loop calls them, between two dispatches.
    """
    card = cfg.retrieval
    if card is None:
        return None
    if card.url is None:
        retrieve = open_or_build_index(card, run, mesh if mesh.size > 1 else None, part, corpus=corpus)
        if compiled:
            retrieve.compile(card.top_k)
    else:
        retrieve = RemoteRetriever(
            card.url, timeout=card.timeout, retries=card.retries, first_delay=FIRST_DELAY, tell=tell
        )
    return BatchedTool(partial(retrieve, top_k=card.top_k), own_thread=card.url is not None)


def search_of(cfg: Config | ServedModel, tokenizer: Tokenizer, lookup: Lookup | None) -> SearchTool | None:
    """The search as a policy uses it, on top of the lookup."""
    card = cfg.retrieval
    if card is None or lookup is None:
        return None

    def truncate(text: str, limit: int) -> str:
        ids = tokenizer.encode(text)
        return text if len(ids) <= limit else tokenizer.decode(ids[:limit]).rstrip("\ufffd") + CUT

    return SearchTool(
        lambda queries, top_k: lookup(queries),
        top_k=card.top_k,
        max_tokens=card.max_tokens,
        truncate=truncate,
        neutralise=partial(parsing.neutralise, also=dialects.load(cfg.model.dialect).tags),
        cache_size=CACHED_QUERIES,
    )


def probe(url: str, timeout: float) -> None:
    """Runs one search without retries, so that a run without a working server fails at once."""
    once = RemoteRetriever(url, timeout=timeout, retries=0, first_delay=FIRST_DELAY)
    once([PROBE], 1)
    once.close()
