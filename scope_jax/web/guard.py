"""What every HTTP server here needs: which requests browsers may send, and bodies that are bounded in size and time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from scope_jax.errors import UserError

GONE = 499  # nginx's status for a client that disconnected; never sent
BODY_SECONDS = 30.0  # for a body to arrive
CONTAINERS = 16_384  # arrays and objects of a body
DEFAULT_PORTS = {"http": 80, "https": 443}

# A host with an optional port: a name or IPv4 address, or an IPv6 address in brackets.
_AUTHORITY = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:@/\\?#\[\]]+))(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/]+)")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TARGET = re.compile(r"https?://([^/]+)(/.*)?", re.IGNORECASE)

Result = TypeVar("Result")
Refuse = Callable[[int, str], Response]  # status, sentence


class Refusal(Exception):
    """A rejected request: HTTP status and one sentence."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


# ---------------------------------------------------------------------------------------------------------- browsers
def host_name(text: str) -> str:
    """A host in one spelling: lower case, without a final dot; an address as `ipaddress` writes it. Raises ValueError
    for what is no host, or has a port."""
    if (address := _address(text.removeprefix("[").removesuffix("]"))) is not None:
        return str(address)
    parts = _AUTHORITY.fullmatch(text)
    if parts is None or parts[2] is None or parts[3] is not None:
        raise UserError(f"{text!r} is not the name of a host; give one such as gpu1.example.org.")
    return parts[2].lower().removesuffix(".")


class Guard:
    """Middleware that refuses what a foreign web page can make a browser send to a server without a key.

    A page may point its own name at this machine (DNS rebinding) and then read every reply, so `Host` must be a name of
    the server: a loopback name, the address of the connection, or one of `hosts`. A page may also send simple requests
    anywhere: so `Origin`, where a browser names it, must be the server's own, and a body must be declared as JSON,
    which pages of other origins may not do unasked. hosts: None checks no names, for a server that asks for a key.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, refuse: Refuse) -> None:
        self._app, self._refuse = app, refuse
        self._hosts = None if hosts is None else frozenset(map(host_name, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            scope = self._checked(scope)
        except Refusal as refusal:
            response = self._refuse(refusal.status, str(refusal))
            response.headers["Connection"] = "close"  # the body is not read
            return await response(scope, receive, send)
        return await self._app(scope, receive, send)

    def _checked(self, scope: Scope) -> Scope:
        """The scope, with the path alone where the request's target was a whole address. Raises Refusal."""
        _check_framing(scope)
        target = _TARGET.fullmatch(scope["raw_path"].decode("ascii"))
        if self._hosts is not None:
            host = self._own(scope, _only(scope, b"host"))
            if target is not None:
                self._own(scope, target[1])
            _check_origin(scope, host)
        if scope["method"] in ("POST", "PUT", "PATCH"):
            kind = (_only(scope, b"content-type") or "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refusal("The request needs the header Content-Type: application/json.", 415)
        if target is None:
            return scope
        path = target[2] or "/"
        return {**scope, "path": unquote(path), "raw_path": path.encode()}

    def _own(self, scope: Scope, given: str | None) -> tuple[str, str | None]:
        """(host, port) as given. Raises Refusal for another server's, or none."""
        authority = None if given is None else _host_and_port(given)
        if authority is None:
            raise Refusal("The request needs one header Host with the server's name.")
        name, port = authority
        address, local = _address(name), scope.get("server") or ("",)
        here = name == "localhost" if address is None else address.is_loopback or address == _address(local[0])
        if not here and name not in (self._hosts or ()):
            raise Refusal(
                f"{name[:80]!r} is not a name of this server; if it is, start it with --trusted-host {name[:80]}."
            )
        return name, port


def _only(scope: Scope, name: bytes) -> str | None:
    """A header's value; None if it is missing or there are several."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1").strip() if len(values) == 1 else None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """The address that a text is; None for a name. An IPv4 address may be written as IPv6."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def _host_and_port(text: str) -> tuple[str, str | None] | None:
    """(host as `host_name` has it, port) of an authority; None if it is none, such as for brackets without an IPv6
    address."""
    parts = _AUTHORITY.fullmatch(text)
    if parts is None:
        return None
    name = parts[1] or parts[2]
    if parts[1] is not None and (":" not in name or _address(name) is None):
        return None
    return host_name(name), parts[3] or None


def _check_framing(scope: Scope) -> None:
    """Raises Refusal for a request whose end a proxy in front of this server may see elsewhere (RFC 9112, 6.1 and 6.3):
    what follows it there would be another client's."""
    framed = [name for name, _ in scope["headers"] if name in (b"content-length", b"transfer-encoding")]
    if len(framed) > 1 or (b"transfer-encoding" in framed and scope["http_version"] != "1.1"):
        raise Refusal("The request needs one Content-Length, or Transfer-Encoding: chunked in HTTP/1.1, and not both.")


def _check_origin(scope: Scope, host: tuple[str, str | None]) -> None:
    """Raises Refusal for a request that a page of another origin causes."""
    headers = dict(scope["headers"])
    foreign = Refusal("Web pages of other origins may not use this server.", 403)
    if b"origin" in headers:
        origin = _ORIGIN.fullmatch(_only(scope, b"origin") or "")
        authority = None if origin is None else _host_and_port(origin[2])
        if origin is None or authority is None:
            raise foreign  # `null` among them: a page without an origin, such as a file or a sandboxed frame
        usual = DEFAULT_PORTS[origin[1]]
        if (authority[0], int(authority[1] or usual)) != (host[0], int(host[1] or usual)):
            raise foreign
    elsewhere = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")  # another port is "same-site"
    if elsewhere and headers.get(b"sec-fetch-mode") != b"navigate":  # a link to a page is no harm
        raise foreign


# ------------------------------------------------------------------------------------------------------------ bodies
async def read_body(request: Request, limit: int) -> bytes:
    """The request's body; at most `limit` bytes of it are held in memory. Raises Refusal if it has more, or has not
    arrived in time."""
    too_large = Refusal(f"The request body is larger than {limit} bytes; send less at a time.", 413)
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise Refusal(f"The request body did not arrive within {BODY_SECONDS:g} seconds.", 408) from None
    return bytes(body)


def parsed_json(body: bytes, values: int) -> Any:
    """The value of a body. Raises Refusal for what is no JSON in UTF-8, holds half a surrogate pair, is nested too deep
    (200), or has more than `values` values; the parser holds Python's lock, so they are counted before."""
    containers, commas = body.count(b"[") + body.count(b"{"), body.count(b",")
    if containers > CONTAINERS or containers + commas > values:  # some of them may be text
        containers, commas = _outside_strings(body)
        if containers > CONTAINERS:
            raise Refusal(f"The request body is nested too deep or has more than {CONTAINERS} arrays and objects.")
        if containers + commas > values:
            raise Refusal(f"The request body has more than {values} values; send less at a time.")
    try:
        return from_json(body.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        if "hex escape" in str(error) and _SURROGATE.search(body):
            raise Refusal("The request body has half of a surrogate pair, which is not a character.") from None
        deep = "recursion" in str(error)
        raise Refusal(f"The request body is {'nested too deep' if deep else 'not JSON'}.") from None


def _outside_strings(body: bytes) -> tuple[int, int]:
    """(beginnings of arrays and objects, commas) of a body that are not in its strings."""
    plain = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    outside = np.bitwise_xor.accumulate((plain == ord('"')).view(np.uint8)) == 0
    begins, commas = (plain == ord("[")) | (plain == ord("{")), plain == ord(",")
    return int((begins & outside).sum()), int((commas & outside).sum())


async def unless_gone(request: Request, answer: Awaitable[Result]) -> Result:
    """What `answer` gives; cancels it and raises ClientDisconnect if the client goes away first. The request's body has
    been read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, leaves = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((work, leaves), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        leaves.cancel()
