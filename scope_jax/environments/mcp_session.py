"""One session with an MCP server: opened, asked and closed on the event loop of the network clients."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scope_jax.errors import UserError
from scope_jax.play.tool_calls import ToolError
from scope_jax.text import schemas

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock, Tool

GRACE = 5.0  # seconds after a call's limit until it is given up without the SDK
ENDING = 0.5  # seconds until the task of a failed transport has ended
LOOK = 5.0  # seconds that a server has to list its tools after a call without an answer
CLOSING = 10.0  # seconds for the end of a session; the SDK kills a server after 4
PAGES = 100  # of a list of tools
SAID = 400  # last characters of a server's stderr in messages

logging.getLogger("mcp.client").setLevel(
    logging.CRITICAL
)  # it prints tracebacks of the servers' faults, which we raise


class Lost(Exception):
    """The session could not be opened or is over; the message gives the reason."""


@runtime_checkable
class Server(Protocol):
    """What a session knows of its server; the fields of `Mcp`."""

    name: str
    url: str | None
    command: Sequence[str]
    per: str
    headers: Mapping[str, str] | None
    env: Mapping[str, str] | None
    cwd: str | None
    seconds: float
    connect_seconds: float
    max_bytes: int


class McpSession:
    """A session; one task holds it, as the SDK wants it to be closed by the task that opened it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ending = asyncio.Event()
        self._client: Any = None
        self._holder: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stderr = b""
        self._outputs: Mapping[str, schemas.Schema] = {}
        self.lost: str | None = None
        """Why the session is over; None: it is not."""

    # -------------------------------------------------------------------------------------------------- open, close
    async def open(self) -> list[Tool]:
        """Connects; returns the server's tools. Raises Lost, and UserError without the SDK."""
        try:
            import mcp  # noqa: F401
        except ModuleNotFoundError:
            raise UserError("MCP servers need the SDK; run pip install 'scope-jax[mcp]'.") from None
        opened: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(opened))
        await asyncio.wait({self._holder, opened}, timeout=self._server.connect_seconds, return_when="FIRST_COMPLETED")
        if opened.done():
            self._holder.add_done_callback(self._over)
            return opened.result()
        if not self._holder.done():
            await self.close()
            raise Lost(f"no answer within {self._server.connect_seconds:g} s{self._said()}")
        error = _first(self._holder.exception())
        of_handshake = isinstance(error, RuntimeError) and self._client is None  # until then, only the SDK has run
        if not of_handshake and not _of_connections(error):
            raise error
        raise Lost(f"{_sentence(error)}{self._said()}")

    async def _hold(self, opened: asyncio.Future[list[Tool]]) -> None:
        """Opens the session and keeps it until its end is asked for, or until the transport fails."""
        from mcp.client import Client

        async with AsyncExitStack() as stack:
            transport = await stack.enter_async_context(self._transport())
            client = Client(transport, read_timeout_seconds=self._server.connect_seconds, cache=None)
            self._client = await stack.enter_async_context(client)
            self._client.session.validate_tool_result = self._check_result
            tools = await self._tools()
            self._outputs = {tool.name: tool.output_schema or {} for tool in tools if _usable(tool)}
            opened.set_result(tools)
            await self._ending.wait()

    async def _tools(self) -> list[Tool]:
        tools, cursor = [], None
        for _ in range(PAGES):
            page = await self._client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools
        raise UserError(f"{self._server.name} lists its tools on more than {PAGES} pages; use another server.")

    def _over(self, holder: asyncio.Task[None]) -> None:
        """The holder has ended: by `close`, or because the transport failed."""
        error = None if holder.cancelled() else holder.exception()
        if self.lost is None:
            self.lost = "closed" if error is None else _sentence(_first(error))

    async def close(self) -> None:
        """Ends the session, and the server if it was started for it; again: nothing."""
        self.lost = self.lost or "closed"
        self._ending.set()
        if self._looking is not None:
            self._looking.cancel()
        if self._holder is not None and not self._holder.done():
            await asyncio.wait({self._holder}, timeout=CLOSING if self._client is not None else 0.0)
            self._holder.cancel()  # nothing if it has ended
            await asyncio.wait({self._holder}, timeout=CLOSING)

    # ---------------------------------------------------------------------------------------------------- transports
    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        server = self._server
        if server.url is not None:
            from mcp.client.streamable_http import streamable_http_client

            from scope_jax.environments.mcp_http import bounded_client

            async with bounded_client(server.headers, server.max_bytes, server.connect_seconds) as http:
                yield streamable_http_client(server.url, http_client=http)
        else:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            program, *words = server.command
            parameters = StdioServerParameters(
                command=program,
                args=words,
                env=dict(server.env or {}),
                cwd=server.cwd,
                encoding_error_handler="replace",
            )
            with _Tail(self) as log:
                yield stdio_client(parameters, errlog=log)

    def keep(self, said: bytes) -> None:
        """Keeps the end of what the server writes to its stderr."""
        self._stderr = (self._stderr + said)[-4 * SAID :]

    def _said(self) -> str:
        text = " ".join(self._stderr.decode(errors="replace").split())[-SAID:]
        return f"; it wrote: {text}" if text else ""

    # --------------------------------------------------------------------------------------------------------- calls
    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """The result of a call. Raises ToolError if there is none: the session is over, no answer in time, an answer
        against the protocol."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
        from pydantic import ValidationError

        if self.lost is not None:
            raise ToolError(f"the server of {name} is gone ({self.lost})")
        seconds = self._server.seconds
        try:
            async with asyncio.timeout(seconds + GRACE):
                return await self._client.call_tool(name, arguments, read_timeout_seconds=seconds)
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                self._look()
                raise ToolError(f"{name} did not answer within {seconds:g} s") from None
            if error.code == CONNECTION_CLOSED:
                await self._lose(_sentence(error))
            elif error.message == "Session terminated":  # the SDK's for a session that an HTTP server does not know
                self.lost = self.lost or _sentence(error)
            raise ToolError(f"{name}: {_sentence(error)}") from None
        except TimeoutError:
            self._look()
            raise ToolError(f"{name} did not answer within {seconds:g} s") from None
        except (ValidationError, RuntimeError) as error:  # the SDK's, for results that are not as they were declared
            raise ToolError(f"{name} gave a result that is not valid: {_sentence(error)}") from None

    async def _check_result(self, name: str, result: CallToolResult) -> None:
        """In place of the SDK's, which follows the schemas of servers without end. Raises RuntimeError."""
        if name not in self._outputs:
            return
        if result.structured_content is None:
            raise RuntimeError("it has no structured content, which its schema demands")
        if wrong := schemas.fault(result.structured_content, self._outputs[name]):
            raise RuntimeError(wrong.message)

    async def _lose(self, reason: str) -> None:
        """After a closed connection, which over stdio is the only one: of HTTP requests, each has its own, and a
        transport that fails ends the holder."""
        assert self._holder is not None
        if self._server.url is None:
            self.lost = self.lost or reason
        elif not (await asyncio.wait({self._holder}, timeout=ENDING))[0]:
            self._look()

    def _look(self) -> None:
        """After a call without an answer, finds out whether the server still answers; a session of one episode stays,
        as its state would be lost."""
        if self._server.per == "run" and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._answers())

    async def _answers(self) -> None:
        from mcp.shared.exceptions import MCPError

        try:
            async with asyncio.timeout(LOOK):
                await self._client.list_tools(cache_mode="refresh")
        except (MCPError, TimeoutError):
            self.lost = self.lost or "it does not answer"


class _Tail:
    """The write end of a pipe whose read end feeds a session's `keep`, while the loop runs."""

    def __init__(self, session: McpSession) -> None:
        self._session = session

    def __enter__(self) -> Any:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        self._file = os.fdopen(write, "w")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._take)
        return self._file

    def _take(self) -> None:
        said = os.read(self._read, 1 << 16)
        self._session.keep(said)
        if not said:
            self._loop.remove_reader(self._read)

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._read)
        self._file.close()
        os.close(self._read)


def shown_result(result: CallToolResult) -> str:
    """The texts of a result, one below the other; what else it holds is named in brackets. A result of structured
    content alone is its JSON."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_shown_block, result.content))


def _shown_block(block: ContentBlock) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource_link":
        return f"[{block.type}: {block.uri}]"
    if block.type == "resource":
        return f"[{block.type}: {block.resource.uri}]"
    return f"[{block.type}: {block.mime_type}]"


def _usable(tool: Tool) -> bool:
    """Whether a tool has a schema of its results that can be followed; other schemas are left to the server."""
    try:
        schemas.check(tool.output_schema, tool.name)
    except UserError:
        return False
    return True


def _first(error: BaseException | None) -> BaseException:
    """The first error of a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert error is not None
    return error


def _of_connections(error: BaseException) -> bool:
    """Whether it is a fault of the server or of the way to it, and not of our code."""
    import httpx2
    from mcp.shared.exceptions import MCPError
    from pydantic import ValidationError

    return isinstance(error, OSError | TimeoutError | MCPError | ValidationError | httpx2.HTTPError | httpx2.InvalidURL)


def _sentence(error: BaseException) -> str:
    """The message of an error on one line."""
    return " ".join(str(error).split())[:SAID] or type(error).__name__
