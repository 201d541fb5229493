"""A search server of the Search-R1 protocol as a retriever.

POST {"queries": [..], "topk": k, "return_scores": true} → {"result": [[{"document": {"contents": "title\\ntext"},
"score": s}, ..], ..]}, one list per query.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx

from retrieval.corpus import Document, split_contents
from retrieval.search import Hit

LONGEST_DELAY = 30.0  # seconds between two tries


class SearchServerError(ConnectionError):
    """The search server is down, refuses, or does not speak the protocol; one sentence says which."""


class RemoteRetriever:
    """A Retriever over HTTP; safe to call from several threads.

    url: the whole address, path included. timeout: seconds of one try. retries: tries after the first, after a lost
    connection, a timeout, or a status of 5xx, 408 or 429. first_delay: seconds before the first of them; it doubles.
    """

    def __init__(self, url: str, *, timeout: float, retries: int, first_delay: float) -> None:
        self._url = url
        self._retries = retries
        self._first_delay = first_delay
        self._http = httpx.Client(timeout=timeout)

    def __call__(self, queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
        """At most `top_k` hits of each query; raises SearchServerError when there is no answer after all tries."""
        if not queries:
            return []
        reply = self._post({"queries": list(queries), "topk": top_k, "return_scores": True})
        try:
            lists = reply["result"]
            if len(lists) != len(queries):
                raise ValueError(f"{len(lists)} results for {len(queries)} queries")
            return [tuple(_hit(entry) for entry in entries[:top_k]) for entries in lists]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SearchServerError(
                f"The search server at {self._url} does not speak the Search-R1 protocol ({error!r}); check the URL."
            ) from error

    def close(self) -> None:
        self._http.close()

    def _post(self, body: dict[str, Any]) -> Any:
        trouble = ""
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(min(self._first_delay * 2 ** (attempt - 1), LONGEST_DELAY))
            try:
                response = self._http.post(self._url, json=body)
            except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
                raise SearchServerError(f"The search URL {self._url!r} is no http address ({error}).") from error
            except httpx.HTTPError as error:
                trouble = str(error) or type(error).__name__
                continue
            if response.status_code >= 500 or response.status_code in (408, 429):
                trouble = f"HTTP {response.status_code}"
                continue
            return self._parsed(response)
        raise SearchServerError(
            f"The search server at {self._url} did not answer after {self._retries + 1} tries ({trouble}); "
            "start it, or correct the URL."
        )

    def _parsed(self, response: httpx.Response) -> Any:
        if response.status_code != 200:
            raise SearchServerError(
                f"The search server at {self._url} refused a request with HTTP {response.status_code}: "
                f"{response.text[:200]!r}."
            )
        try:
            return response.json()
        except ValueError as error:
            raise SearchServerError(
                f"The search server at {self._url} answered with something that is not JSON; check the URL."
            ) from error


def _hit(entry: dict[str, Any]) -> Hit:
    document = entry["document"]
    title, text = split_contents(document["contents"])
    return Hit(Document(str(document.get("id", "")), title, text), float(entry["score"]))
