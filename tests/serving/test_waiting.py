"""A server listens at once, and says 503 with the reason until its model can answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.errors import UserError
from scope_jax.serving import assemble
from scope_jax.serving.assemble import Served
from scope_jax.serving.server import run_model
from scope_jax.serving.waiting import AGAIN, not_ready
from scope_jax.web import connections
from scope_jax.web.connections import bound
from tests.serving.world import BASE

PATHS = ("/health", "/metrics", "/v1/models", "/v1/models/mine", "/v1/chat/completions", "/nowhere")


def url_of(sock: socket.socket) -> str:
    return f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_every_path_says_503_and_why():
    with bound("127.0.0.1", 0) as sock:
        with not_ready(sock, ()) as waiting, httpx.Client(base_url=url_of(sock), trust_env=False) as client:
            for path in PATHS:
                reply = client.get(path)
                assert (reply.status_code, reply.headers["Retry-After"]) == (503, str(AGAIN))
                error = reply.json()["error"]
                assert error["message"] == "The model is not ready: loading weights; try again later."
                assert error["type"] == "server_error"
            waiting.reason = lambda: "compiling program 2 of at most 4 for replies: 7 s"
            reply = client.post("/v1/chat/completions", json={"messages": []})
            assert reply.status_code == 503 and "compiling program 2 of at most 4" in reply.json()["error"]["message"]
            foreign = client.get("/health", headers={"Host": "evil.example"})
            assert foreign.status_code == 400 and "Retry-After" not in foreign.headers
        assert not any(thread.name == "not-ready" for thread in threading.enumerate())


def test_who_asks_between_is_answered_by_the_model(model: Served):
    """The socket listens on: a connection that is made after the last 503 waits for the model's server."""
    ended = threading.Event()
    with bound("127.0.0.1", 0) as sock, httpx.Client(base_url=url_of(sock), trust_env=False, timeout=60) as client:
        with not_ready(sock, ()):
            assert client.get("/health").status_code == 503
        between = socket.create_connection(sock.getsockname())
        between.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        options: dict[str, Any] = {"key": None, "grpc": None, "grace": 1.0, "tell": print, "ended": ended}
        thread = threading.Thread(target=lambda: run_model(model, sock, **options))
        thread.start()
        try:
            assert between.makefile("rb").readline().split()[1] == b"200"
            assert client.get("/health").json() == {"status": "ok"}
        finally:
            between.close()
            ended.set()
            thread.join(30)


def test_serve_listens_before_the_model_is_loaded_and_ends_with_the_sentence_of_a_failure(
    monkeypatch: pytest.MonkeyPatch,
):
    socks: list[socket.socket] = []
    replies: list[httpx.Response] = []

    def remembered(host: str, port: int) -> socket.socket:
        socks.append(bound(host, port))
        return socks[0]

    @contextmanager
    def failing(*given: Any, **more: Any) -> Iterator[Served]:
        replies.append(httpx.get(f"{url_of(socks[0])}/health", trust_env=False))
        raise UserError("the weights are damaged.")
        yield

    monkeypatch.setattr(connections, "bound", remembered)
    monkeypatch.setattr(assemble, "served", failing)
    result = CliRunner().invoke(app, ["serve", str(BASE), "--port", "0"])
    assert result.exit_code == 2 and replies[0].status_code == 503
    assert "The model is not ready: loading weights" in replies[0].json()["error"]["message"]
    listening, sentence = result.stderr.splitlines()
    assert listening.startswith("listening on port ") and sentence == "scope-jax: the weights are damaged."
    assert socks[0].fileno() == -1  # closed
