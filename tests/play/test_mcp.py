"""Tools of MCP servers, over stdio and HTTP, against a real server that goes wrong in many ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from scope_jax.environments.mcp import Mcp
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import Service, Tool, ToolError, ToolUnavailable

pytest.importorskip("mcp")

SERVER = Path(__file__).with_name("mcp_server.py")
STDIO = (sys.executable, str(SERVER), "stdio")
LIGHT = (sys.executable, str(SERVER.with_name("mcp_light.py")))
RNG = np.random.default_rng(0)


class Http:
    """The server over HTTP, in a process that can be killed and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self._file, self.port = folder / "port", 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **env: str) -> str:
        self._file.unlink(missing_ok=True)
        command = [sys.executable, str(SERVER), "http", str(self._file), str(self.port)]
        self.process = subprocess.Popen(command, env={**os.environ, **env}, stderr=subprocess.DEVNULL)
        while not (self._file.exists() and self._file.read_text()):
            assert self.process.poll() is None
            time.sleep(0.05)
        self.port = int(self._file.read_text())
        return f"http://127.0.0.1:{self.port}/mcp"

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def http(tmp_path: Path) -> Iterator[Http]:
    server = Http(tmp_path)
    yield server
    server.kill()


@contextmanager
def connecting() -> Iterator[Any]:
    """Makes Mcps, and closes them."""
    servers: list[Mcp] = []

    def make(**fields: Any) -> Mcp:
        servers.append(Mcp(**fields))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def connect() -> Iterator[Any]:
    with connecting() as make:
        yield make


def named(server: Mcp) -> dict[str, Tool]:
    return {tool.name: tool for tool in server.tools()}


def failure(tool: Tool, *state: Any, **arguments: Any) -> str:
    with pytest.raises(ToolError) as failed:
        tool.run(*state, **arguments)
    return str(failed.value)


def gone(pid: str) -> bool:
    for _ in range(1200):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


# ------------------------------------------------------------------------------------------------------ what is offered
def test_every_tool_of_the_server_is_a_tool(connect):
    server = connect(command=STDIO, seconds=7, max_output_tokens=50)
    tools = named(server)
    add = tools["add"]
    function = add.schema["function"]
    assert add.schema["type"] == "function" and function["description"] == "The sum of two whole numbers."
    assert function["parameters"]["required"] == ["a", "b"]
    assert function["parameters"]["properties"]["a"]["type"] == "integer"
    assert (add.seconds, add.max_output_tokens, add.pure, add.open) == (7, 50, False, None)
    assert add.service is server and isinstance(server, Service)
    assert add.run(a=2, b=40) == "42"


def test_some_tools_with_a_prefix(connect):
    server = connect(command=STDIO, only=("counted", "add"), prefix="other_")
    tools = named(server)
    assert list(tools) == ["other_add", "other_counted"]
    assert tools["other_add"].run(a=1, b=1) == "2" and tools["other_counted"].run() == "1"


def test_a_fingerprint_is_that_of_the_schemas(connect):
    both = [connect(command=LIGHT), connect(command=LIGHT, per="episode")]
    more = connect(command=LIGHT, env={"EXTRA_TOOL": "1"})
    fewer = connect(command=LIGHT, only=("add",))
    assert both[0].fingerprint() == both[1].fingerprint()
    assert len({one.fingerprint() for one in (*both, more, fewer)}) == 3


def test_what_cannot_be_used_is_one_sentence(connect, tmp_path):
    silent = "import sys, time; print('loading weights', file=sys.stderr, flush=True); time.sleep(60)"
    wrong = "import sys\nfor line in sys.stdin: print('{}', flush=True)"
    for fields, sentence in [
        ({}, "has a url or a command; give one of them"),
        ({"url": "http://a", "command": STDIO}, "has a url or a command; give one of them"),
        ({"command": "server --stdio"}, "is a list of words"),
        ({"url": "somewhere"}, "starts with http:// or https://"),
        ({"url": "http://a", "env": {"A": "b"}}, "with a url has no env; remove it"),
        ({"command": STDIO, "headers": {"A": "b"}}, "with a command has no headers"),
        ({"command": STDIO, "per": "step"}, 'is "run" or "episode"'),
        ({"command": STDIO, "only": ("ad",)}, "has no tool 'ad'; it has add, asks_model"),
        ({"command": ("no-such-program",)}, "MCP server no-such-program cannot be used.*correct its command"),
        (
            {"command": (sys.executable, "-c", "raise SystemExit('no key set')")},
            "Connection closed; it wrote: no key set",
        ),
        (
            {"command": (sys.executable, "-c", silent), "connect_seconds": 1.5},
            "within 1.5 s; it wrote: loading weights",
        ),
        ({"command": (sys.executable, "-c", wrong), "connect_seconds": 1.5}, "within 1.5 s"),
        ({"url": "http://user:word@127.0.0.1:9/mcp?key=1"}, r"http://127.0.0.1:9/mcp cannot be used \(All connection"),
        ({"url": "http://[::1/mcp"}, "cannot be used"),
    ]:
        with pytest.raises(UserError, match=sentence):
            connect(**fields).start()


# --------------------------------------------------------------------------------------------------------------- calls
@pytest.fixture(scope="module", params=["stdio", "http"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Of one server, which goes on after each test."""
    http = Http(tmp_path_factory.mktemp("http"))
    where = {"command": STDIO} if request.param == "stdio" else {"url": http.start()}
    with connecting() as connect:
        yield named(connect(seconds=5, max_bytes=1 << 20, **where))
    http.kill()


def test_results_and_errors(tools):
    assert failure(tools["fails"]) == "Error executing tool fails"
    assert "valid integer" in failure(tools["add"], a="one", b=2)
    assert tools["picture"].run() == "seen\n[image: image/png]"
    assert failure(tools["asks_user"]).startswith("asks_user: ") and failure(tools["asks_model"]).startswith(
        "asks_model:"
    )
    assert tools["add"].run(a=1, b=2) == "3"


def test_threads_call_at_once(tools):
    with ThreadPoolExecutor(12) as pool:
        late = [pool.submit(tools["meets"].run, number=6) for _ in range(6)]
        sums = list(pool.map(lambda n: tools["add"].run(a=n, b=n), range(60)))
        assert [one.result() for one in late] == ["met"] * 6
    assert sums == [str(2 * n) for n in range(60)]


def test_a_call_that_hangs_leaves_the_session(tools):
    pid = tools["pid"].run()
    assert failure(tools["hangs"]) == "hangs did not answer within 5 s"
    assert tools["pid"].run() == pid


def test_huge_output(tools):
    assert tools["long"].run(characters=400_000) == "x" * 400_000
    if tools["long"].service.url is None:  # over stdio it is cut, over HTTP not read to its end
        assert len(tools["long"].run(characters=2_000_000)) == 1 << 20
    else:
        assert failure(tools["long"], characters=2_000_000).endswith("a reply of more than 1048576 bytes")
    assert tools["add"].run(a=1, b=2) == "3"


# ------------------------------------------------------------------------------------------------- servers that go away
def test_a_server_that_dies_is_started_again_for_the_run(connect):
    server = connect(command=LIGHT)
    tools = named(server)
    first = tools["pid"].run()
    assert "Connection closed" in failure(tools["dies"])
    assert tools["pid"].run() != first and tools["counted"].run() == "1"


def test_a_server_that_answers_nothing_any_more_is_started_again(connect, monkeypatch):
    monkeypatch.setattr("scope_jax.environments.mcp_session.LOOK", 0.5)
    server = connect(command=LIGHT, seconds=5)
    tools = named(server)
    first = tools["pid"].run()
    assert failure(tools["stops"]) == "stops did not answer within 5 s"
    second = first
    for _ in range(30):  # the call that finds it gone starts another
        with suppress(ToolError):
            second = tools["pid"].run()
        if second != first:
            break
    assert second != first and gone(first)
    server.close()
    assert gone(second)


def test_each_episode_has_a_session_which_its_tools_share(connect):
    server = connect(command=LIGHT, per="episode")
    tools = named(server)
    counted, pid = tools["counted"], tools["pid"]
    assert counted.open is not None and counted.open == pid.open == server.open_episode
    with counted.open(RNG) as first, counted.open(RNG) as second:
        assert [counted.run(first), counted.run(first), counted.run(second)] == ["1", "2", "1"]
        processes = [pid.run(first), pid.run(second)]
        assert processes[0] != processes[1]
        assert "Connection closed" in failure(tools["dies"], first)
        assert "the server of counted is gone (Connection closed)" in failure(counted, first)
        assert counted.run(second) == "2"
    assert all(map(gone, processes))
    with counted.open(RNG) as third:
        assert counted.run(third) == "1"


def test_close_ends_what_is_open(connect):
    server = connect(command=LIGHT, per="episode")
    pid = named(server)["pid"]
    assert pid.open is not None
    episode = pid.open(RNG)
    session = episode.__enter__()
    process = pid.run(session)
    server.close()
    assert gone(process) and "is gone (closed)" in failure(pid, session)


def test_an_http_server_that_comes_back(connect, http: Http):
    server = connect(url=http.start())
    tools = named(server)
    assert tools["counted"].run() == "1"
    http.kill()
    assert "counted: " in failure(tools["counted"])
    with pytest.raises(ToolUnavailable, match="cannot be reached"):
        tools["counted"].run()
    http.start()
    assert tools["counted"].run() == "1"


@pytest.mark.slow
def test_a_server_with_other_tools_is_refused(connect, http: Http):
    server = connect(url=http.start())
    tools = named(server)
    before = server.fingerprint()
    http.kill()
    failure(tools["add"], a=1, b=1)
    http.start(EXTRA_TOOL="1")
    with pytest.raises(UserError, match=r"offers other tools than at the start of the run \(extra\)"):
        tools["add"].run(a=1, b=1)
    assert server.fingerprint() == before
    http.kill()
    http.start()
    assert tools["add"].run(a=1, b=1) == "2"


def test_a_server_that_is_stopped_and_goes_on(connect, http: Http):
    server = connect(url=http.start(), seconds=4)
    tools = named(server)
    assert http.process is not None
    http.process.send_signal(signal.SIGSTOP)
    assert failure(tools["add"], a=1, b=1) == "add did not answer within 4 s"
    http.process.send_signal(signal.SIGCONT)
    assert tools["add"].run(a=1, b=1) == "2"


class Replies(BaseHTTPRequestHandler):
    """An HTTP server that speaks no MCP."""

    body = b""
    kind = "application/json"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{"),
        ("application/json", b'{"jsonrpc": "2.0", "id": 1, "result": []}'),
        ("application/json", b"[" * 100_000),
        ("text/html", b"<html>"),
        ("text/event-stream", b"data: {\n\n"),
        ("text/event-stream", b""),
    ],
)
def test_a_server_that_speaks_something_else(connect, kind, body):
    handler = type("Fresh", (Replies,), {"kind": kind, "body": body})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match="cannot be used"):
            connect(url=f"http://127.0.0.1:{running.server_address[1]}/mcp", connect_seconds=3).start()
        running.shutdown()


def test_without_the_sdk_there_is_a_sentence(connect, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UserError, match=r"pip install 'scope-jax\[mcp\]'"):
        connect(command=STDIO).start()
