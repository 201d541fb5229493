r"""A search server with the Search-R1 protocol as a retriever.

POST {"queries": [..], "topk": k, "return_scores": true} → {"result": [[{"document": {"contents": "title\ntext"},
"score": s}, ..], ..]}, one list per query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scope_jax.data.corpus import Document, split_contents
from scope_jax.retrieval.search import Hit
from scope_jax.web.exchange import BadAddress, Exchange, HttpResponse, Unanswered, shown, whole

QUERIES = 128  # most queries of one request


class SearchServerError(ConnectionError):
    """The search server is down, rejects a request, or does not speak the protocol; one sentence says which."""


class RemoteRetriever:
    """A Retriever over HTTP; safe to call from several threads.

    url: the full URL, path included. timeout: total seconds of one attempt. retries: further attempts after a lost
    connection, a timeout, or a status of 5xx, 408 or 429. first_delay: seconds before the first retry; doubled each
    time. tell: called with a sentence every few seconds while the server does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        retries: int,
        first_delay: float,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._who = f"The search server at {shown(url)}"
        self._exchange = Exchange(
            url, name="the search server", timeout=timeout, retries=retries, first_delay=first_delay, tell=tell
        )

    def __call__(self, queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
        """At most `top_k` hits of each query; raises SearchServerError if there is no answer after all retries."""
        bodies = [
            {"queries": list(queries[first : first + QUERIES]), "topk": top_k, "return_scores": True}
            for first in range(0, len(queries), QUERIES)
        ]
        try:
            replies = self._exchange.post(bodies, self._parsed)
        except BadAddress as error:
            raise SearchServerError(f"{self._who} has an invalid URL ({error}).") from error
        except Unanswered as error:
            raise SearchServerError(f"{self._who} {error}; start it, or correct the URL.") from error
        return [
            hits
            for body, reply in zip(bodies, replies, strict=True)
            for hits in self._hits(reply, len(body["queries"]), top_k)
        ]

    def close(self) -> None:
        """Closes the connections."""
        self._exchange.close()

    def _parsed(self, response: HttpResponse) -> Any:
        if response.status != 200:
            raise SearchServerError(
                f"{self._who} rejected a request with HTTP {response.status}: {response.beginning()}."
            )
        try:
            return response.json()
        except ValueError as error:
            raise SearchServerError(f"{self._who} returned a reply that is not JSON; check the URL.") from error

    def _hits(self, reply: Any, queries: int, top_k: int) -> list[tuple[Hit, ...]]:
        try:
            lists = reply["result"]
            if len(lists) != queries:
                raise ValueError(f"{len(lists)} results for {queries} queries")
            return [tuple(_hit(entry) for entry in entries[:top_k]) for entries in lists]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SearchServerError(
                f"{self._who} does not speak the Search-R1 protocol ({error!r}); check the URL."
            ) from error


def _hit(entry: Any) -> Hit:
    document = entry["document"]
    title, text = split_contents(whole(document["contents"]))
    return Hit(Document(whole(str(document.get("id", ""))), title, text), float(entry["score"]))
