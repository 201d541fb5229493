"""JSON over HTTP, with bounds on everything the server controls.

Each attempt has one deadline, from the DNS lookup to the last byte, so that a server that sends a byte now and then
does not stall a run. A reply is at most LARGEST_REPLY bytes, uncompressed, and from the requested address: a compressed
reply is rejected unread, and a redirect is treated like any other status.

The module is in `retrieval` because clients of search servers and of judges both need it, and `retrieval` may not
import `scope_jax`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from scope_jax.errors import without_passwords

Read = TypeVar("Read")
_under_way: set[Future[Any]] = set()
_over = threading.Event()  # set once all requests have been abandoned

LARGEST_REPLY = 32 << 20  # bytes
LONGEST_DELAY = 30.0  # seconds between two attempts, at most
TELL_EVERY = 5.0  # seconds between two messages about a server that does not answer
PASSING = (408, 429)  # statuses below 500 that are retried
CLOSING = 5.0  # seconds allowed for closing connections


class BadAddress(ConnectionError):
    """The URL is not valid."""


class Unanswered(ConnectionError):
    """No reply after all attempts; the message says why the last one failed."""


class Trouble(Exception):
    """A transient failure, which is retried; the message gives the reason."""


@dataclass(frozen=True)
class HttpResponse:
    """What a server sent back."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The parsed body; raises ValueError if it is not JSON or nested deeper than the parser supports."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deep") from None

    def beginning(self, length: int = 200) -> str:
        """The repr of the body's first characters."""
        return repr(self.body[: 4 * length].decode(errors="replace")[:length])


def shown(url: str) -> str:
    """The URL for messages and records: without user, password and query, which may be secrets."""
    try:
        parts = urlsplit(without_passwords(url))
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    except ValueError:
        return url.rpartition("@")[2].partition("?")[0]


def checked(url: str) -> httpx.URL:
    """The address of a server. Raises BadAddress for one to which no connection can be made."""
    try:
        address = httpx.URL(url)
        address.host.encode("idna")  # what looking it up does
    except httpx.InvalidURL as error:
        raise BadAddress(str(error)) from None
    except UnicodeError:
        raise BadAddress("its host is not a name that can be looked up") from None
    if address.scheme not in ("http", "https") or not address.host:
        raise BadAddress("it needs http:// or https:// and a host")
    if address.port is not None and not 0 < address.port < 65_536:
        raise BadAddress(f"there is no port {address.port}")
    return address


def whole(text: str) -> str:
    """The text with each lone surrogate, which UTF-8 cannot encode, replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@functools.cache
def loop(name: str = "exchange") -> asyncio.AbstractEventLoop:
    """An event loop in a daemon thread of this name."""
    started = asyncio.new_event_loop()
    threading.Thread(target=started.run_forever, name=name, daemon=True).start()
    return started


def wait(work: Coroutine[Any, Any, Read], name: str = "exchange") -> Read:
    """Runs `work` on the event loop `name` and returns its result; cancels it if the caller is interrupted."""
    call = asyncio.run_coroutine_threadsafe(work, loop(name))
    _under_way.add(call)
    if _over.is_set():
        call.cancel()
    try:
        return call.result()
    finally:
        call.cancel()
        _under_way.discard(call)


def abandon() -> None:
    """Cancels every request, waiting or future, in any thread: the process is about to exit."""
    _over.set()
    for call in list(_under_way):
        call.cancel()


async def pause(seconds: float) -> None:
    """The wait between two attempts."""
    await asyncio.sleep(seconds)


class Exchange:
    """Requests to one URL; safe to call from several threads.

    timeout: total seconds of one attempt. retries: further attempts after a lost connection, a timeout, a reply that is
    too large, or a status of 5xx, 408 or 429. first_delay: seconds before the first retry; doubled each time, at most
    LONGEST_DELAY. tell: called with one sentence, which calls the server `name`, every TELL_EVERY seconds while the
    server does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        timeout: float,
        retries: int,
        first_delay: float,
        headers: Mapping[str, str] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._url = url
        self._timeout = timeout
        self._delays = [min(first_delay * 2**attempt, LONGEST_DELAY) for attempt in range(retries)]
        self._absence = Absence(f"{name} at {shown(url)}", tell)
        self._http = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity", **(headers or {})},
            timeout=None,  # `_once` has one deadline for the whole attempt
            limits=httpx.Limits(max_connections=None),
        )
        loop()  # created before several threads could request it at once

    def post(self, bodies: Sequence[Any], read: Callable[[HttpResponse], Read], concurrency: int = 1) -> list[Read]:
        """Posts each body and returns `read` of each reply, in order; `concurrency` requests run at a time.

        `read` may raise Trouble to have its request retried; any other exception ends the call. Raises Unanswered for
        the first request without a reply after all attempts, and BadAddress for an invalid URL.
        """
        return wait(self._all(bodies, read, concurrency))

    def get(self, url: str, timeout: float) -> HttpResponse:
        """The reply to one GET, attempted once within `timeout` seconds; raises Unanswered or BadAddress."""
        return wait(self._single(url, timeout))

    def close(self) -> None:
        """Closes the connections."""
        asyncio.run_coroutine_threadsafe(self._http.aclose(), loop()).result(CLOSING)

    async def _all(self, bodies: Sequence[Any], read: Callable[[HttpResponse], Read], concurrency: int) -> list[Read]:
        gate = asyncio.Semaphore(concurrency)

        async def one(body: Any) -> Read:
            async with gate:
                return await self._patiently(body, read)

        tasks = [asyncio.ensure_future(one(body)) for body in bodies]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _patiently(self, body: Any, read: Callable[[HttpResponse], Read]) -> Read:
        """`read` of the first reply that is not a transient failure."""
        trouble = ""
        try:
            for tries, delay in enumerate([0.0, *self._delays]):
                if tries:
                    await pause(delay)
                began = time.monotonic()
                try:
                    response = await self._once("POST", self._url, body, self._timeout)
                    if response.status >= 500 or response.status in PASSING:
                        raise Trouble(f"HTTP {response.status}")
                    answer = read(response)
                except Trouble as error:
                    trouble = str(error)
                    spent = time.monotonic() - began
                    left = self._delays[tries:]
                    self._absence.lasts(asyncio.current_task(), trouble, sum(left) + len(left) * spent)
                    continue
                self._absence.over()
                return answer
        finally:
            self._absence.leave(asyncio.current_task())
        raise Unanswered(f"did not answer after {len(self._delays) + 1} tries ({trouble})")

    async def _single(self, url: str, timeout: float) -> HttpResponse:
        try:
            return await self._once("GET", url, None, timeout)
        except Trouble as trouble:
            raise Unanswered(str(trouble)) from None

    async def _once(self, method: str, url: str, body: Any, timeout: float) -> HttpResponse:
        """One attempt; raises Trouble unless the reply arrives complete, in time and within its bounds."""
        checked(url)
        try:
            async with asyncio.timeout(timeout), self._http.stream(method, url, json=body) as response:
                packing = response.headers.get("content-encoding", "identity")
                if packing != "identity":
                    raise Trouble(f"a reply with the unrequested encoding {packing[:40]!r}")
                parts, size = [], 0
                async for part in response.aiter_raw():
                    size += len(part)
                    if size > LARGEST_REPLY:
                        raise Trouble(f"a reply of more than {LARGEST_REPLY >> 20} MiB")
                    parts.append(part)
                return HttpResponse(response.status_code, b"".join(parts))
        except TimeoutError:
            raise Trouble(f"no complete reply within {timeout:g} s") from None
        except httpx.HTTPError as error:
            raise Trouble(str(error) or type(error).__name__) from None


class Absence:
    """Reports every TELL_EVERY seconds how long a server has not answered; runs on the exchanges' event loop."""

    def __init__(self, who: str, tell: Callable[[str], None] | None) -> None:
        self._who = who
        self._tell = tell
        self._since: float | None = None  # time of the first failure after the last reply
        self._trouble = ""
        self._until: dict[Any, float] = {}  # when each waiting request is given up
        self._teller: asyncio.Task[None] | None = None

    def lasts(self, request: Any, trouble: str, left: float) -> None:
        """An attempt of `request` failed with `trouble`; which is given up in `left` seconds."""
        now = time.monotonic()
        self._since = self._since or now
        self._trouble = trouble
        self._until[request] = now + left
        if self._tell is not None and (self._teller is None or self._teller.done()):
            self._teller = asyncio.ensure_future(self._keep_telling(self._tell))

    def over(self) -> None:
        """Some request was answered."""
        self._since = None

    def leave(self, request: Any) -> None:
        """`request` is no longer waiting."""
        self._until.pop(request, None)
        if not self._until:
            self._since = None
            if self._teller is not None:
                self._teller.cancel()

    async def _keep_telling(self, tell: Callable[[str], None]) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY)
            if self._since is not None:
                now = time.monotonic()
                left = max(0.0, min(self._until.values()) - now)
                tell(
                    f"{self._who} has not answered for {now - self._since:.0f} s ({self._trouble}); "
                    f"the run waits up to {left:.0f} s more."
                )
