"""An MCP server for the tests, with tools that go wrong: `mcp_server.py stdio`, `mcp_server.py http PORT_FILE PORT`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import anyio
import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("worst")
count = {"calls": 0, "met": 0}


@server.tool()
def add(a: int, b: int) -> str:
    """The sum of two whole numbers."""
    return str(a + b)


@server.tool()
def counted() -> str:
    """How often this was called in this process."""
    count["calls"] += 1
    return str(count["calls"])


@server.tool()
def pid() -> str:
    """The process that answers."""
    return str(os.getpid())


@server.tool()
def fails() -> str:
    """Fails."""
    raise ValueError("nothing is known of it")


@server.tool()
def dies() -> str:
    """Ends the server in the middle of the call."""
    os._exit(3)


@server.tool()
async def hangs() -> str:
    """Never answers; other calls are answered."""
    await anyio.sleep(3600)
    return ""


@server.tool()
def stops() -> str:
    """Never answers, nor does anything else afterwards."""
    os.kill(os.getpid(), 19)
    return ""


@server.tool()
def long(characters: int) -> str:
    """A long text."""
    return "x" * characters


@server.tool(structured_output=False)
def picture() -> list:
    """A text and a picture."""
    return ["seen", Image(data=b"\x89PNG", format="png")]


class Name(BaseModel):
    name: str


@server.tool()
async def asks_user(ctx: Context) -> str:
    """Asks the user for a name."""
    return str(await ctx.elicit("Your name?", Name))


@server.tool()
async def asks_model(ctx: Context) -> str:
    """Asks the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="hello"))
    return str(await ctx.session.create_message([message], max_tokens=8))


@server.tool()
async def meets(number: int) -> str:
    """Answers when so many calls of it have begun."""
    count["met"] += 1
    while count["met"] < number:
        await anyio.sleep(0.01)
    return "met"


if os.environ.get("EXTRA_TOOL"):

    @server.tool()
    def extra() -> str:
        """One more tool."""
        return ""


def serve_http(port_file: str, port: int) -> None:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    Path(port_file).write_text(str(sock.getsockname()[1]))
    app = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run([sock])


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        serve_http(sys.argv[2], int(sys.argv[3]))
    else:
        server.run("stdio")
