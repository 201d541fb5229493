"""The search of a card: a server or an index, behind a tool that answers the searches of many episodes together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from jax.sharding import Mesh

from scope_jax.config import Config, ServedModel
from scope_jax.models.tokenizer import Tokenizer
from scope_jax.retrieval.client import RemoteRetriever
from scope_jax.retrieval.search import Hit, SearchTool
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.run.indexing import Part, open_or_build_index
from scope_jax.text import dialects, parsing

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
) -> Lookup | None:
    """The card's server or index; None if the game does not search. compiled: an index's programs are, already.

    A server is asked in a thread of its own. An index in this process, and the model that embeds queries, run programs
    on the devices that generate, so the decode loop calls them, between two dispatches.
    """
    card = cfg.retrieval
    if card is None:
        return None
    if card.url is None:
        retrieve = open_or_build_index(card, run, mesh if mesh.size > 1 else None, part, say=tell)
        if compiled:
            retrieve.compile(card.top_k)
    else:
        retrieve = RemoteRetriever(
            card.url, timeout=card.timeout, retries=card.retries, first_delay=FIRST_DELAY, tell=tell
        )
        probe(card.url, card.timeout)
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
