"""Tools of an MCP server (Model Context Protocol) over streamable HTTP or stdio, by the official SDK (extra `mcp`).

A server may ask its client for a completion or for input of a user; both are declined, as neither is declared.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from scope_jax.environments.mcp_session import Lost, McpSession, shown_result
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import Tool, ToolError, ToolUnavailable
from scope_jax.web import exchange
from scope_jax.web.exchange import shown

wait = partial(exchange.wait, name="mcp")  # a loop of its own: a server with endless lines keeps no judge waiting


@dataclass(eq=False)
class Mcp:
    """An MCP server whose tools a policy may call; a `Service` of each of them.

    A session that is lost is not continued: the calls under way fail, which the policy reads. With per="run" the next
    call connects again, with per="episode" the calls of this episode fail and the next episode has its own session.
    """

    url: str | None = None
    """Address of a server that speaks streamable HTTP; give this or `command`."""
    command: Sequence[str] = ()
    """Program and arguments of a server that speaks over stdin and stdout."""
    only: Sequence[str] = ()
    """Names of the server's tools that are offered; none: all."""
    per: str = "run"
    """"run" or "episode": whether all episodes share one session or each has its own, opened at its first call."""
    prefix: str = ""
    """Stands before every tool's name, so that two servers may have tools of the same name."""
    headers: Mapping[str, str] | None = None
    """Sent with every request to `url`, such as an authorization; never shown."""
    env: Mapping[str, str] | None = None
    """Environment variables of `command`, beside PATH, HOME and the few others that the SDK hands on."""
    cwd: str | None = None
    """Working directory of `command`."""
    seconds: float = 30.0
    """Most seconds of a call."""
    connect_seconds: float = 30.0
    """Most seconds until a session is open and its tools are listed."""
    max_bytes: int = 4 << 20
    """Most bytes of a reply by HTTP, and most characters of a result."""
    max_output_tokens: int = 2048
    """Most tokens of a result that the policy reads."""

    def __post_init__(self) -> None:
        if isinstance(self.command, str):
            raise UserError(f"the command of an MCP server is a list of words; {self.command!r} is one text.")
        if (self.url is None) == (not self.command):
            raise UserError("an MCP server has a url or a command; give one of them.")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise UserError(f"the url of an MCP server starts with http:// or https://, not {shown(self.url)[:40]!r}.")
        if self.url is not None:
            try:
                exchange.checked(self.url)
            except exchange.BadAddress as error:
                address = shown(self.url)[:200]
                raise UserError(f"the MCP server at {address} cannot be used ({error}); correct its url.") from None
        foreign = ("env", "cwd") if self.url is not None else ("headers",)
        for field in foreign:
            if getattr(self, field) is not None:
                kind = "url" if self.url is not None else "command"
                raise UserError(f"an MCP server with a {kind} has no {field}; remove it.")
        if self.per not in ("run", "episode"):
            raise UserError(f'per of an MCP server is "run" or "episode", not {self.per!r}.')
        self.name = f"the MCP server {shown(self.url) if self.url is not None else self.command[0]}"
        self._starting = threading.Lock()
        self._connecting = asyncio.Lock()
        self._listed: tuple[Mapping[str, Any], ...] | None = None  # the schemas, once known
        self._shared: McpSession | None = None
        self._sessions: set[McpSession] = set()

    # ------------------------------------------------------------------------------------------------------ the run
    def start(self) -> None:
        """Connects and lists the tools. Raises UserError if the server cannot be used or offers other tools than it
        did before."""
        with self._starting:
            if self._listed is not None and (self.per == "episode" or self._usable(self._shared)):
                return
            try:
                session = wait(self._session() if self.per == "run" else self._opened())
            except Lost as lost:
                remedy = "start it, or correct its url" if self.url is not None else "correct its command"
                raise UserError(f"{self.name} cannot be used ({lost}); {remedy}.") from None
            if self.per == "episode":
                self.closed(session)

    def close(self) -> None:
        """Ends all sessions, and the servers that were started for them."""
        wait(self._close(*self._sessions))
        self._shared = None

    def tools(self) -> tuple[Tool, ...]:
        """The server's tools, or those of `only`, in the server's order; starts it. Raises UserError as `start`."""
        return tuple(map(self._tool, self._schemas()))

    def fingerprint(self) -> str:
        """A digest of the tools' schemas: a run that goes on needs a server with the same one. Starts the server."""
        return hashlib.sha256(json.dumps(self._schemas(), sort_keys=True).encode()).hexdigest()

    def _schemas(self) -> tuple[Mapping[str, Any], ...]:
        if self._listed is None:
            self.start()
        assert self._listed is not None
        return self._listed

    def _tool(self, schema: Mapping[str, Any]) -> Tool:
        name = schema["function"]["name"]
        alone = self.per == "episode"
        return Tool(
            name,
            partial(self._call_in, name) if alone else partial(self._call, name),
            schema,
            open=self.open_episode if alone else None,
            seconds=self.seconds,
            max_output_tokens=self.max_output_tokens,
            service=self,
        )

    # ---------------------------------------------------------------------------------------------------- sessions
    def open_episode(self, _: np.random.Generator) -> AbstractContextManager[McpSession]:
        """A session for one episode, which its tools share."""
        return _Episode(self)

    def opened(self) -> McpSession:
        """A new session. Raises ToolUnavailable if it cannot be had."""
        return self._reached(self._opened())

    def closed(self, session: McpSession) -> None:
        """Ends a session."""
        wait(self._close(session))

    def _reached(self, work: Any) -> McpSession:
        try:
            return wait(work)
        except Lost as lost:
            raise ToolUnavailable(f"{self.name} cannot be reached: {lost}") from None

    async def _session(self) -> McpSession:
        """The session that all episodes share; a new one if there is none, or if it is lost."""
        async with self._connecting:
            if not self._usable(self._shared):
                if self._shared is not None:
                    await self._close(self._shared)
                self._shared = await self._opened()
            assert self._shared is not None
            return self._shared

    async def _opened(self) -> McpSession:
        """A new session. Raises Lost if it cannot be had, and UserError for a server with other tools."""
        session = McpSession(self)
        self._sessions.add(session)
        try:
            self._accept(self._offered(await session.open()))
        except (Lost, UserError):
            await self._close(session)
            raise
        return session

    def _usable(self, session: McpSession | None) -> bool:
        return session is not None and session.lost is None

    async def _close(self, *sessions: McpSession) -> None:
        await asyncio.gather(*(session.close() for session in sessions))
        self._sessions.difference_update(sessions)

    def _offered(self, listed: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
        """Schemas, as chat templates have them, of the tools that a server listed."""
        names = [tool.name for tool in listed]
        if absent := [name for name in self.only if name not in names]:
            raise UserError(
                f"{self.name} has no tool {absent[0]!r}; it has {', '.join(sorted(names)) or 'none'}; correct `only`."
            )
        chosen = [tool for tool in listed if not self.only or tool.name in self.only]
        if twice := [tool.name for tool in chosen if names.count(tool.name) > 1]:
            raise UserError(f"{self.name} lists the tool {twice[0]!r} twice; leave it out by `only`.")
        if not chosen:
            raise UserError(f"{self.name} has no tools; remove it from the agent.")
        return tuple(
            {
                "type": "function",
                "function": {
                    "name": self.prefix + tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in chosen
        )

    def _accept(self, schemas: tuple[Mapping[str, Any], ...]) -> None:
        """Keeps the schemas. Raises UserError if others are known: prompts declare them."""
        if self._listed is not None and schemas != self._listed:
            before = {schema["function"]["name"]: schema for schema in self._listed}
            now = {schema["function"]["name"]: schema for schema in schemas}
            names = sorted(name for name in before | now if before.get(name) != now.get(name))
            raise UserError(
                f"{self.name} offers other tools than at the start of the run ({', '.join(names) or 'their order'}); "
                "run the version of it that was used then."
            )
        self._listed = schemas

    # ------------------------------------------------------------------------------------------------------- calls
    def _call(self, name: str, /, **arguments: Any) -> str:
        session = self._reached(self._session())
        return self._call_in(name, session, **arguments)

    def _call_in(self, name: str, session: McpSession, /, **arguments: Any) -> str:
        """The text of a call's result. Raises ToolError for a result that is an error, and for none."""
        result = wait(session.call(name.removeprefix(self.prefix), arguments))
        text = shown_result(result)[: self.max_bytes]
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text


class _Episode(AbstractContextManager[McpSession]):
    """The session of an episode. No generator: one that is forgotten would be closed by the garbage collector, which
    may run in the thread of the event loop, and wait there for that loop."""

    def __init__(self, server: Mcp) -> None:
        self._server = server

    def __enter__(self) -> McpSession:
        self._session = self._server.opened()
        return self._session

    def __exit__(self, *_: object) -> None:
        self._server.closed(self._session)
