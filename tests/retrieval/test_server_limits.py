"""Which requests a search server rejects, and that misbehaving clients do not affect others."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator, Sequence

import httpx
import pytest

from scope_jax.data.corpus import Document
from scope_jax.retrieval import server
from scope_jax.retrieval.search import LONGEST_QUERY, Hit, SearchTool
from tests.retrieval.serving import serving

JSON = {"Content-Type": "application/json"}
HEAD = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
asked: list[list[str]] = []


def echo(queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
    """One hit of every query: the query itself."""
    asked.append(list(queries))
    return [(Hit(Document("", "T", query), 1.0),) for query in queries]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(echo) as port:
        yield port


def answer(port: int, body: bytes, **headers: str) -> tuple[int, str]:
    reply = httpx.post(f"http://127.0.0.1:{port}/retrieve", content=body, headers=JSON | headers, trust_env=False)
    return reply.status_code, reply.json().get("error")


def test_a_body_that_is_too_large_is_not_read_to_its_end(port: int):
    before = len(asked)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(HEAD + b"Content-Length: 200000000\r\n\r\n{")
        said = b"".join(iter(lambda: client.recv(1000), b""))  # before the other 199,999,999 bytes, of which it
        assert said.startswith(b"HTTP/1.1 413 ") and b"larger than" in said  # wants none: the connection is closed

    def endless() -> Iterator[bytes]:
        for _ in range(server.BODY_LIMIT // 65536 + 1):
            yield b" " * 65536

    with httpx.Client(trust_env=False) as sender:  # without a Content-Length
        reply = sender.post(f"http://127.0.0.1:{port}/retrieve", content=endless(), headers=JSON)
    assert reply.status_code == 413 and "larger than 4194304 bytes" in reply.json()["error"]
    assert len(asked) == before


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[" * 100_000, "nested too deep"),
        (b'{"queries": ' + b"[" * 100_000, "nested too deep"),
        (b'{"queries": ["\\ud800"]}', "half of a surrogate pair"),
        (json.dumps({"queries": ["q"] * (server.QUERIES_LIMIT + 1)}).encode(), "8192 strings of 4096 characters"),
        (json.dumps({"queries": ["q" * (LONGEST_QUERY + 1)]}).encode(), "8192 strings of 4096 characters"),
        (json.dumps({"queries": ["q"] * 100, "topk": 1000}).encode(), "100 queries of 1000 passages"),
        (b"\xff\xfe", "is not JSON"),
    ],
)
def test_a_request_beyond_the_limits_is_refused_with_a_sentence(port: int, body: bytes, sentence: str):
    before = len(asked)
    status, said = answer(port, body)
    assert status == 400 and sentence in said
    assert len(asked) == before


def test_clients_that_disconnect_leave_no_trace(port: int, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(HEAD + b'Content-Length: 99\r\n\r\n{"quer')
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(HEAD + b'Content-Length: 18\r\n\r\n{"queries": ["q"]}')
        time.sleep(0.2)
        assert answer(port, b'{"queries": ["still there"]}') == (200, None)
    assert caplog.records == []


def test_concurrent_requests_get_the_same_replies_as_single_ones(port: int):
    async def ask(number: int) -> str:
        body = json.dumps({"queries": [f"q{number}"]}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        reply = await reader.read()
        writer.close()
        await writer.wait_closed()
        return json.loads(reply.partition(b"\r\n\r\n")[2])["result"][0][0]["contents"]

    async def everyone() -> list[str]:
        return await asyncio.gather(*(ask(number) for number in range(200)))

    assert asyncio.run(everyone()) == [f'"T"\nq{number}' for number in range(200)]


def test_the_search_tool_keeps_to_the_limits():
    seen: list[str] = []

    def retrieve(queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
        seen.extend(queries)
        return echo(queries, top_k)

    search = SearchTool(retrieve, top_k=1, max_tokens=9, truncate=lambda t, n: t, neutralise=lambda t: t, cache_size=9)
    search(["x" * 10_000, "half \ud83d of one"])
    assert seen == ["x" * LONGEST_QUERY, "half ? of one"]
