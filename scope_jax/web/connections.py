"""uvicorn's connections with limits of time and number, so that clients that stall or drip hold nothing for long."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import ExitStack
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from scope_jax.errors import UserError

HEAD_SECONDS = 10.0  # for a request's head to arrive, from its first byte on, or from the connection's beginning
READER_SECONDS = 120.0  # for a client to read a part of its reply
LINES = 16_384  # ends of lines of a request in chunks: each chunk has two, and costs time however small it is
_CHUNKED = re.compile(rb"transfer-encoding\s*:", re.IGNORECASE)
_SPLIT = 32  # bytes of the block before in which the name of that header may begin


def bound(host: str, port: int) -> socket.socket:
    """A socket that has its port, 0: a free one, and does not listen yet: clients are refused
    until it does. Raises UserError if the port cannot be had."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as stack:
            sock = stack.enter_context(socket.socket(family, kind))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            stack.pop_all()  # the caller closes it
    except (OSError, UnicodeError) as error:  # also a name that no host can have
        raise UserError(f"cannot listen on port {port} of {host} ({error}); choose another --port or --host.") from None
    return sock


class Connection(H11Protocol):
    """One client's connection; it is closed when a limit is passed."""

    _head: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None
    _before = b""
    _chunked = False
    _lines = 0

    def connection_made(self, transport: Any) -> None:  # asyncio's, or uvloop's, which is none of asyncio's classes
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._reader):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._chunked = self._chunked or _CHUNKED.search(self._before + data) is not None
        self._before = data[-_SPLIT:]
        self._lines += data.count(b"\r\n")
        if self._chunked and self._lines > LINES:
            return self._refuse()
        super().data_received(data)
        self._expect_head()

    def on_response_complete(self) -> None:
        self._lines = 0
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader = self.loop.call_later(READER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        super().resume_writing()

    def _expect_head(self) -> None:
        """The time for a head runs unless a request is under way."""
        waits = self.cycle is None or self.cycle.response_complete
        if waits and self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)
        elif not waits and self._head is not None:
            self._head.cancel()
            self._head = None

    def _refuse(self) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.send_400_response("The chunks of the request body are too small; send larger ones, or its length.")
        else:
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()


def config(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """uvicorn's settings for a server of ours: these connections, no WebSockets, warnings only."""
    return uvicorn.Config(
        app, http=Connection, ws="none", log_level="warning", access_log=False, proxy_headers=False, **more
    )
