"""The search tool: queries in, result texts out, as a policy reads them.

A result lists its passages in the format of Search-R1 and its derivatives (verl, SSP):

    Doc 1 (Title: "Ada Lovelace")
    She was born in 1815 …

    Doc 2 (Title: "Analytical Engine")
    …

A passage without a title, such as one of a single line, begins with "Doc 3" alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scope_jax.data.corpus import Corpus, Document
from scope_jax.errors import UserError
from scope_jax.retrieval.index import BLOCKS, COUNTS, Index

if TYPE_CHECKING:  # games need the texts of this module; scipy is for those who search
    from scope_jax.retrieval.embed import Embedder

EMPTY_QUERY = "The search query was empty. Write the words to look for."
NOTHING_FOUND = "No passage was found for this query."
LONGEST_QUERY = 4096  # characters; encoders read a few hundred tokens


@dataclass(frozen=True)
class Hit:
    """A retrieved passage and its score."""

    document: Document
    score: float


@dataclass(frozen=True)
class SearchResult:
    """One query's result: the hits, best first, and the text a policy reads."""

    query: str
    hits: tuple[Hit, ...]
    text: str


Retriever = Callable[[Sequence[str], int], list[tuple[Hit, ...]]]  # queries, top_k -> hits of each, best first


@dataclass(frozen=True)
class LocalRetriever:
    """A Retriever over an index in this process."""

    index: Index
    corpus: Corpus
    embedder: Embedder

    def compile(self, top_k: int) -> None:
        """Runs every program that a search of up to `top_k` passages needs: for short and long queries (doubled, so
        that no length is left out that an encoder doubles), for few and many, for few and many passages."""
        lengths = [1 << power for power in range(LONGEST_QUERY.bit_length())]
        self.embedder.queries([(unit * count)[:LONGEST_QUERY] for unit in ("a ", "🙂") for count in lengths])
        vector_1E = self.embedder.queries(["a"])
        for queries in BLOCKS:
            for count in [*(count for count in COUNTS if count < top_k), top_k]:
                self.index.search(np.repeat(vector_1E, queries, axis=0), count)

    def __call__(self, queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
        """At most `top_k` hits of each query; none for a query that the encoder maps to zeros."""
        if not queries:
            return []
        queries_QE = self.embedder.queries(queries)
        scores_Qk, rows_Qk = self.index.search(queries_QE, top_k)
        return [
            tuple(Hit(self.corpus[row], score) for row, score in zip(rows, scores, strict=True) if row >= 0)
            if vector_E.any()
            else ()
            for vector_E, rows, scores in zip(queries_QE, rows_Qk.tolist(), scores_Qk.tolist(), strict=True)
        ]


def format_documents(documents: Sequence[Document]) -> str:
    """The passages as one text, numbered from 1 and separated by blank lines; titles are put on one line, and left out
    where there are none."""
    return "\n\n".join(
        f"Doc {number}{_titled(document.title)}\n{document.text.strip()}"
        for number, document in enumerate(documents, start=1)
    )


def _titled(title: str) -> str:
    line = " ".join(title.split())
    return f' (Title: "{line}")' if line else ""


class SearchTool:
    """Searches and formats the results; safe to call from several threads.

    retrieve: a LocalRetriever, a RemoteRetriever, or any function with the same signature.
    top_k: passages per result. max_tokens: token budget of one result's text.
    truncate(text, max_tokens): the text cut to the budget; called for every result that has passages.
    neutralise(text): applied to every title and text before any other use, since passages may contain anything,
        including a policy's own tags.
    cache_size: number of queries whose results are cached.
    """

    def __init__(
        self,
        retrieve: Retriever,
        *,
        top_k: int,
        max_tokens: int,
        truncate: Callable[[str, int], str],
        neutralise: Callable[[str], str],
        cache_size: int,
    ) -> None:
        if top_k < 1 or max_tokens < 1:
            raise UserError(
                f"A search result of {top_k} passages in {max_tokens} tokens is empty; both must be at least 1."
            )
        self._retrieve = retrieve
        self._top_k = top_k
        self._max_tokens = max_tokens
        self._truncate = truncate
        self._neutralise = neutralise
        self._cache_size = cache_size
        self._cache: OrderedDict[str, SearchResult] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, queries: Sequence[str]) -> list[str]:
        """The result text of each query, in order."""
        return [result.text for result in self.results(queries)]

    def results(self, queries: Sequence[str]) -> list[SearchResult]:
        """Text and hits for each query, in order. Queries are stripped and cut after LONGEST_QUERY characters, and lone
        surrogates in them become question marks; an empty query gets a text that says so.

        Raises what the retriever raises: ConnectionError if a search server is down.
        """
        stripped = [query.strip()[:LONGEST_QUERY].encode(errors="replace").decode() for query in queries]
        known = {query: SearchResult("", (), EMPTY_QUERY) for query in stripped if not query}
        with self._lock:
            for query in stripped:
                if query in self._cache:
                    self._cache.move_to_end(query)
                    known[query] = self._cache[query]
        missing = [query for query in dict.fromkeys(stripped) if query not in known]
        if missing:
            found = self._retrieve(missing, self._top_k)
            fresh = {query: self._result(query, hits) for query, hits in zip(missing, found, strict=True)}
            known.update(fresh)
            self._keep(fresh)
        return [known[query] for query in stripped]

    def _result(self, query: str, hits: tuple[Hit, ...]) -> SearchResult:
        clean = tuple(
            Hit(Document(h.document.id, self._neutralise(h.document.title), self._neutralise(h.document.text)), h.score)
            for h in hits
        )
        text = format_documents([hit.document for hit in clean])
        return SearchResult(query, clean, self._truncate(text, self._max_tokens) if clean else NOTHING_FOUND)

    def _keep(self, fresh: dict[str, SearchResult]) -> None:
        with self._lock:
            self._cache.update(fresh)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
