"""A tool that is one HTTP request: the author fixes address, method and headers, the policy fills fields of JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from scope_jax.errors import UserError
from scope_jax.play.tool_calls import Tool, ToolError, ToolUnavailable
from scope_jax.web.exchange import BadAddress, HttpResponse, checked, shown, wait

BUSY = (429, 502, 503, 504)  # statuses after which a request may be repeated
REPEATABLE = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")
IN_QUERY = ("GET", "HEAD", "DELETE")  # methods whose arguments stand in the query, as their requests have no body
FIRST_DELAY = 0.5  # seconds before the first repetition; doubled each time
PROBE = 10.0  # seconds in which a connection must be made at the start
OPEN_HEADERS = ("accept", "accept-language", "content-type", "user-agent")  # the values of all others are secret


def http_tool(
    name: str,
    description: str,
    url: str,
    parameters: Mapping[str, Any],
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    result: str | None = None,
    seconds: float = 30.0,
    max_bytes: int = 1 << 20,
    retries: int = 2,
    pure: bool = False,
    max_output_tokens: int = 2048,
) -> Tool:
    """A tool whose call is a request to `url`.

    parameters: JSON schema of the arguments, which become the JSON body, or parameters of the query for GET, HEAD and
    DELETE. result: where the text stands in a JSON reply, such as "items.0.text"; None: the whole reply. seconds: of a
    call with its repetitions. max_bytes: of a reply. retries: repetitions after a lost connection or HTTP 429, 502, 503
    and 504, if the method is idempotent or the tool is `pure`. Redirects are not followed, cookies are not kept, and
    proxies of the environment are not used. A call that fails raises ToolError, without the values of `headers`.

    Raises UserError for an address, a method or headers that cannot be used.
    """
    request = _Request(
        name, url, method.upper(), dict(headers or {}), result, seconds, max_bytes, retries, pure, dict(parameters)
    )
    schema = {"name": name, "description": description, "parameters": parameters}
    return Tool(
        name,
        request,
        {"type": "function", "function": schema},
        seconds=seconds,
        max_output_tokens=max_output_tokens,
        pure=pure,
        service=request,
    )


@dataclass(eq=False)
class _Request:
    """The request of a tool, and its connections; fields as in `http_tool`."""

    name: str
    url: str
    method: str
    headers: dict[str, str] = field(repr=False)
    result: str | None
    seconds: float
    max_bytes: int
    retries: int
    pure: bool
    parameters: dict[str, Any]

    def __post_init__(self) -> None:
        try:
            address = checked(self.url)
        except BadAddress as error:
            raise UserError(
                f"the url of the tool {self.name}, {shown(self.url)[:200]!r}, is invalid ({error}); correct it."
            ) from None
        if self.method not in (*REPEATABLE, "POST", "PATCH"):
            raise UserError(
                f"the tool {self.name} has the method {self.method!r}; give GET, POST, PUT, PATCH or DELETE."
            )
        for header, value in self.headers.items():
            if not all(text.isascii() and text.isprintable() for text in (header, value)):
                raise UserError(
                    f"the header {header!r} of the tool {self.name} has characters that no header may have."
                )
        fixed = set(address.params) & set(self.parameters.get("properties", {}))
        if self.method in IN_QUERY and fixed:
            raise UserError(
                f"the tool {self.name} has {min(fixed)!r} in its url and as a parameter; remove one of them."
            )
        self._address = address
        self._repeatable = self.pure or self.method in REPEATABLE
        self._http: httpx.AsyncClient | None = None

    # ----------------------------------------------------------------------------------------------------- the service
    def start(self) -> None:
        """Tries a connection, without a request. Raises UserError if none can be made."""
        if self._http is not None:
            return
        port = self._address.port or {"http": 80, "https": 443}[self._address.scheme]
        try:
            wait(_connected(self._address.host, port))
        except OSError as error:  # TimeoutError is one
            raise UserError(
                f"the tool {self.name} cannot reach {shown(self.url)} ({error or 'no answer'}); start the server, or "
                "correct the url."
            ) from None
        wait(self._open())

    def close(self) -> None:
        """Closes the connections; a later call opens them again."""
        http, self._http = self._http, None
        if http is not None:
            wait(http.aclose())

    async def _open(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = httpx.AsyncClient(
                headers={**self.headers, "Accept-Encoding": "identity"},
                timeout=None,  # a call has one limit
                limits=httpx.Limits(max_connections=None),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                follow_redirects=False,
                trust_env=False,
            )
        return self._http

    # ------------------------------------------------------------------------------------------------------- the call
    def __call__(self, /, **arguments: Any) -> str:
        """The text for the policy."""
        return self._without_secrets(wait(self._answer(arguments)))

    async def _answer(self, arguments: Mapping[str, Any]) -> str:
        http = await self._open()
        try:
            async with asyncio.timeout(self.seconds):
                for tries in range(self.retries + 1):
                    last = tries == self.retries or not self._repeatable
                    try:
                        status, headers, body = await self._once(http, arguments)
                    except httpx.TransportError as error:
                        if last:
                            raise ToolUnavailable(self._without_secrets(f"{self.name}: {_reason(error)}")) from None
                        await asyncio.sleep(FIRST_DELAY * 2**tries)
                        continue
                    if last or status not in BUSY:
                        return self._read(status, body)
                    await asyncio.sleep(max(FIRST_DELAY * 2**tries, _asked_delay(headers.get("retry-after", ""))))
        except TimeoutError:
            raise ToolError(f"{self.name}: no complete reply within {self.seconds:g} s") from None
        raise AssertionError("the last try returns or raises")

    async def _once(self, http: httpx.AsyncClient, arguments: Mapping[str, Any]) -> tuple[int, httpx.Headers, bytes]:
        if self.method in IN_QUERY:
            if taken := set(self._address.params) & set(arguments):
                raise ToolError(f"{self.name} has no argument {min(taken)!r}")
            params = [*self._address.params.multi_items(), *_query(arguments)]
            try:
                address = self._address.copy_with(params=params)
            except httpx.InvalidURL:
                raise ToolError(f"{self.name}: the arguments are too long for an address; give shorter ones") from None
            body = None
        else:
            address, body = self._address, dict(arguments)
        async with http.stream(self.method, address, json=body) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ToolError(f"{self.name}: a compressed reply, which was not asked for")
            parts, size = [], 0
            async for part in response.aiter_raw():
                size += len(part)
                if size > self.max_bytes:
                    raise ToolError(f"{self.name}: a reply of more than {self.max_bytes} bytes")
                parts.append(part)
        return response.status_code, response.headers, b"".join(parts)

    def _read(self, status: int, body: bytes) -> str:
        """The text of a reply. Raises ToolError for a status that is no success and for a reply without the result."""
        if 300 <= status < 400:
            raise ToolError(f"{self.name}: HTTP {status}, a redirect, which is not followed")
        if not 200 <= status < 300:
            text = " ".join(body[:1200].decode(errors="replace").split())[:300]
            raise ToolError(self._without_secrets(f"{self.name}: HTTP {status}{': ' if text else ''}{text}"))
        if self.result is None:
            return body.decode(errors="replace")
        try:
            value = HttpResponse(status, body).json()
        except ValueError:
            raise ToolError(f"{self.name}: the reply is no JSON") from None
        for step in self.result.split("."):
            try:
                value = value[int(step)] if isinstance(value, list) else value[step]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ToolError(f"{self.name}: the reply has no {self.result}") from None
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _without_secrets(self, text: str) -> str:
        """The text without the values of headers: some servers repeat them."""
        for header, value in self.headers.items():
            if header.lower() not in OPEN_HEADERS:
                for secret in (value, value.rpartition(" ")[2]):  # "Bearer …" as a whole, and what follows
                    if secret:
                        text = text.replace(secret, "[…]")
        return text


async def _connected(host: str, port: int) -> None:
    """Opens and closes a connection. Raises OSError."""
    async with asyncio.timeout(PROBE):
        _, writer = await asyncio.open_connection(host, port)
    writer.close()


def _query(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Parameters of a query: texts as they are, a list as one parameter for each item, other values as JSON."""
    pairs = [
        (name, one) for name, value in arguments.items() for one in (value if isinstance(value, list) else [value])
    ]
    return [(name, one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)) for name, one in pairs]


def _asked_delay(asked: str) -> float:
    """The seconds of a Retry-After header; 0 for a date and for none."""
    return float(asked) if asked.isascii() and asked.isdigit() else 0.0


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
