"""What a server answers while its model is loaded and compiled: status 503, and why. Imports nothing that is large."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from scope_jax.web.connections import config
from scope_jax.web.guard import Guard

AGAIN = 5  # seconds after which a client may ask again
GRACE = 1  # seconds for requests under way when the model is ready


class NotReady:
    """An application that answers every request alike. reason: what is going on; may be called in any thread."""

    def __init__(self) -> None:
        self.reason: Callable[[], str] = lambda: "loading weights"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._refusal(503, f"The model is not ready: {self.reason()}; try again later.")(scope, receive, send)

    @staticmethod
    def _refusal(status: int, sentence: str) -> Response:
        kind = "server_error" if status == 503 else "invalid_request_error"
        body = {"error": {"message": sentence, "type": kind, "param": None, "code": None}}
        headers = {"Connection": "close"}  # the body is not read, and the next request meets the model
        if status == 503:
            headers["Retry-After"] = str(AGAIN)
        return JSONResponse(body, status, headers)

    def app(self, hosts: Collection[str] | None) -> Guard:
        """With the names of the server checked, see `Guard`."""
        return Guard(self, hosts=hosts, refuse=self._refusal)


@contextmanager
def not_ready(sock: socket.socket, hosts: Collection[str] | None) -> Iterator[NotReady]:
    """Answers so, in a thread, as soon as the block begins and until it ends; the socket then listens on, and who
    connects waits for the next server on it."""
    waiting = NotReady()
    # The server that follows sets up the logs.
    options = config(waiting.app(hosts), timeout_graceful_shutdown=GRACE, lifespan="off", log_config=None)
    server = uvicorn.Server(options)
    sock.listen()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock.dup()])), name="not-ready", daemon=True)
    thread.start()
    try:
        yield waiting
    finally:
        server.should_exit = True
        thread.join()
