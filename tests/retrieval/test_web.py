"""Which requests a server without a key takes from browsers, and how bodies are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from scope_jax.data.corpus import Document
from scope_jax.environments.loopback import Loopback
from scope_jax.report import live
from scope_jax.retrieval.lanes import Lanes
from scope_jax.retrieval.search import Hit
from scope_jax.web import connections
from scope_jax.web import guard as web
from scope_jax.web.guard import Refusal, host_name, parsed_json
from tests.retrieval.serving import serving

BODY = b'{"queries": ["q"]}'


def echo(queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
    return [(Hit(Document("", "T", query), 1.0),) for query in queries]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(echo, hosts=["Search.Example.org", "10.0.0.7"]) as port:
        yield port


def exchanged(port: int, request: bytes, seconds: float = 10.0) -> bytes:
    """What comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


def status(port: int, *headers: str, target: str = "/retrieve", kind: str | None = "application/json") -> int:
    lines = [f"POST {target} HTTP/1.1", *headers, f"Content-Length: {len(BODY)}", "Connection: close"]
    lines += [] if kind is None else [f"Content-Type: {kind}"]
    return int(exchanged(port, "\r\n".join(lines).encode() + b"\r\n\r\n" + BODY).split()[1])


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:PORT", "LOCALHOST:PORT", "localhost.:PORT", "127.0.0.1", "127.0.0.1:PORT"),
        *("[::1]", "[::1]:PORT", "[0:0:0:0:0:0:0:1]:9", "[::ffff:127.0.0.1]", "127.0.0.1:9000", "127.8.8.8"),
        *("search.example.org", "SEARCH.example.ORG:8001", "10.0.0.7:PORT"),
    ],
)
def test_names_of_the_server_itself_are_answered(port: int, host: str) -> None:
    assert status(port, f"Host: {host.replace('PORT', str(port))}") == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:PORT", "localhost.evil.example", "127.0.0.1.evil.example", "xlocalhost"),
        *("10.0.0.8", "[2001:db8::1]", "0.0.0.0:PORT", "search.example.org.evil.example", "example.org"),
        *("localhost@evil.example", "evil.example#localhost", "localhost,evil.example", "localhost evil.example"),
        *("", ":PORT", "[localhost]", "localhost:x", "[::1", "http://localhost", "localhost/", "127.1"),
    ],
)
def test_any_other_name_is_refused(port: int, host: str) -> None:
    """DNS rebinding: the page's own name points at this machine."""
    assert status(port, f"Host: {host.replace('PORT', str(port))}") == 400


def test_one_host_is_needed(port: int) -> None:
    assert status(port) == 400
    assert status(port, "Host: localhost", "Host: evil.example") == 400
    assert status(port, "Host: localhost", "Host: localhost") == 400
    assert b" 400 " in exchanged(port, b"GET /retrieve HTTP/1.0\r\n\r\n")


def test_a_target_that_is_a_whole_address_names_the_server_too(port: int) -> None:
    assert status(port, "Host: localhost", target="http://localhost/retrieve") == 200
    assert status(port, "Host: localhost", target="HTTP://127.0.0.1:9/retrieve?a=1") == 200
    assert status(port, "Host: localhost", target="http://evil.example/retrieve") == 400
    assert status(port, "Host: evil.example", target="http://localhost/retrieve") == 400
    assert status(port, "Host: localhost", target="http://localhost@evil.example/retrieve") == 400


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:PORT", 200),
        ("http://LOCALHOST:PORT", 200),
        ("http://localhost", 403),
        ("http://localhost:1", 403),
        ("http://127.0.0.1:PORT", 403),
        ("http://evil.example", 403),
        ("http://evil.example:PORT", 403),
        ("http://localhost:PORT.evil.example", 403),
        ("null", 403),
        ("", 403),
        ("file://", 403),
        ("chrome-extension://abc", 403),
    ],
)
def test_pages_of_other_origins_are_refused(port: int, origin: str, expected: int) -> None:
    host = f"Host: localhost:{port}"
    assert status(port, host, f"Origin: {origin.replace('PORT', str(port))}") == expected


def test_origins_and_ports(port: int) -> None:
    assert status(port, "Host: localhost", "Origin: http://localhost") == 200
    assert status(port, "Host: localhost:80", "Origin: http://localhost") == 200
    assert status(port, "Host: [::1]", "Origin: http://[::1]") == 200
    assert status(port, "Host: search.example.org", "Origin: https://search.example.org") == 200  # behind a proxy
    assert status(port, "Host: localhost", "Origin: http://localhost", "Origin: http://evil.example") == 403
    for site in ("cross-site", "same-site"):  # another port of this machine is the same site
        assert status(port, "Host: localhost", f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: no-cors") == 403
    assert status(port, "Host: localhost", "Sec-Fetch-Site: same-origin") == 200


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("text/plain; application/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=application/json", 415),
        (None, 415),
    ],
)
def test_a_simple_request_of_a_page_is_refused(port: int, kind: str | None, expected: int) -> None:
    """What a form or fetch may send anywhere without being asked first."""
    assert status(port, "Host: localhost", kind=kind) == expected


def test_a_refused_request_says_why_in_the_form_of_the_server(port: int) -> None:
    reply = httpx.post(f"http://127.0.0.1:{port}/retrieve", json={}, headers={"Host": "gpu1"}, trust_env=False)
    assert reply.json() == {
        "error": "'gpu1' is not a name of this server; if it is, start it with --trusted-host gpu1."
    }


def test_the_report_of_a_run_is_guarded_alike(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("page")

    def got(host: str, **headers: str) -> int:
        return (
            TestClient(live.site(tmp_path, ["lab.example"]), base_url=f"http://{host}")
            .get("/", headers=headers)
            .status_code
        )

    assert [got(host) for host in ("localhost:7", "[::1]:7", "lab.example:7")] == [200] * 3
    assert got("evil.example") == 400 and got("localhost", Origin="http://evil.example") == 403
    fetched = {"Sec-Fetch-Site": "cross-site"}
    assert got("localhost", **fetched, **{"Sec-Fetch-Mode": "no-cors"}) == 403
    assert got("localhost", **fetched, **{"Sec-Fetch-Mode": "navigate"}) == 200  # a link to the report


@pytest.mark.parametrize("name", ["http://x", "x/y", "a b", "x:80", "", "*", "a@b"])
def test_names_that_no_host_has(name: str) -> None:
    if name == "*":
        assert host_name(name) == "*"  # no pattern: no request names it
    else:
        with pytest.raises(ValueError, match="is not the name of a host"):
            host_name(name)


# ------------------------------------------------------------------------------------------------------------ bodies
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[" + b"{}," * 400_000 + b"1]", "arrays and objects"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b"[" * 199 + b"1" + b"]" * 199, None),
        (b"[" * 201 + b"1" + b"]" * 201, "nested too deep"),
        (b"[" + b"1," * 100_000 + b"1]", "more than 5000 values"),
        (json.dumps(["[{," * 100_000, '\\"[' * 1000, "\\\\", '"', "[" * 20_000]).encode(), None),
        (b"[" + b'"\\\\",[],' * 20_000 + b"1]", "arrays and objects"),
        (b'["\\ud83d"]', "half of a surrogate pair"),
        (b'["\\uDC00x"]', "half of a surrogate pair"),
        (b'["\\u12"]', "not JSON"),
        (b"\xef\xbb\xbf[1]", None),
        (b'{"a": 1}}', "not JSON"),
        (b"[" + b"1" * 5000 + b"]", "not JSON"),
    ],
)
def test_bodies_are_bounded_before_anything_is_built(body: bytes, sentence: str | None) -> None:
    began = time.thread_time()
    if sentence is None:
        assert parsed_json(body, 5000) == json.loads(body)
    else:
        with pytest.raises(Refusal, match=sentence):
            parsed_json(body, 5000)
    assert time.thread_time() - began < 1


def test_small_bodies_do_not_wait_for_large_ones_and_neither_queue_grows() -> None:
    release, begun = threading.Event(), list[int]()

    def held() -> None:
        begun.append(1)
        assert release.wait(20)

    async def both() -> list[Any]:
        lanes = Lanes()
        large = [asyncio.ensure_future(lanes.run(1 << 20, held)) for _ in range(40)]
        await asyncio.sleep(0)  # 32 wait, one of them for its end
        assert await asyncio.wait_for(lanes.run(100, lambda: 5), 20) == 5
        for one in large[5:]:
            one.cancel()  # its client has gone: it is never begun
        await asyncio.wait(large[5:])
        release.set()
        ended = await asyncio.gather(*large, return_exceptions=True)
        lanes.close()
        return ended

    ended = asyncio.run(both())
    assert len(begun) == 5
    assert sum(isinstance(one, Refusal) and one.status == 503 for one in ended) == 8


def test_of_large_bodies_the_smallest_is_next() -> None:
    async def order() -> list[int]:
        lanes, done = Lanes(), list[int]()
        first = asyncio.ensure_future(lanes.run(1 << 20, lambda: time.sleep(0.1)))
        await asyncio.sleep(0.02)
        sizes = [900_000, 20_000, 500_000, 20_001]
        await asyncio.gather(first, *(lanes.run(size, lambda size=size: done.append(size)) for size in sizes))
        lanes.close()
        return done

    assert asyncio.run(order()) == [20_000, 20_001, 500_000, 900_000]


# ------------------------------------------------------------------------------------------------- stalling clients
@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b""),
        (b"POST /retrieve HTTP/1.1\r\nHost: local", b"h"),
        (b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n", b"G"),
        (
            b"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n",
            b"x",
        ),
    ],
)
def test_a_head_that_does_not_end_closes_the_connection(
    first: bytes, drip: bytes, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    closed = False
    with socket.create_connection(("127.0.0.1", port), timeout=0.1) as client:
        client.sendall(first)
        began = time.monotonic()
        while not closed and time.monotonic() - began < 60:
            try:
                client.sendall(drip)
                closed = not client.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                closed = True
    assert closed


def test_a_body_that_does_not_end_is_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "BODY_SECONDS", 0.5)
    head = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    said = exchanged(port, head + b'{"quer')
    assert b" 408 " in said and b"did not arrive" in said


@pytest.mark.parametrize("before", [b"", b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_body_in_tiny_chunks_does_not_hold_up_others(port: int, before: bytes) -> None:
    head = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        with contextlib.suppress(OSError):  # it is closed before the last chunk
            client.sendall(before + head + b"1\r\n \r\n" * 170_000)
        began = time.process_time()
        reply = httpx.post(f"http://127.0.0.1:{port}/retrieve", json={"queries": ["q"]}, trust_env=False)
        assert reply.status_code == 200 and time.process_time() - began < 2
    whole = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:5], BODY[5:], b"")) + b"\r\n"
    assert b" 200 " in exchanged(port, head.replace(b"Transfer", b"Connection: close\r\nTransfer") + whole)


# -------------------------------------------------------------------------------------------------------------- framing
SIZE = f"Content-Length: {len(BODY)}".encode()
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
NEXT = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n" % SIZE
NEXT += b"Content-Type: application/json\r\n\r\n" + BODY


def statuses(port: int, *lines: bytes, body: bytes = BODY, line: bytes = b"POST /retrieve HTTP/1.1") -> list[int]:
    """Of the replies to a request, and to the one that follows on the same connection."""
    head = [line, b"Host: localhost", b"Content-Type: application/json", *lines]
    said = exchanged(port, b"\r\n".join(head) + b"\r\n\r\n" + body + NEXT)
    return [int(reply[:3]) for reply in said.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    "lines",
    [
        [SIZE, b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
        [b"transfer-encoding: CHUNKED", b"content-length: 0"],
        [b"Transfer-Encoding:\r\n chunked", SIZE],
        [b"Transfer-Encoding: chunked, chunked"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: identity", SIZE],
        [b"Transfer-Encoding: xchunked", SIZE],
        [b"Transfer-Encoding: \x0bchunked", SIZE],
        [b"Transfer-Encoding : chunked", SIZE],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
        [SIZE, b"Content-Length: 5"],
        [b"Content-Length: 5, 18"],
        [b"Content-Length : 18"],
        [b"Content-Length: +18"],
        [b"Content-Length: 1 8"],
        [b"Content-Length: -1"],
        [b"Content-Length:"],
        [SIZE, b"X: a\0b"],
        [SIZE, b"X: a\rContent-Length: 5"],
        [SIZE, b"X"],
        [SIZE, b"Host: localhost"],
    ],
)
def test_a_request_whose_end_is_unclear_is_the_last_of_its_connection(port: int, lines: list[bytes]) -> None:
    body = CHUNKS if any(b"ransfer" in line for line in lines) else BODY
    assert statuses(port, *lines, body=body) == [400]


def test_requests_with_one_end_are_answered_on_one_connection(port: int) -> None:
    assert statuses(port, SIZE) == [200, 200]
    assert statuses(port, b"Transfer-Encoding: Chunked", body=CHUNKS) == [200, 200]
    assert statuses(port, b"Transfer-Encoding: chunked", body=CHUNKS, line=b"POST /retrieve HTTP/1.0") == [400]


def test_every_door_refuses_an_unclear_end() -> None:
    """The endpoints of programs, whose middleware is that of the search server, the report and `serve`."""
    loopback = Loopback()
    try:
        with loopback.open(lambda asked: Future()) as endpoint:
            address = httpx.URL(endpoint.url)
            assert address.port is not None
            line = f"POST {address.path}/chat/completions HTTP/1.1".encode()
            assert statuses(address.port, SIZE, b"Transfer-Encoding: chunked", body=CHUNKS, line=line)[0] == 400
    finally:
        loopback.close()


@pytest.mark.parametrize(
    "host", ["[1::2::3]", "[::1", "[]", "[:]", "[1.2.3.4]", "[fffff::]", "[::1%25eth0]", "::1", "a b"]
)
def test_what_is_no_host_is_a_bad_request(port: int, host: str) -> None:
    assert status(port, f"Host: {host}") == 400
    assert status(port, "Host: localhost", f"Origin: http://{host}") == 403
    assert status(port, "Host: localhost", target=f"http://{host}/retrieve".replace(" ", "%20")) == 400


def test_a_target_is_decoded_once(port: int) -> None:
    assert status(port, "Host: localhost", target="http://localhost/%72etrieve") == 200
    assert status(port, "Host: localhost", target="http://localhost/%2572etrieve") == 404
