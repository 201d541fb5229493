"""A small OpenAI-compatible server on the loopback, for tests that need a judge or a judge that fails."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]  # status and body; text goes out as it is, anything else as JSON
Answers = Callable[[int, dict[str, Any]], Answer]


def chat(text: str) -> Answer:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


@contextmanager
def endpoint(answers: Answers, *, port: int = 0, last: int | None = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(url, requests seen so far); `answers` gets the number of the request and its body.

    port: 0 takes a free one. last: the server stops after that many requests; those in progress are answered.
    """
    seen: list[dict[str, Any]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(seen)
                seen.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
            status, content = answers(number, body)
            payload = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: Any) -> None:
            """Suppresses the log."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.timeout = 0.1  # seconds between two checks whether to stop
    over = threading.Event()

    def serve() -> None:
        while not over.is_set() and (last is None or len(seen) < last):
            server.handle_request()
        server.server_close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
    finally:
        over.set()
        thread.join()


@contextmanager
def refused(port: int) -> Iterator[None]:
    """Reserves a port on which nothing listens."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        yield
