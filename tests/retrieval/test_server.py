"""The Search-R1 protocol over a real socket, both ends, and servers that fail."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from scope_jax.data.corpus import Document
from scope_jax.retrieval.client import RemoteRetriever, SearchServerError
from scope_jax.retrieval.search import Hit, Retriever, SearchTool, format_documents
from scope_jax.web import exchange
from tests.retrieval.serving import serving


def five_hits(queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
    """Five hits of every query."""
    return [
        tuple(Hit(Document(f"{q}-{i}", f'{q} "{i}"', f"line\nof {i}"), 1 - i / 8) for i in range(5)[:top_k])
        for q in queries
    ]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of `five_hits` on a free port."""
    with serving(five_hits) as port:
        yield f"http://127.0.0.1:{port}/retrieve"


def test_client_and_server_agree(url: str):
    remote = RemoteRetriever(url, timeout=10, retries=0, first_delay=0.01)
    assert remote(["ada", "böhm"], 2) == five_hits(["ada", "böhm"], 2)
    assert remote([], 2) == []
    search = SearchTool(
        remote, top_k=1, max_tokens=9, truncate=lambda t, n: t, neutralise=lambda t: t.upper(), cache_size=1
    )
    assert search(["ada"]) == ['Doc 1 (Title: "ADA "0"")\nLINE\nOF 0']
    remote.close()


def test_a_title_of_two_lines_does_not_spill_into_the_text():
    def retrieve(queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
        return [(Hit(Document("0", "The Danube\n(river)", "It ends in the Black Sea."), 1.0),) for _ in queries]

    def read(retriever: Retriever) -> str:
        return format_documents([hit.document for hit in retriever(["danube"], 1)[0]])

    with serving(retrieve) as port:
        remote = RemoteRetriever(f"http://127.0.0.1:{port}/retrieve", timeout=10, retries=0, first_delay=0.01)
        assert read(remote) == read(retrieve) == 'Doc 1 (Title: "The Danube (river)")\nIt ends in the Black Sea.'
        remote.close()


def test_the_reply_has_the_format_of_search_r1(url: str):
    scored = httpx.post(url, json={"queries": ["ada"], "topk": 1, "return_scores": True}).json()
    assert scored == {"result": [[{"document": {"id": "ada-0", "contents": '"ada "0""\nline\nof 0'}, "score": 1.0}]]}
    plain = httpx.post(url, json={"queries": ["ada", "bob"]}).json()
    assert [[d["id"] for d in hits] for hits in plain["result"]] == [
        [f"{q}-{i}" for i in range(3)] for q in ("ada", "bob")
    ]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "The request body is not JSON."),
        (b"[1]", "The request body must be a JSON object."),
        (b"{}", "`queries` must be a list of strings."),
        (b'{"queries": "ada"}', "`queries` must be a list of strings."),
        (b'{"queries": ["ada"], "topk": 0}', "`topk` must be a whole number from 1 to 1000."),
        (b'{"queries": ["ada"], "topk": true}', "`topk` must be a whole number from 1 to 1000."),
        (b'{"queries": ["ada"], "return_scores": 1}', "`return_scores` must be true or false."),
    ],
)
def test_bad_requests_get_a_sentence(url: str, body: bytes, sentence: str):
    reply = httpx.post(url, content=body, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()) == (400, {"error": sentence})


# ----------------------------------------------------------------------------------------------- servers that fail
Answer = Callable[[int], tuple[int, bytes]]  # number of the request -> status, body


@pytest.fixture
def answering() -> Iterator[Callable[[Answer], tuple[str, list[dict]]]]:
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> tuple[str, list[dict]]:
        requests: list[dict] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status, body = answer(len(requests))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Suppresses the log."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}/retrieve", requests

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


GOOD = json.dumps({"result": [[{"document": {"contents": '"T"\nx'}, "score": 0.5}]]}).encode()


def test_a_failing_server_is_retried(answering: Callable, monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(exchange, "pause", pause)
    url, requests = answering(lambda n: (503, b"busy") if n < 4 else (200, GOOD))
    remote = RemoteRetriever(url, timeout=10, retries=3, first_delay=0.5)
    assert remote(["q"], 1) == [(Hit(Document("", "T", "x"), 0.5),)]
    assert requests == [{"queries": ["q"], "topk": 1, "return_scores": True}] * 4
    assert pauses == [0.5, 1.0, 2.0]
    remote.close()


def test_a_server_that_stays_down(answering: Callable):
    url, requests = answering(lambda n: (500, b""))
    remote = RemoteRetriever(url, timeout=10, retries=2, first_delay=0.001)
    with pytest.raises(SearchServerError, match=r"did not answer after 3 tries \(HTTP 500\)"):
        remote(["q"], 1)
    assert len(requests) == 3
    remote.close()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = RemoteRetriever(f"http://127.0.0.1:{port}/retrieve", timeout=1, retries=1, first_delay=0.001)
    with pytest.raises(ConnectionError, match=r"did not answer after 2 tries .*; start it, or correct the URL"):
        nobody(["q"], 1)
    nobody.close()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b"no such thing", "rejected a request with HTTP 400: 'no such thing'"),
        (200, b"<html>", "not JSON"),
        (200, b'{"results": []}', "does not speak the Search-R1 protocol"),
        (200, b'{"result": []}', "0 results for 1 queries"),
        (200, b'{"result": [[{"contents": "x"}]]}', "does not speak the Search-R1 protocol"),
        (200, b'{"result": [["x"]]}', "does not speak the Search-R1 protocol"),
        (200, b"[]", "does not speak the Search-R1 protocol"),
    ],
)
def test_a_server_that_replies_something_else_is_not_retried(
    answering: Callable, status: int, body: bytes, message: str
):
    url, requests = answering(lambda n: (status, body))
    remote = RemoteRetriever(url, timeout=10, retries=3, first_delay=0.001)
    with pytest.raises(SearchServerError, match=message):
        remote(["q"], 1)
    assert len(requests) == 1
    remote.close()


def test_an_invalid_url():
    remote = RemoteRetriever("localhost:8000", timeout=1, retries=3, first_delay=0.001)
    with pytest.raises(SearchServerError, match="has an invalid URL"):
        remote(["q"], 1)
    remote.close()
