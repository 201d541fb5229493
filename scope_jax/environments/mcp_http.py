"""The HTTP client of MCP sessions: a reply to a request has a bound on its bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx2


def bounded_client(headers: Mapping[str, str] | None, max_bytes: int, seconds: float) -> httpx2.AsyncClient:
    """A client that sends `headers`, connects within `seconds`, and takes replies to POST requests of at most
    `max_bytes` bytes, uncompressed. It does not limit the time of a reply: every request of a session has a limit."""

    async def bound(response: httpx2.Response) -> None:
        if response.request.method == "POST":
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream, max_bytes)

    return httpx2.AsyncClient(
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(seconds, read=None),
        limits=httpx2.Limits(max_connections=None),
        event_hooks={"response": [bound]},
    )


class _Bounded(httpx2.AsyncByteStream):
    """A stream that fails once it is longer than it may be."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > self._max_bytes:
                raise httpx2.StreamError(f"a reply of more than {self._max_bytes} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
