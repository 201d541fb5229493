"""An exchange with a server ends in time and within its bounds, whatever the server does."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from scope_jax.retrieval.client import RemoteRetriever, SearchServerError
from scope_jax.web import exchange
from scope_jax.web.exchange import BadAddress, Exchange, HttpResponse, Trouble, Unanswered, shown, whole
from tests.retrieval.raw import HEAD, dripping, sending, serving

LIMIT = 0.3  # seconds of one try


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def to(port: int, **changes) -> Exchange:
    options = {"name": "the server", "timeout": LIMIT, "retries": 0, "first_delay": 0.01} | changes
    return Exchange(f"http://127.0.0.1:{port}/path", **options)


def once(port: int, **changes) -> HttpResponse:
    """The reply to one request."""
    made = to(port, **changes)
    try:
        return made.post([{"q": 1}], lambda response: response)[0]
    finally:
        made.close()


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"", id="status line"),
        pytest.param(HEAD + b"X-Slow: ", id="headers"),
        pytest.param(HEAD + b"Content-Length: 1000000\r\n\r\n", id="body"),
        pytest.param(HEAD + b"\r\n", id="body of unknown length"),
    ],
)
def test_a_server_that_drips_bytes_is_given_up_at_the_deadline(head: bytes, stop: threading.Event):
    with serving(dripping(head, LIMIT / 10, stop)) as (port, seen):
        with pytest.raises(Unanswered, match=r"after 2 tries \(no complete reply within 0.3 s\)"):
            once(port, retries=1)
        assert len(seen) == 2
        made = to(port, timeout=600)
        with pytest.raises(Unanswered, match=r"no complete reply within 0.3 s"):
            made.get(f"http://127.0.0.1:{port}/models", LIMIT)
        made.close()


def test_a_reply_larger_than_the_cap_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "LARGEST_REPLY", 1 << 20)
    sent: list[int] = []

    def endless(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"\r\n")
        for _ in range(3000):
            connection.sendall(b" " * (1 << 20))
            sent.append(1)

    with serving(endless) as (port, _), pytest.raises(Unanswered, match="a reply of more than 1 MiB"):
        once(port, timeout=60)
    assert len(sent) < 100


def test_a_compressed_reply_is_not_decompressed():
    bomb = gzip.compress(b"[" + b" " * (1 << 24) + b"]")
    packed = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb
    with (
        serving(sending(packed)) as (port, seen),
        pytest.raises(Unanswered, match="a reply with the unrequested encoding 'gzip'"),
    ):
        once(port)
    assert b"accept-encoding: identity\r\n" in seen[0].lower()


def test_redirects_are_not_followed():
    with serving(sending(HEAD + b"Content-Length: 2\r\n\r\n{}")) as (other, elsewhere):
        moved = b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n" % other
        with serving(sending(moved)) as (port, _):
            assert once(port).status == 307
            remote = RemoteRetriever(f"http://127.0.0.1:{port}/", timeout=5, retries=0, first_delay=0.01)
            with pytest.raises(SearchServerError, match="HTTP 307"):
                remote(["q"], 1)
            remote.close()
        assert elsewhere == []


def test_too_deeply_nested_json_is_rejected():
    for text in (b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"{"):
        with pytest.raises(ValueError):
            HttpResponse(200, text).json()
    assert HttpResponse(200, b'{"a": [1]}').json() == {"a": [1]}
    deep = HEAD + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000
    with serving(sending(deep)) as (port, _):
        remote = RemoteRetriever(f"http://127.0.0.1:{port}/", timeout=5, retries=0, first_delay=0.01)
        with pytest.raises(SearchServerError, match="is not JSON"):
            remote(["q"], 1)
        remote.close()


def test_a_score_beyond_all_numbers_is_rejected():
    body = b'{"result": [[{"document": {"id": "a", "contents": "b"}, "score": 1%s}]]}' % (b"0" * 400)
    with serving(sending(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)) as (port, _):
        remote = RemoteRetriever(f"http://127.0.0.1:{port}/", timeout=5, retries=0, first_delay=0.01)
        with pytest.raises(SearchServerError, match="does not speak the Search-R1 protocol"):
            remote(["q"], 1)
        remote.close()


def test_half_a_character_in_a_passage_is_replaced():
    body = b'{"result": [[{"document": {"id": "\\ud800", "contents": "a\\ud83d\\n\\ude00b"}, "score": 1}]]}'
    with serving(sending(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)) as (port, _):
        remote = RemoteRetriever(f"http://127.0.0.1:{port}/", timeout=5, retries=0, first_delay=0.01)
        ((hit,),) = remote(["q"], 1)
        remote.close()
    assert hit.document.contents == "a\ufffd\n\ufffdb" and hit.document.id == "\ufffd"
    assert whole("é 😀 \ud83d!") == "é 😀 \ufffd!"


def test_transient_failures_are_retried_and_errors_of_the_reader_are_not():
    with serving(sending(HEAD + b"Content-Length: 2\r\n\r\n{}")) as (port, seen):
        replies = iter([Trouble("not yet"), "yes"])

        def read(response: HttpResponse) -> str:
            found = next(replies)
            if isinstance(found, Trouble):
                raise found
            return found

        made = to(port, retries=1, timeout=5)
        assert made.post([{}], read) == ["yes"] and len(seen) == 2

        def refuse(response: HttpResponse) -> str:
            raise KeyError("no")

        with pytest.raises(KeyError):
            made.post([{}] * 50, refuse, concurrency=2)
        assert len(seen) <= 2 + 3  # the others were not asked
        made.close()


def test_a_server_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "TELL_EVERY", 0.2)
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Exchange(
        f"http://user:secret@127.0.0.1:{port}/v1?key=secret",
        name="the judge",
        timeout=5,
        retries=3,
        first_delay=0.2,
        tell=told.append,
    )
    began = time.monotonic()
    with pytest.raises(Unanswered, match="after 4 tries"):
        made.post([{}] * 5, lambda response: response, concurrency=5)
    made.close()
    assert 2 <= len(told) <= 1 + (time.monotonic() - began) / 0.2  # of five requests, one message at a time
    start = f"the judge at http://127.0.0.1:{port}/v1 has not answered for "
    assert all(sentence.startswith(start) and sentence.endswith(" s more.") for sentence in told)
    left = [int(sentence.split("up to ")[1].split()[0]) for sentence in told]
    assert left == sorted(left, reverse=True) and left[0] <= 1
    count = len(told)
    time.sleep(0.5)
    assert len(told) == count  # and no more afterwards


def test_a_server_that_answers_is_not_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "TELL_EVERY", 0.05)
    told: list[str] = []

    def slowly(connection: socket.socket) -> None:
        time.sleep(0.3)
        connection.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")

    with serving(slowly) as (port, _):
        assert once(port, timeout=5, tell=told.append).body == b"{}"
    assert told == []


def test_abandoned_requests_end_at_once(stop: threading.Event):
    ended: list[str] = []
    with serving(dripping(HEAD, 0.1, stop)) as (port, seen):
        made = to(port, timeout=600)

        def ask() -> None:
            try:
                made.post([{}], lambda response: response)
            finally:
                ended.append("ended")

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        monkey = threading.excepthook
        threading.excepthook = lambda _: None
        for thread in threads:
            thread.start()
        while len(seen) < 3:
            time.sleep(0.01)
        exchange.abandon()
        for thread in threads:
            thread.join(60)
        ask_late = threading.Thread(target=ask, daemon=True)
        ask_late.start()
        ask_late.join(60)
        threading.excepthook = monkey
        exchange._over.clear()
        assert ended == ["ended"] * 4
        made.close()


def test_invalid_urls():
    made = Exchange("localhost:8000/x", name="s", timeout=1, retries=3, first_delay=9)
    with pytest.raises(BadAddress):
        made.post([{}], lambda response: response)
    made.close()


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("http://host:1/v1", "http://host:1/v1"),
        ("https://me:secret@host:1/v1?key=secret#secret", "https://host:1/v1"),
        ("http://me:secret@[::1/v1?key=secret", "[::1/v1"),
        ("http://me:sec/ret@host/v1", "http://host/v1"),
        ("http://me:sec#ret@host", "http://host"),
        ("http://me:sec?ret@host", "http://host"),
        ("http://me:sec@ret@host:80/a", "http://host:80/a"),
        ("http://secret@host", "http://host"),
        ("http://host:80/me@there", "http://host:80/me@there"),
        ("not a url", "not a url"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, seen: str):
    assert shown(url) == seen
